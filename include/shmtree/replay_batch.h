/// @file
/// Rows that were drawn from a replay buffer (replay.h).
///
/// Ownership: a batch is a handle of its own memory, which lives as long as it, a copy of it, or an array_ref().
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

#include "shmtree/item.h"
#include "shmtree/kind.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

namespace api {
struct ReplayState;
struct ReplayBatchState;
}  // namespace api

/// Rows that were drawn. A moved-from batch has none: its spans are empty, and its other calls return kClosed.
class ReplayBatch {
 public:
  /// How many rows, or sequences.
  std::size_t size() const noexcept;
  /// Rows of each sequence; 0 where single rows were drawn.
  std::size_t length() const noexcept;
  /// By which update_priorities() knows the rows. As many as rows; of sequences size() x length(), one after the other.
  std::span<const std::int64_t> index() const noexcept;
  /// How much each row counts for who learns, at most 1.
  std::span<const float> weight() const noexcept;
  /// How likely each draw was that row.
  std::span<const double> probability() const noexcept;
  /// The priority that each row had; ones where the sampler has none.
  std::span<const float> priority() const noexcept;
  /// How many rows were added since, when the batch was drawn.
  std::span<const std::int64_t> age() const noexcept;
  /// ReplayWriter::set_version() when the row was added.
  std::span<const std::int64_t> version() const noexcept;
  /// The number of its stream.
  std::span<const std::int64_t> writer() const noexcept;
  /// How many rows its stream had before it.
  std::span<const std::int64_t> step() const noexcept;
  /// What the value of the successor counts; empty where the buffer has neither next nor n_step.
  std::span<const float> discount() const noexcept;
  /// Of sequences: where there is a row, of each at least the first. Empty for single rows.
  std::span<const bool> mask() const noexcept;

  /// The paths of its leaves, those of successors included.
  const std::vector<std::string>& paths() const noexcept;
  /// An array of shape (n, ...), or (n, length, ...) of sequences. kNotFound for a path that it does not have, kInvalid
  /// where the data went elsewhere.
  Result<ArrayView> try_view(std::string_view path) const;
  /// The same. Throws BadResult.
  ArrayView view(std::string_view path) const { return try_view(path).value(); }
  /// All its elements, in C order. Throws BadResult: as view(), and kInvalid for elements of another type.
  template <ArrayElement T>
  std::span<T> span(std::string_view path) const {
    const ArrayView found = view(path);
    if (found.dtype != dtype_of<T>()) throw BadResult(detail::other_elements(found.dtype, dtype_of<T>()));
    return {reinterpret_cast<T*>(found.data), found.elements};
  }
  /// That array as a Value, to be sent; it keeps the batch, or its memory in the arena. As try_view(), and kInvalid for
  /// elements that C++ has none of.
  Result<ArrayRef> array_ref(std::string_view path) const;

 private:
  friend struct api::ReplayState;
  explicit ReplayBatch(std::shared_ptr<const api::ReplayBatchState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<const api::ReplayBatchState> state_;
};

}  // namespace shmtree
