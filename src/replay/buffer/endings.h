// Determines from the leaves of a row if its episode ends with it, and how.
//
// `done` is the union of `terminated` and `truncated`. If rows lack one of the two, `done` takes its place; if they
// lack both, `done` takes the place of `terminated`.
//
// Thread safety: any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "replay/buffer/spec.h"
#include "replay/rows/writer.h"

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

  // Returns the ending of one of `count` rows. Returns kInvalid, with the keys and their values, for a row that
  // contradicts itself.
  Result<Ending> of(std::span<const Column> columns, std::size_t row, std::size_t count) const;

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

}  // namespace shmtree::replay
