// What all parts of a channel work on: its control block, in the arena that it lies in.
#pragma once

#include "channel/layout.h"
#include "memory/arena.h"
#include "platform/atomics.h"
#include "platform/waiting.h"

namespace shmtree::channel {

using memory::Arena;
using memory::BlockRef;
using memory::Lease;
using memory::OwnedBlock;
using platform::WaitContext;

struct Control {
  Arena& arena;
  ChannelHeader& shared;
  const BlockRef block;
  const std::uint64_t slot_bytes;  // as it was checked

  // The longest frame that needs no block.
  std::uint64_t inline_bytes() const noexcept { return channel::inline_bytes(slot_bytes); }
  Ending ending() const noexcept { return static_cast<Ending>(shared.ending); }
  Shutdown shutdown() const noexcept { return static_cast<Shutdown>(platform::load_acquire(shared.shutdown)); }
  bool is_shut_down() const noexcept { return shutdown() != Shutdown::kNot; }
  // For another participant than this process.
  bool is_reserved(End end) const noexcept {
    const Identity by = platform::load_relaxed(shared.reserved[end]);
    return by != memory::kNobody && by != arena.current_identity();
  }
  // The bytes that can be received, as the counts have them.
  std::uint64_t queued_bytes() const noexcept {
    return platform::load_acquire(shared.bytes_in) - platform::load_acquire(shared.bytes_out);
  }
};

inline Error shut_down_error() {
  return Error{Code::kShutDown, "the queue was shut down"};
}
// A lock, or memory, that was not to be had in time is a channel that stayed full, or that gave nothing.
inline Error in_time(Error error, Code late) {
  if (error.code == Code::kTimeout || error.code == Code::kFull) error.code = late;
  return error;
}

}  // namespace shmtree::channel
