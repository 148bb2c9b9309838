// Reads a whole frame as a careful receiver does, and touches every byte that the reader returns.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "format/frame_reader.h"
#include "format/grammar.h"
#include "format/references.h"

namespace shmtree::test {

struct Walk {
  std::uint64_t nodes = 0;
  std::uint64_t touched = 0;  // bytes read through returned pointers
  std::uint64_t sum = 0;
  format::EarlierNodes<char> earlier{};  // 1 if the node's object exists

  void touch(const void* data, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i) sum += static_cast<const unsigned char*>(data)[i];
    touched += bytes;
  }

  void array(const format::ArrayInfo& info) {
    sum += info.nbytes + static_cast<std::uint64_t>(info.offset) + info.item_bytes;
    touch(info.description.text.data(), info.description.text.size());
    if (info.data == nullptr || info.nbytes == 0) return;
    std::int64_t at[kMaxDims] = {};
    std::uint64_t offset = 0;  // may wrap: a dimension of one element can have any stride
    for (std::uint64_t i = 0; i < info.elements; ++i) {
      touch(info.data + static_cast<std::int64_t>(offset), info.item_bytes);
      for (std::size_t dim = info.ndim; dim-- > 0;) {
        const auto stride = static_cast<std::uint64_t>(info.strides[dim]);
        offset += stride;
        if (++at[dim] < info.shape[dim]) break;
        offset -= stride * static_cast<std::uint64_t>(info.shape[dim]);
        at[dim] = 0;
      }
    }
  }

  void text(std::string_view value) { touch(value.data(), value.size()); }

  void scalar(format::FrameReader& reader) {
    format::Name description;
    const DType dtype = reader.next_dtype(description);
    text(description.text);
    text(reader.next_text(dtype == DType::kOther ? reader.next_length() : item_bytes(dtype)));
  }

  void rule(format::FrameReader& reader, const char* letters) {
    for (; *letters != 0 && !reader.failed(); ++letters) {
      switch (*letters) {
        case 'I': sum += static_cast<std::uint64_t>(reader.next_int()); break;
        case 'F': sum += std::bit_cast<std::uint64_t>(reader.next_float()); break;
        case 'L': sum += reader.next_length(); break;
        case 'N': text(reader.next_name().text); break;
        case 'S':
        case 'B': text(reader.next_string()); break;
        case 'U': text(reader.next_text(16)); break;
        case 'V': child(reader); break;
        case 'R': {
          const char* there = earlier.find(reader.next_length());
          if (there == nullptr || !*there) reader.fail("a reference points to a node that does not exist");
          break;
        }
        case 'E': scalar(reader); break;
        case 'A':
          if (format::ArrayInfo info; reader.next_array(info)) array(info);
          break;
        case 'D': {
          format::Name description;
          sum += static_cast<std::uint64_t>(reader.next_dtype(description));
          text(description.text);
          break;
        }
        case 'Z':
          if ((reader.next_length() & 2) != 0) child(reader);
          break;
        case 'Y':
          if (reader.next_length() != 0) text(reader.next_string());
          break;
        case 'Q': {
          const std::uint64_t count = reader.next_count();
          sum += reader.next_length();
          for (std::uint64_t i = 0; i < count && !reader.failed(); ++i) child(reader);
          break;
        }
        case '*': return repeat(reader, letters + 1);
      }
    }
  }

  void repeat(format::FrameReader& reader, const char* letters) {
    if (*letters == 'I') {
      const auto values = reader.next_ints();
      return touch(values.data(), values.size_bytes());
    }
    if (*letters == 'F') {
      const auto values = reader.next_floats();
      return touch(values.data(), values.size_bytes());
    }
    if (*letters == 'A') {
      format::ArrayInfo info;
      for (std::uint64_t left = reader.next_segment_count(); left > 0 && reader.next_segment(info); --left) array(info);
      return;
    }
    const std::uint64_t count = reader.next_count(std::strcmp(letters, "VV") == 0 ? 2 : 1);
    for (std::uint64_t i = 0; i < count && !reader.failed(); ++i) rule(reader, letters);
  }

  void node(format::FrameReader& reader) {
    const Kind marked = reader.next_kind(), kind = format::unmarked(marked);
    const char* letters = format::grammar_of(kind);
    if (reader.failed()) return;
    if (letters == nullptr || (marked != kind && !format::has_identity(kind))) return reader.fail_kind(marked);
    ++nodes;
    if (marked == kind) return rule(reader, letters);
    const std::size_t number = earlier.begin(reader.position());
    earlier[number] = format::has_trait(kind, format::kMadeBeforeItems);
    rule(reader, letters);
    earlier[number] = true;
  }

  void child(format::FrameReader& reader) {
    if (!reader.enter()) return;
    node(reader);
    reader.leave();
  }
};

// Fails with kCorrupt, or the error of open(), if the frame is invalid.
inline Result<Walk> walk_frame(std::span<const std::byte> frame) {
  auto reader = format::FrameReader::open(frame);
  if (!reader.ok()) return reader.error();
  Walk walk;
  walk.node(*reader);
  Status status = reader->finish();
  if (!status.ok()) return status.error();
  return walk;
}

}  // namespace shmtree::test
