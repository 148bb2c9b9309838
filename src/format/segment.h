// Finds the columns in the metadata: the pointers of one Cap'n Proto segment, in the form that frames have.
//
// Cap'n Proto's own reader does this for any message, following far pointers, charging a traversal limit and adapting
// element sizes; for the nine flat lists of a frame that took two thirds of the time in which a small message was read
// (180 ns of 270). A frame has one segment, one struct, and lists without pointers in them: what is left to check is
// below, and a test holds it against Cap'n Proto's reader. Every offset and size is checked against the segment; lists
// may overlap, which harms nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shmtree::format {

class Segment {
 public:
  // Element sizes of lists, as Cap'n Proto numbers them.
  enum Size : std::uint8_t { kBytes = 2, kWords = 5, kStructs = 7 };
  // A list under a pointer of the root; the schema's are in its generated header.
  struct Column {
    std::uint8_t field;
    Size size;
    std::uint8_t words_each;
  };

  explicit Segment(std::span<const std::uint64_t> words) noexcept : words_(words) {}

  // The root must be a struct; false otherwise. A null root is a struct without fields.
  bool read_root() noexcept {
    const std::uint64_t pointer = words_[0];
    if (pointer == 0) return true;
    const std::uint64_t data = pointer >> 32 & 0xffff;
    const std::uint64_t count = pointer >> 48;
    if ((pointer & 3) != 0 || !target_of(0, data + count, first_)) return false;
    first_ += data;
    count_ = count;
    return true;
  }

  std::size_t pointers() const noexcept { return count_; }

  // Where the values of a column are. False for anything that is not such a list within the segment.
  template <Column column, class T>
  [[gnu::always_inline]] bool read_list(const T*& begin, const T*& end) const noexcept {
    static_assert(sizeof(T) == (column.size == kBytes ? 1 : 8 * column.words_each));
    constexpr std::uint64_t kTypeBits = std::uint64_t{7} << 32 | 3, kType = std::uint64_t{column.size} << 32 | 1;
    begin = end = nullptr;
    if (column.field >= count_) return true;
    const std::size_t at = first_ + column.field;
    const std::uint64_t pointer = words_[at];
    if (pointer == 0) return true;
    if ((pointer & kTypeBits) != kType) return false;
    std::uint64_t elements = pointer >> 35;
    std::size_t target = 0;
    if constexpr (column.size == kBytes) {
      if (!target_of(at, (elements + 7) / 8, target)) return false;
    } else if constexpr (column.size == kWords) {
      if (!target_of(at, elements, target)) return false;
    } else {
      if (!target_of(at, elements + 1, target)) return false;
      // The elements are counted and described by a word before them.
      const std::uint64_t tag = words_[target++], words = elements;
      elements = tag >> 2 & 0x3fffffff;
      if ((tag & 3) != 0 || tag >> 32 != column.words_each || elements * column.words_each != words) return false;
    }
    begin = reinterpret_cast<const T*>(words_.data() + target);
    end = begin + elements;
    return true;
  }

 private:
  // Where the pointer in the word `at` leads, if `words` words from there are in the segment.
  bool target_of(std::size_t at, std::uint64_t words, std::size_t& target) const noexcept {
    const std::int64_t distance = static_cast<std::int32_t>(words_[at]) >> 2;
    target = static_cast<std::size_t>(static_cast<std::int64_t>(at) + 1 + distance);  // far outside when negative
    return target <= words_.size() && words <= words_.size() - target;
  }

  std::span<const std::uint64_t> words_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace shmtree::format
