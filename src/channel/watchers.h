// Waiters of a channel: which end can be used now, and how waiters are woken.
//
// Calls that sleep wait for events (memory/event.h). Poll loops get a byte in the wake pipe of their process: a process
// that asked gets one for every message, or for every receipt if it wants to send. A needless byte may make a program
// block in a call: see await_announced_wakes(). Coroutines are woken through the process's hub, once for each request:
// the handshake is that of events, with a bit for each process as the flag (await).
//
// Invariants:
//   - Whoever was woken, and does not use what it was woken for, wakes another.
//   - The process's descriptor of an end is readable exactly while the end can be used, or has an end to be told of;
//     but not for messages that threads of the process are about to receive (claim.h).
//     The one for poll loops is so too from a death on of which this end will be told, until this process has looked
//     who died.
//   - What was put, received or settled is announced after unlocking. Nothing is paid when nobody asked.
//
// Thread safety: any thread.
#pragma once

#include <vector>

#include "channel/ends.h"
#include "channel/ring.h"
#include "channel/wake_hub.h"
#include "memory/event.h"
#include "platform/process_watch.h"
#include "platform/wake_pipe.h"

namespace shmtree::channel {

class Watchers {
 public:
  Watchers(const Control& control, RingTail& tail, const RingHead& head, const Unreturned& unreturned,
           const Ends& ends) noexcept
      : control_(control), tail_(tail), head_(head), unreturned_(unreturned), ends_(ends) {}

  // How many messages this process could receive.
  std::uint64_t size() const noexcept { return control_.is_discarded() ? 0 : head_.size() + unreturned_.count(); }
  bool can_receive() const noexcept {
    return (head_.has_messages() && !control_.is_reserved(End::kReceiving)) || unreturned_.count() != 0;
  }
  // Whether get() would return, or report the end of the stream, at once.
  bool ready() const noexcept {
    return can_receive() || ends_.is_over(End::kSending) || ends_.has_deaths_to_tell(End::kSending);
  }
  bool is_awaited() const noexcept {
    const ChannelHeader& shared = control_.shared;
    return platform::load_relaxed(shared.items.waiters) != 0 || !shared.awaiting[End::kReceiving].is_empty() ||
           !shared.watchers[End::kReceiving].is_empty();
  }
  // Whether put() would put a small message, or fail for good, at once.
  bool can_put() const noexcept {
    return tail_.has_room() || control_.drops_oldest() || control_.is_shut_down() || ends_.is_over(End::kReceiving) ||
           ends_.has_deaths_to_tell(End::kReceiving);
  }

  // Wakes whoever waits at either end, in every process, to look again.
  void wake_all() noexcept;
  // What woke this call is of use to another: it does not put now, or not receive.
  void leave_room_to_others() noexcept { memory::notify(control_.shared.space); }
  void leave_messages_to_others() noexcept {
    if (head_.has_messages()) memory::notify(control_.shared.items);
  }
  void announce_put(std::size_t count, bool watched) noexcept {
    ChannelHeader& shared = control_.shared;
    if (watched) send_announced_wakes();
    refresh_fd(End::kSending);
    // Of those who wait, one may have the messages for itself.
    if (count > 1 || platform::load_relaxed(shared.reserved[End::kReceiving]) != memory::kNobody) {
      memory::notify_all(shared.items);
    } else {
      memory::notify(shared.items);
    }
  }
  // Wakes those who wait for the room, for the messages to be received, or for what is left. Of those who wait for a
  // place one wakes, and the next when that one has left some (Sending).
  void announce_received() noexcept {
    ChannelHeader& shared = control_.shared;
    platform::fence_seq_cst();  // what was received is visible before the flags are read
    send_wakes(control_, End::kSending);
    refresh_fd(End::kReceiving);
    if (platform::load_relaxed(shared.freed_bytes.waiters) != 0) {
      memory::notify_all(shared.freed_bytes);
      memory::notify_all(control_.arena.header().space);
    }
    if (platform::load_relaxed(shared.acked.waiters) != 0) memory::notify_all(shared.acked);
    if (platform::load_relaxed(shared.items.waiters) != 0) announce_rest();
    if (platform::load_relaxed(shared.space.waiters) != 0) memory::notify(shared.space);
  }
  // Wakes those for whom it makes a difference what became of a message.
  void announce_settled(RecordState became) noexcept;

  // Returns a descriptor that is readable while ready() or, for the sending end, can_put(); also at once. The channel
  // owns it; there is one per process and end. It is closed when the process leaves that end, and replaced if the
  // program has closed it. Sets `opened` to true if there was none before. kUnavailable as of WakeTable::set().
  Result<int> wake_fd(End end, bool* opened = nullptr);
  // The same for loops that nobody wakes to look for the dead: readable also when the last process at the other end has
  // ended, of those that were there when this was called, or when this process used the channel last. Of several the
  // last is known once the deaths of the others were found. Processes of other PID namespaces are not seen. An error
  // if processes cannot be watched, as of ProcessWatch; a descriptor that this call opened is then closed.
  Result<int> poll_fd(End end);
  // Has `hub` told once that the end can be used, or has an end to be told of; true when that is so already.
  Result<bool> await(End end, const WakeHub& hub);
  EndName name_of(End end) const noexcept { return WakeHub::name_of(control_, end); }
  // Ends the watch of this process. A sender that has already read its bit finds no pipe. close_wake_fd() does not
  // affect coroutines that await the end.
  void close_fd(End end) noexcept;
  void close_wake_fd(End end) noexcept;
  void refresh_fd(End end) noexcept {
    if (descriptors_[end].active.load(std::memory_order_acquire)) [[unlikely]]
      refresh_active_fd(end);
  }
  // For a thread of this process that is about to receive: the descriptor is not readable for the message that it
  // receives. False, and nothing to drop, where there is no message, or no descriptor. See claim.h.
  bool claim() noexcept;
  void drop_claim() noexcept;
  // Sends a byte to each process that watches the end, and wakes the hubs that await it, if this process reaches them.
  static void send_wakes(const Control& control, End end) noexcept {
    if (platform::load_relaxed(control.shared.watched[end]) != 0) [[unlikely]]
      send_bytes(control, end);
  }

 private:
  struct Descriptor {
    platform::WakePipe pipe;
    platform::ProcessWatch watch;  // of `pipe` and the processes at the other end; none until poll_fd()
    std::vector<int> peers;        // the processes that it watches
    bool misses_peers = false;     // some of them could not be watched
    std::atomic<Identity> owner{memory::kNobody};
    std::atomic<bool> active{false};
  };
  bool is_usable(End end) const noexcept { return end == End::kReceiving ? ready() : can_put(); }
  // Whether the descriptor is to be readable.
  bool is_readable(End end) const noexcept {
    const bool is_claimed =
        end == End::kReceiving && can_receive() && size() <= claims_.load(std::memory_order_acquire);
    return !is_claimed && is_usable(end);
  }
  void refresh_active_fd(End end) noexcept;
  void announce_rest() noexcept;
  void announce_end() noexcept;
  Result<int> watch_fd(End end);
  Status watch_peers(End end);
  void watch_peers_quietly(End end) noexcept;
  Status begin_watching(End end);
  static void send_bytes(const Control& control, End end) noexcept;
  template <class Wanted>
  static void send_bytes_to(const Control& control, End end, Wanted wanted) noexcept;
  void send_announced_wakes() noexcept;
  void await_announced_wakes() noexcept;

  const Control control_;
  RingTail& tail_;
  const RingHead& head_;
  const Unreturned& unreturned_;
  const Ends& ends_;
  platform::ForkSafeMutex mutex_;
  PerEnd<Descriptor> descriptors_;  // under mutex_
  std::atomic<std::uint32_t> claims_{0};
  std::atomic<bool> is_watching_{false};  // senders were seen to know that somebody does
};

}  // namespace shmtree::channel
