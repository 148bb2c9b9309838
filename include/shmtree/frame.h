/// @file
/// Messages as bytes: taken and put without being decoded, and values packed without a channel.
///
///     std::vector<shmtree::TakenFrame> frames = receiver.take_frames(64).value();
///     for (shmtree::TakenFrame& taken : frames) {
///       write(file, taken.item().bytes());
///       taken.ack().value();
///     }
///     sender.put_frame(bytes).value();
///
/// Ownership: a Frame is a handle of memory that never changes; copies name the same. Thread safety: values.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "shmtree/item.h"
#include "shmtree/result.h"
#include "shmtree/taken.h"
#include "shmtree/value.h"

namespace shmtree {

namespace detail {
struct FrameAccess;
struct FrameState;
}  // namespace detail

/// An encoded value that stands alone: bytes that mean the same wherever they lie, as docs/frame.md has them.
class Frame {
 public:
  /// No frame, of no bytes.
  Frame() noexcept = default;
  /// All of it, as long as a copy of this lives. The first byte is aligned to 64.
  std::span<const std::byte> bytes() const noexcept;
  /// Whether it means the same on every machine: no handle of an end, a shared array or memory of a device is in it,
  /// and no pickle that was not made to be portable.
  bool portable() const noexcept;

 private:
  friend struct detail::FrameAccess;
  explicit Frame(std::shared_ptr<const detail::FrameState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<const detail::FrameState> state_;
};

/// What Sender::put_frame() takes: a Frame, or any bytes that begin with one, which are checked as a message that
/// arrives is. Those behind it are not sent. A handle in it (of an end, a shared array, memory of a device) is on its
/// way to the one who receives it, so it is not put anywhere; a pickle only where the channel takes pickles
/// (kPickleRefused), and into a portable one only if it was made to be portable. For the time of a call.
class FrameSource {
 public:
  /// A frame, which was checked when it was made.
  FrameSource(const Frame& frame) noexcept : frame_(&frame) {}
  /// Bytes of any origin.
  template <std::convertible_to<std::span<const std::byte>> Bytes>
  FrameSource(const Bytes& bytes) : bytes_(bytes) {}

 private:
  friend struct detail::FrameAccess;
  const Frame* frame_ = nullptr;
  std::span<const std::byte> bytes_{};
};

/// What Receiver::take_frames() returns. What of a message lies in other memory is copied into the frame; one over
/// 16 KiB without that is a view of shared memory, which it holds. A damaged message is consumed, with an error;
/// `item()` is the Frame.
using TakenFrame = Taken<Frame>;
extern template class Taken<Frame>;

/// How pack() packs.
struct PackOptions {
  bool portable = false;  ///< kInvalid for an Item in it that means something on this machine only, with the way to it
};

/// Encodes a value, by itself. Errors as of Sender::put() for the value; kOutOfSharedMemory: no memory for it.
Result<Frame> pack(const Value& value, const PackOptions& options = {});

/// The value in a frame. Its arrays are views, which keep the frame, and read-only. kCorrupt, kIncompatible.
Result<Item> unpack(const Frame& frame);
/// The same of any bytes that begin with a frame. Its arrays are views that keep `owner`, which keeps the bytes, and
/// are read-only; without an owner they are copies.
Result<Item> unpack(std::span<const std::byte> bytes, std::shared_ptr<const void> owner = nullptr);

}  // namespace shmtree
