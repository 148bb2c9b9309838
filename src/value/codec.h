// Between what C++ programs hold (Value, Item) and frames.
//
// Thread safety: none for a builder; the Items that come out are values over a tree that never changes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "format/frame_builder.h"
#include "shmtree/item.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree::value {

// The message that a forwarded array was received in.
struct Origin {
  const void* home = nullptr;  // what decode() was told; null: nowhere that could be referred to
  bool to_give = false;        // this process has no other Item of the message: all of it may be given away
  bool to_show = false;        // no process can write into any of its arrays
};

// Which nodes encode() refuses to forward.
struct EncodeOptions {
  bool allow_pickle = true;  // false: encode() refuses to forward pickles, and classes and functions but the factory of
                             // a defaultdict
  bool portable = false;     // true: encode() refuses to forward what has a meaning on this machine only
};

// The memory that may go by reference: that of one array, or the block that a Cap'n Proto segment starts.
struct ArrayMemory {
  const std::byte* begin = nullptr;
  std::uint64_t bytes = 0;
  const Origin* origin = nullptr;  // null: the array belongs to the program, and was not received
  bool writable = false;           // of a received array
};

// The place of an array that goes by reference.
struct LentRange {
  format::External range{};  // includes the array; may be larger
  std::int64_t at = 0;       // offset of ArrayMemory::begin in `range`
};

// Decides for the arrays of one message which of them go by reference, and has the options of the message.
template <class T>
concept Lender = requires(T& lender, const ArrayMemory& memory, const Origin& origin) {
  // Returns nullopt for an array that is to be copied. encode() asks about each array that has elements, and about each
  // Cap'n Proto segment that has a block of its own; about received arrays only if they may be given away or shown.
  { lender.lend(memory) } -> std::same_as<std::optional<LentRange>>;
  // Returns true if another message gives `origin` away, or is going to.
  { lender.is_given(origin) } -> std::same_as<bool>;
  { lender.options() } -> std::same_as<EncodeOptions>;
};

// Makes `builder` hold exactly `value`, finished: its total_bytes() is known. `value` must live until the frame was
// written. kPickleRefused: it forwards what needs pickle, and may not. kInvalid: it is nested too deep, or has text
// that is not UTF-8, an impossible array or Cap'n Proto message, an Item that another message gives away, or something
// that is not portable and has to be; the error says which. kMessageTooLarge, kOutOfSharedMemory: see
// FrameBuilder::finish(). The definition is in encoder.h.
template <Lender L>
Status encode(const Value& value, format::FrameBuilder& builder, L& lender);

// Does the same, and copies every array.
Status encode(const Value& value, format::FrameBuilder& builder, EncodeOptions options = {});

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
