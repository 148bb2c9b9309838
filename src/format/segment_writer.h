// The other side of segment.h: the metadata as one Cap'n Proto segment, written straight to where it will be read.
//
// Cap'n Proto's own builder gives the same bytes, and a test holds both against each other. It prepares for messages
// that grow, in memory that must be zeroed before and after: of the 2,400 instructions that a dict of five scalars
// took, 1,000 went there. Here all sizes are known before the first byte is written.
//
// What describes the columns calls one function for each, in the order of their fields; with a
// SegmentSize it learns how much memory they take, with a SegmentWriter they are written. A column without elements is
// a null pointer, and costs nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "format/segment.h"

namespace shmtree::format {

class SegmentSize {
 public:
  explicit SegmentSize(std::size_t fields) noexcept : words_(1 + fields) {}

  template <Segment::Column column, class Values>
  void copy(const Values& values) noexcept {
    const std::size_t count = values.size();
    if constexpr (column.size == Segment::kBytes) {
      add(count, (count + 7) / 8);
    } else if (const std::size_t words = count * column.words_each; column.size == Segment::kWords) {
      add(words, words);
    } else if (count != 0) {
      add(words, 1 + words);
    }
  }
  template <Segment::Column, class Word>
  void each(std::size_t count, Word) noexcept {
    add(count, count);
  }

  std::uint64_t words() const noexcept { return words_; }
  // Of the longest list, in what its pointer counts: bytes or words.
  std::uint64_t longest() const noexcept { return longest_; }

 private:
  void add(std::uint64_t elements, std::uint64_t words) noexcept {
    longest_ = std::max(longest_, elements);
    words_ += words;
  }

  std::uint64_t words_;
  std::uint64_t longest_ = 0;
};

class SegmentWriter {
 public:
  // `out` has as many words as SegmentSize counts for the same columns.
  SegmentWriter(std::byte* out, std::size_t fields) noexcept : pointers_(out + 8), end_(out + 8 + 8 * fields) {
    store(out, std::uint64_t{fields} << 48);
    std::memset(pointers_, 0, 8 * fields);
  }

  // What lies in memory as it does in the message.
  template <Segment::Column column, class Values>
  void copy(const Values& values) noexcept {
    constexpr bool kBytes = column.size == Segment::kBytes;
    static_assert(sizeof(*values.data()) == (kBytes ? 1 : 8 * column.words_each));
    const std::size_t count = values.size();
    if (count == 0) return;
    const std::size_t words = kBytes ? (count + 7) / 8 : count * column.words_each;
    std::byte* begin = list<column>(kBytes ? count : words, words);
    if constexpr (kBytes) store(begin + 8 * words - 8, 0);  // what the last word has beyond the bytes
    std::memcpy(begin, values.data(), kBytes ? count : 8 * words);
  }

  // Only the pointer of a list of bytes: those of the last column may be written elsewhere.
  template <Segment::Column column>
  void point_to_bytes(std::size_t count) noexcept {
    static_assert(column.size == Segment::kBytes);
    if (count != 0) list<column>(count, (count + 7) / 8);
  }

  // `word(i)` is the i-th of them.
  template <Segment::Column column, class Word>
  void each(std::size_t count, Word word) noexcept {
    static_assert(column.size == Segment::kWords);
    if (count == 0) return;
    std::byte* at = list<column>(count, count);
    for (std::size_t i = 0; i < count; ++i, at += 8) store(at, word(i));
  }

 private:
  static void store(std::byte* at, std::uint64_t word) noexcept { std::memcpy(at, &word, 8); }

  // Points the field at the end of what is written so far, where its list begins; where its first element goes.
  template <Segment::Column column>
  std::byte* list(std::uint64_t elements, std::size_t words) noexcept {
    std::byte* pointer = pointers_ + 8 * column.field;
    std::byte* begin = end_;
    const auto distance = static_cast<std::uint64_t>(begin - (pointer + 8)) / 8;
    store(pointer, 1 | distance << 2 | std::uint64_t{column.size} << 32 | elements << 35);
    if constexpr (column.size == Segment::kStructs) {
      store(begin, elements / column.words_each << 2 | std::uint64_t{column.words_each} << 32);
      begin += 8;
    }
    end_ += 8 * words + (column.size == Segment::kStructs ? 8 : 0);
    return begin;
  }

  std::byte* pointers_;
  std::byte* end_;
};

}  // namespace shmtree::format
