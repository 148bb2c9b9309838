// Finds out from the leaves of a row whether and how its episode ends there.
//
// `done` is the union of `terminated` and `truncated`. If rows lack one of the two, `done` stands for it; if they lack
// both, `done` stands for `terminated`.
//
// Thread safety: any number of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/spec.h"
#include "replay/writer.h"

namespace shmtree::replay {

enum class Ending : char {
  kNone,
  kDone,        // rows have only `done`: counts as terminated, unless Writer::end() says that it was cut off
  kTerminated,  // also if it was cut off at the same time
  kTruncated,
};

class Endings {
 public:
  explicit Endings(const Spec& spec);

  // Returns the ending of one row, from the addresses of its leaves. kInvalid, with the keys and their values, for a
  // row that contradicts itself.
  Result<Ending> of(std::span<const void* const> leaves) const;
  // Returns the endings of `count` rows, kNone for rows that `left_out` marks (it may be empty). The error also has the
  // number of the row.
  Result<std::vector<Ending>> of(std::span<const Writer::Column> columns, std::size_t count,
                                 std::span<const char> left_out) const;

 private:
  // A leaf that counts as true if its number is not zero.
  struct Key {
    std::size_t leaf = 0;
    std::uint64_t bytes = 0;
    bool is_float = false;
    std::string name{};  // for errors

    bool is_true(const std::byte* at) const noexcept;
  };
  struct Marked {
    bool done = false, terminated = false, truncated = false;
  };
  static std::optional<Key> key_of(const Spec& spec, const std::optional<std::size_t>& leaf, const char* name);
  std::optional<Ending> ending_of(const Marked& is) const noexcept;
  Error contradiction(const std::string& row, const Marked& is) const;

  std::optional<Key> done_, terminated_, truncated_;
};

// Converts an ending to the form that a Writer takes.
inline RowInfo info_of(Ending ending, float priority) noexcept {
  return {.done = ending != Ending::kNone,
          .truncated = ending == Ending::kTruncated,
          .terminated = ending == Ending::kTerminated,
          .priority = priority};
}

}  // namespace shmtree::replay
