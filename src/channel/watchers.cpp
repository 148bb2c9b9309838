#include "channel/watchers.h"

#include <cstring>
#include <mutex>

#include "memory/arena.h"
#include "platform/brief_wait.h"
#include "platform/machine.h"

namespace shmtree::channel {

using namespace platform;

namespace {

constexpr unsigned number_of(End end) noexcept {
  return static_cast<unsigned>(end);
}

}  // namespace

// Wakes the watchers for which wanted(identity) returns true.
template <class Wanted>
void Watchers::send_bytes_to(const Control& control, End end, Wanted wanted) noexcept {
  if (load_seq_cst(control.shared.watched[end]) == 0) return;
  fence_seq_cst();  // the change is visible before the bits are read
  const auto identity_in = [&](std::uint32_t slot) {
    return memory::make_identity(slot, load_acquire(control.arena.participants().slot(slot).generation));
  };
  // Leaves the bit if this process cannot reach the watcher: another one may. Recovery clears the bits of the dead.
  const memory::WakeTable& table = control.arena.wake_table();
  control.shared.watchers[end].for_each([&](std::uint32_t slot) noexcept {
    if (wanted(identity_in(slot))) table.wake(slot, control.block, number_of(end));
  });
  ParticipantSet& awaiting = control.shared.awaiting[end];
  awaiting.for_each([&](std::uint32_t slot) noexcept {
    if (!wanted(identity_in(slot))) return;
    table.wake_hub(slot, name_of(control, end), [&]() noexcept { return awaiting.take(slot); });
  });
}

EndName Watchers::name_of(const Control& control, End end) noexcept {
  EndName name{};
  const std::uint64_t block = memory::pack(control.block);
  std::memcpy(name.data(), control.arena.uuid(), 16);
  std::memcpy(name.data() + 16, &block, sizeof block);
  std::memcpy(name.data() + 24, &end, sizeof end);
  return name;
}

void Watchers::send_bytes(const Control& control, End end) noexcept {
  send_bytes_to(control, end, [](Identity) { return true; });
}

// Sends no byte to a process that can neither send nor receive: it would then wait for a message that does not come.
void Watchers::wake_all() noexcept {
  notify_all(control_.shared.space);
  notify_all(control_.shared.freed_bytes);
  notify_all(control_.shared.acked);
  if (can_put()) {
    send_wakes(control_, End::kSending);
  } else if (ends_.may_report_deaths(End::kReceiving)) {
    announce_deaths(control_, ends_, End::kReceiving);
  }
  announce_end();
}

void Watchers::announce_deaths(const Control& control, const Ends& ends, End end) noexcept {
  send_bytes_to(control, other(end), [&](Identity identity) { return ends.has_deaths_to_report(end, identity); });
}

// Wakes all receivers for which the stream may be over. That depends on the messages that each process has taken.
void Watchers::announce_end() noexcept {
  notify_all(control_.shared.items);
  send_bytes_to(control_, End::kReceiving, [this](Identity identity) {
    return can_receive() || ends_.is_over(End::kSending, identity) ||
           ends_.has_deaths_to_report(End::kSending, identity);
  });
}

// After a receipt: wakes the next waiter for a remaining message, or all waiters at the end of the stream.
void Watchers::announce_rest() noexcept {
  if (head_.has_messages()) return notify(control_.shared.items);
  if (ends_.is_left(End::kSending)) notify_all(control_.shared.items);
}

void Watchers::announce_settled(RecordState became) noexcept {
  notify_all(control_.shared.acked);
  if (became == RecordState::kReturned) {
    refresh_fd(End::kSending);  // there may be no space any more
    send_wakes(control_, End::kReceiving);
    notify(control_.shared.items);
    return;
  }
  const bool has_waiters =
      load_relaxed(control_.shared.items.waiters) != 0 || load_relaxed(control_.shared.watched[End::kReceiving]) != 0;
  if (has_waiters && ends_.is_left(End::kSending)) announce_end();
}

Result<int> Watchers::wake_fd(End end, bool* opened) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  Descriptor& mine = descriptors_[end];
  int fd = -1;
  bool is_new = false;
  {
    const std::lock_guard guard(mutex_);
    const bool is_parents = mine.owner.load(std::memory_order_relaxed) != *me;
    if (is_parents || !mine.pipe.is_ours()) {  // a forked child must not take its parent's bytes
      mine.watch = {};
      mine.pipe.close();
      if (Status kept = control_.arena.participants().check_descriptors(); !kept) return std::move(kept).error();
      auto fresh = WakePipe::open(WakeKind::kBytes);
      if (!fresh) return std::move(fresh).error();
      Status found = control_.arena.wake_table().set(*me, control_.block, number_of(end), fresh->address());
      if (!found) return std::move(found).error();
      mine.pipe = std::move(*fresh);
      is_new = true;
      if (end == End::kReceiving) claims_.store(0);  // a forked child does not have those threads
      mine.owner.store(*me, std::memory_order_release);
    }
    fd = mine.pipe.number();
  }
  if (is_new && opened != nullptr) *opened = true;
  control_.shared.watchers[end].add(memory::slot_of(*me));
  Status begun = begin_watching(end);
  if (!begun) return std::move(begun).error();
  mine.active.store(true, std::memory_order_release);
  refresh_fd(end);
  return fd;
}

Result<int> Watchers::writable_fd(End end) {
  auto fd = poll_fd(end);
  if (!fd) return fd;
  const std::lock_guard guard(mutex_);
  platform::ProcessWatch& watch = descriptors_[end].watch;
  auto both = watch.valid() && watch.fd() == *fd ? watch.writable_fd() : fd;
  return both ? both : fd;
}

void Watchers::check_exits(End end) noexcept {
  Descriptor& mine = descriptors_[end];
  if (!mine.active.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard guard(mutex_);
    if (mine.owner.load(std::memory_order_acquire) != control_.arena.current_identity()) return;
    if (!mine.watch.valid() || !mine.watch.is_readable()) return;
  }
  memory::poll_for_deaths(control_.arena, 0);
}

Result<int> Watchers::poll_fd(End end) {
  // A process that has exited already makes no descriptor readable. Detect it before the descriptor is refreshed, since
  // a detected death sends bytes.
  memory::poll_for_deaths(control_.arena, wait_policy::kShortPollIntervalNs);
  bool opened = false;
  auto fd = wake_fd(end, &opened);
  if (!fd || (control_.is_queue() && ends_.has_member(other(end), control_.arena.current_identity()))) return fd;
  auto watch = watch_fd(end);
  if (!watch && opened) close_wake_fd(end);
  return watch;
}

Result<int> Watchers::watch_fd(End end) {
  Descriptor& mine = descriptors_[end];
  const std::lock_guard guard(mutex_);
  if (mine.watch.valid() && !mine.watch.is_ours()) mine.watch = {};
  if (!mine.watch.valid()) {
    auto watch = ProcessWatch::around(mine.pipe.descriptor());
    if (!watch) return std::move(watch).error();
    mine.watch = std::move(*watch);
  }
  Status watched = mine.watch.watch(ends_.pids_to_report(other(end)));
  if (watched) return mine.watch.fd();
  mine.watch = {};
  return std::move(watched).error();
}

// Under mutex_. If this fails, the next poll_fd() tries again and reports the error.
void Watchers::watch_peers_quietly(End end) noexcept {
  platform::ProcessWatch& watch = descriptors_[end].watch;
  if (!watch.valid() || !watch.is_ours()) return;
  try {
    watch.watch(ends_.pids_to_report(other(end))).ok();
  } catch (const std::bad_alloc&) {
  }
}

// Called after the bit is set. Every later put or receipt is announced.
Status Watchers::begin_watching(End end) {
  store_seq_cst(control_.shared.watched[end], 1u);
  fence_seq_cst();  // the bit is visible before the ring is read, so later puts send a byte
  // A sender that read `watched` earlier sends no byte. It has stored its message once it releases the lock.
  if (end == End::kReceiving && !is_watching_.load(std::memory_order_relaxed)) {
    Status passed = control_.arena.lock(control_.shared.senders_lock, WaitContext{});
    if (!passed) return passed;
    control_.arena.unlock(control_.shared.senders_lock);
    is_watching_.store(true, std::memory_order_relaxed);
  }
  return success();
}

Result<bool> Watchers::await(End end, const WakeHub& hub) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  control_.arena.wake_table().set_hub(*me, hub.address());
  control_.shared.awaiting[end].add(memory::slot_of(*me));
  Status begun = begin_watching(end);
  if (!begun) return std::move(begun).error();
  return is_usable(end);
}

void Watchers::close_fd(End end) noexcept {
  if (const Identity me = control_.arena.current_identity(); me != memory::kNoIdentity) {
    ParticipantSet& awaiting = control_.shared.awaiting[end];
    if (awaiting.contains(memory::slot_of(me))) awaiting.remove(memory::slot_of(me));
  }
  close_wake_fd(end);
}

void Watchers::close_wake_fd(End end) noexcept {
  Descriptor& mine = descriptors_[end];
  const std::lock_guard guard(mutex_);
  if (!mine.pipe.is_valid()) return;
  mine.active.store(false, std::memory_order_release);
  mine.watch = {};
  const Identity owner = mine.owner.exchange(memory::kNoIdentity, std::memory_order_acq_rel);
  mine.pipe.close();
  if (owner == memory::kNoIdentity || owner != control_.arena.current_identity())
    return;  // a child's copy of its parent's
  control_.shared.watchers[end].remove(memory::slot_of(owner));
  control_.arena.wake_table().clear(owner, control_.block, number_of(end));
}

// Called after the store of `tail` that the announcement preceded.
void Watchers::send_announced_wakes() noexcept {
  send_wakes(control_, End::kReceiving);
  std::atomic<std::uint32_t>& announced = control_.shared.pending_wakes;
  std::uint32_t count = load_acquire(announced);
  while (count != 0 && !compare_swap(announced, count, count - 1)) {  // 0: a recovery has reset it
  }
}

// A message may be received before its byte is sent. The byte would then announce nothing, and a program that trusts it
// would block. So this waits for that byte, as long as its sender can be expected to need.
void Watchers::await_announced_wakes() noexcept {
  const std::atomic<std::uint32_t>& announced = control_.shared.pending_wakes;
  if (load_acquire(announced) == 0) return;
  const std::int64_t end = monotonic_ns() + wait_policy::kAnnouncedWakeNs;
  for (BriefWait sender; load_acquire(announced) != 0 && !is_readable(End::kReceiving) && monotonic_ns() < end;)
    sender.pause();
}

bool Watchers::claim() noexcept {
  const Descriptor& mine = descriptors_[End::kReceiving];
  if (!mine.active.load(std::memory_order_acquire) || !can_receive()) return false;
  if (mine.owner.load(std::memory_order_acquire) != control_.arena.current_identity()) return false;  // a child
  claims_.fetch_add(1);
  if (!is_readable(End::kReceiving)) await_announced_wakes();
  refresh_active_fd(End::kReceiving);
  return true;
}

// If the message was received, the descriptor is correct already. If not, the descriptor becomes readable again.
void Watchers::drop_claim() noexcept {
  std::uint32_t claims = claims_.load(std::memory_order_relaxed);
  while (claims != 0 && !claims_.compare_exchange_weak(claims, claims - 1)) {  // 0: claimed for an earlier descriptor
  }
  fence_seq_cst();  // sees a message that came meanwhile and that another thread considered claimed
  if (is_usable(End::kReceiving)) refresh_fd(End::kReceiving);
}

void Watchers::refresh_active_fd(End end) noexcept {
  const Descriptor& mine = descriptors_[end];
  const Identity me = control_.arena.current_identity();
  if (me == memory::kNoIdentity || mine.owner.load(std::memory_order_acquire) != me) return;
  // The first check is done without the mutex, which must not be held while memory is mapped. A thread that has claimed
  // a message awaits its byte itself, without the interpreter. Other threads would hold the interpreter while they
  // wait.
  const bool may_await = end == End::kReceiving && claims_.load(std::memory_order_relaxed) == 0;
  if (!is_readable(end) && may_await) await_announced_wakes();
  const std::lock_guard guard(mutex_);  // no thread sends a byte for a message that another has received
  if (!mine.pipe.is_ours()) return;     // closed meanwhile
  watch_peers_quietly(end);
  if (!is_readable(end)) {
    mine.pipe.drain();
    mine.watch.rearm();
    fence_seq_cst();  // a change after the drain sends its own byte
  }
  if (is_readable(end)) mine.pipe.wake();
}

}  // namespace shmtree::channel
