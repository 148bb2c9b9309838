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

// Where the arrays of a received message lie, and what may be made of them.
struct Origin {
  const void* home = nullptr;  // what decode() was told; null: nowhere that could be referred to
  bool to_give = false;        // nobody has another Item of the message: all of it may be given away
  bool to_show = false;        // nobody can write into any of its arrays
};

// Tells which arrays lie in a block of the arena already and go by reference.
class ExternalArrays {
 public:
  virtual ~ExternalArrays() = default;
  // True if [begin, begin + bytes) is to be referred to: `range` then says where, and may be wider than was asked for;
  // `at` is the place of `begin` in it.
  virtual bool find(const void* begin, std::uint64_t bytes, format::External& range, std::int64_t& at) = 0;
  // The same of an array in a message that was received; `writable` there. Asked for those that are to be given, or
  // shown, only.
  virtual bool find_received(const Origin&, const std::byte*, std::uint64_t, bool, format::External&, std::int64_t&) {
    return false;
  }
  // Whether what an Item had that was moved into the value is given away, or is going to be with another message.
  virtual bool is_given(const Origin&) const noexcept { return false; }
  // Whether the message may have pickles in it.
  virtual bool allows_pickle() const noexcept { return true; }
  // Whether nothing in the message may mean something on this machine only.
  virtual bool is_portable() const noexcept { return false; }
};

// Makes `builder` hold exactly `value`, finished: its total_bytes() is known. `value` must live until the frame was
// written. kPickleRefused: it forwards what needs pickle, and may not. kInvalid: it forwards what is not portable, and
// is to be; deeper than kMaxDepth, or an array that cannot be (its message says which rule); kMessageTooLarge and
// kOutOfSharedMemory as FrameBuilder::finish().
Status encode(const Value& value, format::FrameBuilder& builder, ExternalArrays* externals = nullptr);

// A copy that is aligned as buffers are.
std::shared_ptr<const std::byte> aligned_copy(std::span<const std::byte> bytes);

// The tree in `frame`. `owner` keeps the frame (and the blocks) in place as long as an Item lives; without an owner
// they are copied first. `blocks[r]` are the bytes of the block that reference r stands for. `home` is given to who
// forwards the Items (Origin); it lives as long as `owner`. `read_only`: so are all arrays, whatever they say. kCorrupt
// and kIncompatible as FrameReader::open(), and for references that are not in `blocks`.
Result<Item> decode(std::span<const std::byte> frame, std::shared_ptr<const void> owner,
                    std::span<const std::span<const std::byte>> blocks = {}, const void* home = nullptr,
                    bool read_only = false);

}  // namespace shmtree::value
