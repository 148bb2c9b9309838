// The waiters of a channel: decides which end is usable now, and wakes the waiters.
//
// Sleeping calls wait for events (memory/event.h). Poll loops get a byte in the wake pipe of their process: one for
// every message, or for every receipt if the process wants to send. A needless byte may make a program block in a call:
// see await_announced_wakes(). Coroutines are woken through the process's hub, once for each request. That handshake is
// the one of events, with a bit for each process as the flag (await).
//
// Invariants:
//   - A call that was woken, and does not use what it was woken for, wakes another waiter.
//   - The process's descriptor of an end is readable exactly while the end is usable, or must report its end; that of a
//     pipe's sending end, only while it must report its end. Messages that threads of the process are about to receive
//     do not count (ClaimHooks). A descriptor for poll loops is also readable after a death that this end must report,
//     until this process has checked for deaths.
//   - Puts, receipts and acks are announced after unlocking. An announcement costs nothing if no process asked for it.
//
// Thread safety: any thread.
#pragma once

#include <vector>

#include "channel/ends.h"
#include "channel/ring.h"
#include "channel/wake_hub.h"
#include "memory/event.h"
#include "platform/dcheck.h"
#include "platform/process_watch.h"
#include "platform/wake_pipe.h"

namespace shmtree::channel {

class Watchers {
 public:
  Watchers(const Control& control, RingTail& tail, const RingHead& head, const Unreturned& unreturned,
           const Ends& ends) noexcept
      : control_(control), tail_(tail), head_(head), unreturned_(unreturned), ends_(ends) {}

  // Returns the number of messages that this process could receive.
  std::uint64_t size() const noexcept { return control_.is_discarded() ? 0 : head_.size() + unreturned_.count(); }
  bool can_receive() const noexcept {
    return (head_.has_messages() && !control_.is_reserved(End::kReceiving)) || unreturned_.count() != 0;
  }
  // True if get() would return a message or the end of the stream at once.
  bool ready() const noexcept {
    return can_receive() || ends_.is_over(End::kSending) || ends_.has_deaths_to_report(End::kSending);
  }
  bool is_awaited() const noexcept {
    const ChannelHeader& shared = control_.shared;
    return platform::load_relaxed(shared.items.waiters) != 0 || !shared.awaiting[End::kReceiving].is_empty() ||
           !shared.watchers[End::kReceiving].is_empty();
  }
  // True if put() would put a small message, or fail for good, at once.
  bool can_put() const noexcept { return tail_.has_space() || control_.drops_oldest() || is_put_over(); }

  // Wakes every waiter at both ends, in every process, so that it checks again.
  void wake_all() noexcept;
  // Wakes the watchers that must report deaths of processes at `end`.
  static void announce_deaths(const Control& control, const Ends& ends, End end) noexcept;
  // Passes the wake-up of this call on to another waiter, since this call does not put now, or not receive.
  void leave_space_to_others() noexcept { memory::notify(control_.shared.space); }
  void leave_messages_to_others() noexcept {
    if (head_.has_messages()) memory::notify(control_.shared.items);
  }
  void announce_put(std::size_t count, bool watched) noexcept {
    ChannelHeader& shared = control_.shared;
    if (watched) send_announced_wakes();
    refresh_fd(End::kSending);
    // If the end is reserved, only one of the waiters may receive.
    if (count > 1 || platform::load_relaxed(shared.reserved[End::kReceiving]) != memory::kNoIdentity) {
      memory::notify_all(shared.items);
    } else {
      memory::notify_after_unlock(shared.items);
    }
  }
  // Wakes calls that wait for space, for all messages to be received, or for remaining messages. Only one call that
  // waits for a slot wakes; it wakes the next one if it leaves some (Sending).
  void announce_received() noexcept {
    ChannelHeader& shared = control_.shared;
    platform::fence_after_exchange();  // the receipt is visible before the flags are read
    if (platform::load_relaxed(shared.watched[End::kSending]) != 0 && !control_.is_pipe()) [[unlikely]]
      send_bytes(control_, End::kSending);  // a pipe has no limit, so none of its senders waits for a receipt
    refresh_fd(End::kReceiving);
    if (platform::load_relaxed(shared.freed_bytes.waiters) != 0) {
      memory::notify_all(shared.freed_bytes);
      memory::notify_all(control_.arena.header().space);
    }
    if (platform::load_relaxed(shared.acked.waiters) != 0) memory::notify_all(shared.acked);
    if (platform::load_relaxed(shared.items.waiters) != 0) announce_rest();
    if (platform::load_relaxed(shared.space.waiters) != 0) memory::notify(shared.space);
  }
  // Wakes the calls that wait for the settling of a message: waits for acks, and receivers if the message has returned
  // to the channel or the stream has ended.
  void announce_settled(RecordState became) noexcept;

  // Returns a descriptor that is readable while ready() or, for a sending end, can_put() is true; on return it is up
  // to date. The channel owns it; there is one per process and end. It is closed when the process leaves that end, and
  // replaced if the program has closed it. Sets `opened` to true if there was none before. kUnavailable as of
  // WakeTable::set().
  Result<int> wake_fd(End end, bool* opened = nullptr);
  // Returns a descriptor for poll loops, which do not check for deaths. It is also readable once the last process at
  // the other end has exited. It covers the processes that were attached at this call, or when this process used the
  // channel last. With several such processes, it reports the last exit only after the deaths of the others were
  // detected. It does not cover processes of other PID namespaces. Fails if processes cannot be watched, as in
  // ProcessWatch; a descriptor that this call opened is then closed.
  Result<int> poll_fd(End end);
  // Returns such a descriptor for the owner of a pipe's end that also sends: it is always writable, too. That of a
  // sending end is readable only once the other side is gone. If the system has no such descriptor (EventRelay),
  // returns poll_fd(), which is never writable.
  Result<int> writable_fd(End end);
  // Checks for deaths if a descriptor of poll_fd() says that a process at the other end has exited. An edge-triggered
  // poll reports that once, even shortly after the last check. Call it before a call that finds nothing waits or fails.
  void check_exits(End end) noexcept;
  // Requests one wake text at `hub`, sent when a call at the end would not block or must report the end of the stream.
  // Returns true if that is the case already.
  Result<bool> await(End end, const WakeHub& hub);
  EndName name_of(End end) const noexcept { return name_of(control_, end); }
  // Ends the watch of this process. A sender that has already read its bit finds no pipe. close_wake_fd() does not
  // affect coroutines that await the end.
  void close_fd(End end) noexcept;
  void close_wake_fd(End end) noexcept;
  void refresh_fd(End end) noexcept {
    if (descriptors_[end].active.load(std::memory_order_acquire)) [[unlikely]]
      refresh_active_fd(end);
  }
  // Claims a message for a thread of this process that is about to receive, so that the descriptor is not readable for
  // it. False, with nothing to drop, if there is no message or no descriptor. See ClaimHooks.
  bool claim() noexcept;
  void drop_claim() noexcept;
  // Wakes every process that watches the end, by a byte in its wake pipe, and every hub that awaits the end. Skips a
  // process whose pipe this process cannot reach.
  static void send_wakes(const Control& control, End end) noexcept {
    if (platform::load_relaxed(control.shared.watched[end]) != 0) [[unlikely]]
      send_bytes(control, end);
  }

 private:
  // True if put() would fail for good.
  bool is_put_over() const noexcept {
    return control_.is_shut_down() || ends_.is_over(End::kReceiving) || ends_.has_deaths_to_report(End::kReceiving);
  }
  struct Descriptor {
    platform::WakePipe pipe;
    platform::ProcessWatch watch;  // watches `pipe` and the processes at the other end; none until poll_fd()
    std::atomic<Identity> owner{memory::kNoIdentity};
    std::atomic<bool> active{false};
  };
  bool is_usable(End end) const noexcept { return end == End::kReceiving ? ready() : can_put(); }
  // True if the descriptor must be readable.
  bool is_readable(End end) const noexcept {
    if (end == End::kSending && control_.is_pipe()) return is_put_over();
    const bool is_claimed =
        end == End::kReceiving && can_receive() && size() <= claims_.load(std::memory_order_acquire);
    return !is_claimed && is_usable(end);
  }
  static EndName name_of(const Control& control, End end) noexcept;
  void refresh_active_fd(End end) noexcept;
  void announce_rest() noexcept;
  void announce_end() noexcept;
  Result<int> watch_fd(End end);
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
  std::atomic<bool> is_watching_{false};  // all senders are known to see `watched`
};

// The wait hooks of a call that receives. They hide a message that the woken thread is about to receive.
//
// Before such a thread receives, it may have to wait for its interpreter (the GIL). Meanwhile the message is in the
// channel, and would keep the process's descriptor readable. A thread that polls the descriptor would find it ready
// repeatedly, and hold the GIL that the first thread needs. So the woken thread claims a message before it waits for
// the interpreter. The descriptor is readable only for messages that no thread has claimed.
//
// A claim moves nothing. If its thread never returns, as at the exit of an interpreter, the message is still in the
// channel.
//
// The hooks claim when a block ends, if there is a message and the process has a descriptor. The claim ends with the
// call, before the thread blocks again, or before code of the program runs, which may poll.
//
// Thread safety: none; one object for each call that receives.
class ClaimHooks final : public platform::WaitHooks {
 public:
  ClaimHooks(Watchers& watchers, platform::WaitHooks* hooks) noexcept : watchers_(watchers), hooks_(hooks) {}
  ~ClaimHooks() override { drop(); }
  ClaimHooks(const ClaimHooks&) = delete;
  ClaimHooks& operator=(const ClaimHooks&) = delete;

  void before_block() noexcept override {
    drop();
    hooks_->before_block();
  }
  void after_block() noexcept override {
    SHMTREE_DCHECK(!has_claimed_);
    has_claimed_ = watchers_.claim();
    hooks_->after_block();  // may never return
  }
  bool interrupted() noexcept override {
    drop();
    return hooks_->interrupted();
  }
  bool ended() const noexcept override { return hooks_->ended(); }
  std::uint32_t threads() const noexcept override { return hooks_->threads(); }

 private:
  void drop() noexcept {
    if (has_claimed_) watchers_.drop_claim();
    has_claimed_ = false;
  }

  Watchers& watchers_;
  platform::WaitHooks* const hooks_;
  bool has_claimed_ = false;
};

}  // namespace shmtree::channel
