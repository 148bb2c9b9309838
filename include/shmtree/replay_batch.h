/// @file
/// Sampled rows of a replay buffer (replay.h).
///
/// Ownership: a batch is a handle of its own memory, which exists while the batch, a copy of it, a view that it
/// returned (Held), or an array_ref() does.
///
/// Thread safety: any thread may read any batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shmtree/base/held.h"
#include "shmtree/base/kind.h"
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree {

namespace api {
struct ReplayState;
struct ReplayBatchState;
}  // namespace api

/// Sampled rows. A moved-from batch is empty: its spans have no elements, and its other calls return kClosed.
class ReplayBatch {
 public:
  /// Returns the number of rows, or of sequences.
  std::size_t size() const noexcept;
  /// Returns the number of rows of each sequence, including its burn-in; 0 for single rows.
  std::size_t length() const noexcept;
  /// Returns the indices for update_priorities(), one per row. For sequences there are size() x length() of them, one
  /// sequence after another.
  Held<std::span<const std::int64_t>> index() const noexcept;
  /// Returns the importance weight of each row for the learner, at most 1.
  Held<std::span<const float>> weight() const noexcept;
  /// Returns the probability with which each row was chosen.
  Held<std::span<const double>> probability() const noexcept;
  /// Returns the priority that each row had; ones if the sampler has no priorities.
  Held<std::span<const float>> priority() const noexcept;
  /// Returns the age of each row: the number of rows that were added after it, up to the time of the sample.
  Held<std::span<const std::int64_t>> age() const noexcept;
  /// Returns the version that ReplayWriter::set_version() had set when each row was added.
  Held<std::span<const std::int64_t>> version() const noexcept;
  /// Returns the number of each row's stream.
  Held<std::span<const std::int64_t>> writer() const noexcept;
  /// Returns how many rows of its stream were added before each row.
  Held<std::span<const std::int64_t>> step() const noexcept;
  /// Returns the discount for the value of each row's successor. Empty if the buffer has neither `next` nor `n_step`.
  Held<std::span<const float>> discount() const noexcept;
  /// Returns the index of the row that achieved each row's desired goal; -1 for rows with their own goal. Empty without
  /// ReplayDraw::hindsight.
  Held<std::span<const std::int64_t>> goal_index() const noexcept;
  /// Returns true for each position of a sequence that has a row; the chosen row always has. Empty for single rows.
  Held<std::span<const bool>> mask() const noexcept;
  /// Returns the position of the first row of each sequence, at which the state of a recurrent network begins. It is 0
  /// unless ReplaySequences::burn_in begins before the episode, and for single rows.
  std::size_t first_row(std::size_t sequence) const noexcept;

  /// Returns the paths of the leaves, including those of successors.
  const std::vector<std::string>& paths() const& noexcept;
  /// Returns a copy, since the batch is a temporary.
  std::vector<std::string> paths() && { return paths(); }
  /// Returns an array of shape (n, ...), or (n, length, ...) for sequences. kNotFound: the batch has no such path.
  /// kInvalid: the data went to `out`. The array is read-only once a put has given it away (ReplayDraw::in_arena). The
  /// result does not keep the memory alive.
  Result<ArrayView> try_view(std::string_view path) const;
  /// Does the same, and keeps the memory alive. Throws BadResult.
  Held<ArrayView> view(std::string_view path) const { return {try_view(path).value(), state_}; }
  /// Returns all elements in C order. Throws BadResult: the errors of view(), and kInvalid for another element type.
  template <ArrayElement T>
  Held<std::span<T>> span(std::string_view path) const {
    const ArrayView found = try_view(path).value();
    if (found.dtype != dtype_of<T>()) throw BadResult(detail::other_elements(found.dtype, dtype_of<T>()));
    return {{detail::first_element<T>(found), found.elements}, state_};
  }
  /// Returns the array as a Value to send. It keeps the batch, or its memory in the arena, alive. Errors are those of
  /// try_view(), and kInvalid for elements without a C++ type.
  Result<ArrayRef> array_ref(std::string_view path) const;

 private:
  friend struct api::ReplayState;
  explicit ReplayBatch(std::shared_ptr<const api::ReplayBatchState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<const api::ReplayBatchState> state_;
};

}  // namespace shmtree
