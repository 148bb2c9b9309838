// Converts between the values of C++ programs (Value, Item) and frames.
//
// Thread safety: none for a builder. Decoded Items are values over an immutable tree.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "format/frame_builder.h"
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree::value {

// Describes the received message that contains a forwarded array.
struct Origin {
  const void* home = nullptr;  // The `home` argument of decode(). Null: the array cannot go by reference.
  bool to_give = false;  // True if this process has no other Item of the message, so that all of it may be given away.
  bool to_show = false;  // True if no process can write to any array of the message.
};

// Content that encode() refuses to forward.
struct EncodeOptions {
  // False: refuses pickles, and classes and functions except the factory of a defaultdict.
  bool allow_pickle = true;
  bool portable = false;  // True: refuses content that is valid on this machine only.
};

// Memory that may be sent by reference: the memory of an array, or a block that begins with a Cap'n Proto segment.
struct ArrayMemory {
  const std::byte* begin = nullptr;
  std::uint64_t bytes = 0;
  const Origin* origin = nullptr;  // Null: the array belongs to the program and was not received.
  bool writable = false;           // True if a received array may be written.
};

// The position of an array that goes by reference.
struct LentRange {
  format::External range{};  // The sent range of the block. It includes the array, and may be larger.
  std::int64_t at = 0;       // Offset of ArrayMemory::begin in `range`.
};

// Decides which arrays of one message are sent by reference, and supplies the options of the message.
template <class T>
concept Lender = requires(T& lender, const ArrayMemory& memory, const Origin& origin) {
  // Returns nullopt if the array must be copied. encode() calls this for each Cap'n Proto segment with a block of its
  // own, and for each array that has elements. Exceptions are received arrays that may be neither given away nor shown.
  { lender.lend(memory) } -> std::same_as<std::optional<LentRange>>;
  // Returns true if another message has given `origin` away, or has claimed it to do so.
  { lender.is_given(origin) } -> std::same_as<bool>;
  { lender.options() } -> std::same_as<EncodeOptions>;
};

// Makes `builder` hold exactly `value`. Afterwards total_bytes() is known. `value` must live until the frame has been
// written. Defined in encoder.h.
//   kPickleRefused     it forwards a pickle, class or function that the options refuse
//   kInvalid           it is nested too deeply, or has text that is not UTF-8, an impossible array or Cap'n Proto
//                      message, an Item that another message gives away, or content that is not portable and has to
//                      be. The error has the reason
//   kMessageTooLarge, kOutOfSharedMemory   see FrameBuilder::finish()
template <Lender L>
Status encode(const Value& value, format::FrameBuilder& builder, L& lender);

// Does the same, and copies every array.
Status encode(const Value& value, format::FrameBuilder& builder, EncodeOptions options = {});

// Returns a copy that is aligned like the buffers of a frame.
std::shared_ptr<const std::byte> aligned_copy(std::span<const std::byte> bytes);

// Decodes a frame. `owner` keeps the frame and the blocks in place while an Item exists; without an owner they are
// copied first. `blocks[r]` are the bytes of the block with reference number r. `home` is the Origin::home of forwarded
// Items, and lives as long as `owner`. `read_only`: makes all arrays read-only. kCorrupt and kIncompatible: see
// FrameReader::open(). A reference to a block that is not in `blocks` is kCorrupt, too.
Result<Item> decode(std::span<const std::byte> frame, std::shared_ptr<const void> owner,
                    std::span<const std::span<const std::byte>> blocks = {}, const void* home = nullptr,
                    bool read_only = false);

}  // namespace shmtree::value
