// Wake-ups for poll loops: a process that asked gets a byte on its socket for every message, or for all that is
// received when it wants to send. A byte too many may keep a program waiting that believes it: see
// await_announced_wakes().
#include <bit>
#include <cstdio>
#include <mutex>
#include <thread>

#include "channel/channel.h"
#include "platform/atomics.h"
#include "platform/wake_socket.h"

namespace shmtree::channel {

using namespace platform;

namespace {

struct Address {
  char text[100];
  operator std::string_view() const noexcept { return text; }
};

Address address_of(const Arena& arena, BlockRef channel, End which, Identity who) noexcept {
  Address address;
  char* text = address.text;
  constexpr std::size_t kRoom = sizeof address.text;
  int at = std::snprintf(text, kRoom, "shmtree/");
  for (int i = 0; i < 16; ++i) {
    at += std::snprintf(text + at, kRoom - static_cast<std::size_t>(at), "%02x", arena.uuid()[i]);
  }
  std::snprintf(text + at, kRoom - static_cast<std::size_t>(at), "/%llx/%u/%x",
                static_cast<unsigned long long>(memory::pack(channel)), static_cast<unsigned>(which), who);
  return address;
}

}  // namespace

void Channel::wake_watchers_of(Arena& arena, BlockRef channel, ChannelHeader& shared, End which) noexcept {
  if (load_full(shared.watched[static_cast<std::uint32_t>(which)]) == 0) return;
  ParticipantSet& watchers = shared.watchers[static_cast<std::uint32_t>(which)];
  watchers.for_each([&](std::uint32_t slot) noexcept {
    const Identity who = memory::make_identity(slot, load_acquire(arena.participants().slot(slot).generation));
    if (!send_wake(address_of(arena, channel, which, who))) watchers.remove(slot);  // it closed its socket
  });
}

Result<int> Channel::wake_fd(End which) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  Watch& watch = watches_[static_cast<std::uint32_t>(which)];
  int fd = -1;
  {
    const std::lock_guard guard(mutex_);
    if (watch.owner.load(std::memory_order_relaxed) != *me) {  // a forked child must not take its parent's bytes
      watch.fd.reset();
      auto opened = open_wake_socket(address_of(*arena_, lease_.ref(), which, *me));
      if (!opened) return std::move(opened).error();
      watch.fd = std::move(*opened);
      watch.owner.store(*me, std::memory_order_release);
    }
    fd = watch.fd.get();
  }
  header().watchers[static_cast<std::uint32_t>(which)].add(memory::slot_of(*me));
  store_full(header().watched[static_cast<std::uint32_t>(which)], 1u);
  full_fence();  // the bit is visible before the ring is looked at: what is put later sends a byte
  // A sender that looked before has stored its message when it lets go of the lock; it sends no byte.
  if (which == End::kReceiving && !watch.active.load(std::memory_order_relaxed)) {
    Status passed = arena_->lock(header().senders_lock, WaitContext{});
    if (!passed) return std::move(passed).error();
    arena_->unlock(header().senders_lock);
  }
  watch.active.store(true, std::memory_order_release);
  settle_wake_fd(which);
  return fd;
}

// Closes the descriptor. Senders that still have its bit in hand find no socket.
void Channel::unwatch(End which) noexcept {
  Watch& watch = watches_[static_cast<std::uint32_t>(which)];
  const std::lock_guard guard(mutex_);
  if (!watch.fd.valid()) return;
  watch.active.store(false, std::memory_order_release);
  const Identity owner = watch.owner.exchange(memory::kNobody, std::memory_order_acq_rel);
  watch.fd.reset();
  if (owner == memory::kNobody || owner != arena_->current_identity()) return;  // a child has its parent's
  header().watchers[static_cast<std::uint32_t>(which)].remove(memory::slot_of(owner));
}

// After the store of `tail` that announced it.
void Channel::send_announced_wakes() noexcept {
  wake_watchers(End::kReceiving);
  std::atomic<std::uint32_t>& announced = header().wakes_on_their_way;
  std::uint32_t count = load_acquire(announced);
  while (count != 0 && !compare_swap(announced, count, count - 1)) {  // 0: a recovery has taken it for a dead one's
  }
}

// A message may be received before its byte is sent, which would then tell of nothing: whoever believes it waits for
// what does not come. So that byte is waited for, as long as its sender can be expected to need.
void Channel::await_announced_wakes() noexcept {
  constexpr std::int64_t kMostNs = 50'000'000;
  if (load_acquire(header().wakes_on_their_way) == 0) return;
  const std::int64_t end = monotonic_ns() + kMostNs;
  while (load_acquire(header().wakes_on_their_way) != 0 && !ready() && monotonic_ns() < end) std::this_thread::yield();
}

// Keeps the descriptor readable exactly while the end can be used, or has an end to be told of.
void Channel::settle_active_fd(End which) noexcept {
  const Watch& watch = watches_[static_cast<std::uint32_t>(which)];
  const Identity me = arena_->current_identity();
  if (me == memory::kNobody || watch.owner.load(std::memory_order_acquire) != me) return;
  const auto is_ready = [&] { return which == End::kReceiving ? ready() : can_put(); };
  // The first look is without the mutex, which is not to be held while memory is mapped.
  if (!is_ready() && which == End::kReceiving) await_announced_wakes();
  const std::lock_guard guard(mutex_);  // of two threads, none sends a byte for what the other has received
  if (!watch.fd.valid()) return;        // closed meanwhile
  if (!is_ready()) {
    drain_wakes(watch.fd.get());
    full_fence();  // what happens after the bytes were taken sends its own
  }
  if (is_ready()) send_wake(address_of(*arena_, lease_.ref(), which, me));
}

}  // namespace shmtree::channel
