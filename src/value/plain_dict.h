// A dict of None, bools, numbers and short ASCII texts: a flat record, as most small messages are. Its frame is written
// in place, without a builder and without allocating memory. It has the same bytes as the frame of encode(), except for
// a key that occurs twice.
//
// Thread safety: a value. The dict must live and stay unchanged until the frame is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "format/layout.h"
#include "shmtree/value.h"

namespace shmtree::value {

class PlainDict {
 public:
  // Returns nullopt for any other value, which needs encode().
  static std::optional<PlainDict> of(const Value& value) noexcept;
  static std::optional<PlainDict> of(Value&&) = delete;  // a temporary would be destroyed before write()

  std::uint64_t bytes() const noexcept { return sizeof(format::FrameHeader) + metadata_bytes_; }
  void write(std::byte* out) const noexcept;

 private:
  // Number of elements of each column.
  struct Counts {
    std::size_t kinds = 1, lengths = 1, text = 0, ints = 0, floats = 0;
  };
  PlainDict(const std::vector<Entry>& entries, const Counts& counts) noexcept;

  const std::vector<Entry>* entries_;
  Counts counts_;
  std::uint64_t metadata_bytes_;
};

}  // namespace shmtree::value
