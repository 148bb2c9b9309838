// What the leaves of a row say about the end of its episode.
//
// `terminated` and `truncated` mean what they say. `done` is their union: it stands for the one of them that rows lack,
// and for `terminated` where it is alone.
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
  kDone,        // terminated, as far as `done` alone can say: Writer::end() may say that it was cut off
  kTerminated,  // also where it was cut off at the same time
  kTruncated,
};

class Endings {
 public:
  explicit Endings(const Spec& spec);

  // Of one row, by the addresses of its leaves. kInvalid, with the keys and their values, for a row that contradicts
  // itself.
  Result<Ending> of(std::span<const void* const> leaves) const;
  // Of `count` rows; kNone of those that `left_out`, which has as many or none, marks. The error also has the row's
  // number.
  Result<std::vector<Ending>> of(std::span<const Writer::Column> columns, std::size_t count,
                                 std::span<const char> left_out) const;

 private:
  // A leaf, and whether it is true: a number that is not zero.
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

// The same for a Writer.
inline RowInfo info_of(Ending ending, float priority) noexcept {
  return {.done = ending != Ending::kNone,
          .truncated = ending == Ending::kTruncated,
          .terminated = ending == Ending::kTerminated,
          .priority = priority};
}

}  // namespace shmtree::replay
