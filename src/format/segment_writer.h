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
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "format/segment.h"

namespace shmtree::format {

class SegmentSize {
 public:
  explicit SegmentSize(std::size_t fields) noexcept : words_(1 + fields) {}

  void bytes(std::size_t, const void*, std::size_t count) noexcept { add(count, (count + 7) / 8); }
  void words(std::size_t, const void*, std::size_t count) noexcept { add(count, count); }
  template <class Word>
  void each_word(std::size_t, std::size_t count, Word) noexcept {
    add(count, count);
  }
  template <std::size_t words_each, class Element>
  void structs(std::size_t, std::size_t count, Element) noexcept {
    if (count != 0) add(count * words_each, 1 + count * words_each);
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

  void bytes(std::size_t field, const void* data, std::size_t count) noexcept {
    if (count == 0) return;
    std::byte* begin = list(field, Segment::kBytes, count, (count + 7) / 8);
    store(end_ - 8, 0);  // what the last word has beyond the bytes
    std::memcpy(begin, data, count);
  }

  // As bytes(), for the last column, whose bytes are written elsewhere.
  void text_pointer(std::size_t field, std::size_t count) noexcept {
    if (count != 0) list(field, Segment::kBytes, count, (count + 7) / 8);
  }

  void words(std::size_t field, const void* data, std::size_t count) noexcept {
    if (count == 0) return;
    std::memcpy(list(field, Segment::kWords, count, count), data, 8 * count);
  }

  // `word(i)` is the i-th of them.
  template <class Word>
  void each_word(std::size_t field, std::size_t count, Word word) noexcept {
    if (count == 0) return;
    std::byte* at = list(field, Segment::kWords, count, count);
    for (std::size_t i = 0; i < count; ++i, at += 8) store(at, word(i));
  }

  // `element(i)` is the i-th struct: a std::array of its words.
  template <std::size_t words_each, class Element>
  void structs(std::size_t field, std::size_t count, Element element) noexcept {
    if (count == 0) return;
    std::byte* at = list(field, Segment::kStructs, count * words_each, 1 + count * words_each);
    store(at, std::uint64_t{count} << 2 | std::uint64_t{words_each} << 32);
    at += 8;
    for (std::size_t i = 0; i < count; ++i, at += 8 * words_each) {
      const std::array<std::uint64_t, words_each> words = element(i);
      std::memcpy(at, words.data(), sizeof(words));
    }
  }

 private:
  static void store(std::byte* at, std::uint64_t word) noexcept { std::memcpy(at, &word, 8); }

  // Points the field at the end of what is written so far, where its list begins.
  std::byte* list(std::size_t field, Segment::Size size, std::uint64_t elements, std::size_t words) noexcept {
    std::byte* pointer = pointers_ + 8 * field;
    std::byte* begin = end_;
    const auto distance = static_cast<std::uint64_t>(begin - (pointer + 8)) / 8;
    store(pointer, 1 | distance << 2 | std::uint64_t{size} << 32 | elements << 35);
    end_ += 8 * words;
    return begin;
  }

  std::byte* pointers_;
  std::byte* end_;
};

}  // namespace shmtree::format
