/// @file
/// Encoded messages: taken and put without decoding, and values encoded without a channel.
///
///     std::vector<shmtree::TakenFrame> frames = receiver.take_frames(64).value();
///     for (shmtree::TakenFrame& taken : frames) {
///       write(file, taken.item().bytes());
///       taken.ack().value();
///     }
///     sender.put_frame(bytes).value();
///
/// Ownership: a Frame is a handle of immutable memory. Copies refer to the same memory. Thread safety: values.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/taken.h"
#include "shmtree/value.h"

namespace shmtree {

namespace detail {
struct FrameAccess;
struct FrameState;
}  // namespace detail

/// An encoded value that stands alone: its bytes refer to no other memory (docs/internals/frame.md).
class Frame {
 public:
  /// Makes an empty frame.
  Frame() noexcept = default;
  /// Returns the bytes, valid as long as a copy of this Frame exists. The first byte is aligned to 64.
  std::span<const std::byte> bytes() const& noexcept;
  /// The same for a temporary.
  Held<std::span<const std::byte>> bytes() && noexcept {
    const std::span<const std::byte> found = bytes();
    return {found, std::move(state_)};
  }
  /// True if the frame has the same meaning on every machine. Such a frame contains no handle of an end, no shared
  /// array and no device memory, and only pickles that were made to be portable.
  bool portable() const noexcept;

 private:
  friend struct detail::FrameAccess;
  explicit Frame(std::shared_ptr<const detail::FrameState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<const detail::FrameState> state_;
};

/// The argument of Sender::put_frame(): a Frame, or any bytes that begin with one. Bytes are checked like an arriving
/// message. Bytes after the end of the frame are not sent. Refers to its argument for the duration of the call.
///
/// A frame with a handle (of an end, a shared array or device memory) cannot be put, since the handle is in transit to
/// one receiver. A frame with a pickle can be put only into a channel that allows pickles (kPickleRefused). If that
/// channel is portable, the frame must be portable too.
class FrameSource {
 public:
  /// Refers to a frame, which was checked when it was made.
  FrameSource(const Frame& frame) noexcept : frame_(&frame) {}
  /// Refers to bytes of any origin.
  template <std::convertible_to<std::span<const std::byte>> Bytes>
  FrameSource(const Bytes& bytes) : bytes_(bytes) {}

 private:
  friend struct detail::FrameAccess;
  const Frame* frame_ = nullptr;
  std::span<const std::byte> bytes_{};
};

/// The result of Receiver::take_frames(). `item()` is the Frame. Parts of a message in other blocks are copied into the
/// frame. A frame over 16 KiB without such parts is a view of shared memory, which it keeps alive. A damaged message is
/// consumed, with an error.
using TakenFrame = Taken<Frame>;
extern template class Taken<Frame>;

/// Options for pack().
struct PackOptions {
  bool portable = false;  ///< Refuses values that have no meaning on other machines: kInvalid with their path.
};

/// Encodes a value. Errors are those of Sender::put() for the value. kOutOfSharedMemory: no memory for the frame.
Result<Frame> pack(const Value& value, const PackOptions& options = {});

/// Decodes the value in a frame. Its arrays are read-only views that keep the frame alive. Returns
/// kCorrupt if the frame is invalid, and kIncompatible if another version of the format wrote it.
Result<Item> unpack(const Frame& frame);
/// Does the same for any bytes that begin with a frame. Arrays are read-only views that keep `owner` alive; `owner`
/// must keep the bytes in place. Without an owner, arrays are copies.
Result<Item> unpack(std::span<const std::byte> bytes, std::shared_ptr<const void> owner = nullptr);

}  // namespace shmtree
