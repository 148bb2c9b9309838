// Addresses of the participants' wake pipes (platform/wake_pipe.h): one for each end of a channel that a process
// watches, and one for its hub.
//
// Invariants:
//   - A process writes the address before it sets the bit of a channel that asks for wake-ups, and reads the channel
//     after both. A sender stores its message, then reads the bit and the address. So if the sender finds no address,
//     or an older one, the process finds the message.
//   - Only the participant writes its table and its hub's address, so a table is stale once its owner has died. With a
//     stale address, a sender does no harm: it reaches no pipe, or sends a needless wake-up.
//
// Thread safety: any thread.
#pragma once

#include "memory/mapping.h"
#include "memory/participants.h"
#include "platform/wake_sender.h"

namespace shmtree::memory {

class WakeTable {
 public:
  WakeTable(Mapping& mapping, const Participants& participants) noexcept
      : mapping_(mapping), participants_(participants) {}

  // Publishes the pipe by which this process (`me`) watches that end (0 or 1) of a channel. kUnavailable: it already
  // watches kMaxWakeEntries ends. May throw std::bad_alloc.
  Status set(Identity me, BlockRef channel, unsigned end, platform::WakeAddress address);
  void clear(Identity me, BlockRef channel, unsigned end) noexcept;
  void set_hub(Identity me, platform::WakeAddress address) noexcept;

  // Wakes that participant. Returns false if it was not reached, as WakeSender::send() does. Takes about 1 ns for each
  // end that the participant watches.
  bool wake(std::uint32_t slot, BlockRef channel, unsigned end) const noexcept;
  // Opens the hub of that participant, then calls take(), and sends the text if that returns true.
  template <class Take>
  bool wake_hub(std::uint32_t slot, const platform::WakeText& text, Take take) const noexcept {
    const platform::WakeAddress address = platform::load_acquire(participants_.slot(slot).hub_address);
    return sender_.send_if(take, pid_of(slot), address, std::string_view(text.data(), text.size()));
  }
  // Does the same with a pipe of that participant, whose address another layer stores. Sends a byte instead of a text.
  template <class Take>
  bool wake_at(std::uint32_t slot, platform::WakeAddress address, Take take) const noexcept {
    return sender_.send_if(take, pid_of(slot), address);
  }

 private:
  int pid_of(std::uint32_t slot) const noexcept { return platform::load_relaxed(participants_.slot(slot).pid); }
  std::uint32_t used(std::uint32_t slot) const noexcept {
    return std::min(platform::load_acquire(participants_.slot(slot).wake_entries), kMaxWakeEntries);
  }

  Mapping& mapping_;
  const Participants& participants_;
  const platform::WakeSender sender_;
  platform::ForkSafeMutex mutex_;  // guards changes of this process's table
};

}  // namespace shmtree::memory
