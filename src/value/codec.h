// Between what C++ programs hold (Value, Item) and frames.
//
// Thread safety: none for a builder; the Items that come out are values over a tree that never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "format/frame_builder.h"
#include "shmtree/item.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree::value {

// Tells which arrays lie in a block of the arena already and go by reference.
class ExternalArrays {
 public:
  virtual ~ExternalArrays() = default;
  // True if [begin, begin + bytes) is to be referred to: `range` then says where, and may be wider than was asked for;
  // `at` is the place of `begin` in it.
  virtual bool find(const void* begin, std::uint64_t bytes, format::External& range, std::int64_t& at) = 0;
};

// Makes `builder` hold exactly `value`, finished: its total_bytes() is known. `value` must live until the frame was
// written. kInvalid: deeper than kMaxDepth, or an array that cannot be (its message says which rule); kMessageTooLarge
// and kOutOfSharedMemory as FrameBuilder::finish().
Status encode(const Value& value, format::FrameBuilder& builder, ExternalArrays* externals = nullptr);

// The tree in `frame`. `owner` keeps the frame (and the blocks) in place as long as an Item lives; without an owner the
// frame is copied first. `blocks[r]` are the bytes of the block that reference r stands for.
// kCorrupt and kIncompatible as FrameReader::open(), and for references that are not in `blocks`.
Result<Item> decode(std::span<const std::byte> frame, std::shared_ptr<const void> owner,
                    std::span<const std::span<const std::byte>> blocks = {});

}  // namespace shmtree::value
