#include "broadcast/subscriber.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "memory/control_block.h"
#include "memory/transfers.h"
#include "platform/dcheck.h"
#include "platform/fork.h"

namespace shmtree::broadcast {

using namespace platform;

namespace {

constexpr int kMaxPolls = 64;  // search for the next message, by a reader that may miss messages

}  // namespace

Result<std::unique_ptr<Subscriber>> Subscriber::create(std::shared_ptr<Ring> ring, Policy policy, bool from_oldest,
                                                       const WaitContext& wait) try {
  auto subscription = new_subscription(*ring, wait);
  if (!subscription) return std::move(subscription).error();
  Owner owner;
  auto number = ring->subscribe(policy, from_oldest, subscription->ref(), &owner, wait);
  if (!number) return std::move(number).error();
  write_ticket(*subscription, {.ring = ring->block(), .number = *number, .owner = owner});
  return std::unique_ptr<Subscriber>(new Subscriber(std::move(ring), *number, owner, std::move(*subscription)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::unique_ptr<Subscriber>> Subscriber::open(const std::shared_ptr<Arena>& arena, BlockRef block,
                                                     const WaitContext& wait) try {
  const auto gone = [](Error error) {
    if (error.code == Code::kNotFound) {
      error.message =
          "the subscription no longer exists: its processes closed it or ended, or another process has read from it";
    }
    return error;
  };
  auto subscription = memory::open_control_block(*arena, block, memory::BlockKind::kSubscription, sizeof(Subscription),
                                                 "a subscription to a Broadcast", wait);
  if (!subscription) return gone(std::move(subscription).error());
  auto ticket = read_ticket(*subscription);
  if (!ticket) return std::move(ticket).error();
  auto ring = Ring::open(arena, ticket->ring, wait);
  if (!ring) return std::move(ring).error();
  if ((*ring)->cursors().owner_of(ticket->number).use != ticket->owner.use ||
      (*ring)->cursors().owner_of(ticket->number).identity == memory::kNoIdentity) {
    return gone({.code = Code::kNotFound});
  }
  (*ring)->note_object();
  return std::unique_ptr<Subscriber>(
      new Subscriber(std::move(*ring), ticket->number, ticket->owner, std::move(*subscription)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Subscriber::~Subscriber() {
  leave(OwnTransfers::kKeep);
}

memory::Lease Subscriber::take_subscription() noexcept {
  forget_parent();  // the parent's threads may have had the mutex
  const std::lock_guard guard(mutex_);
  return std::move(subscription_);
}

Result<BlockRef> Subscriber::give() {
  forget_parent();
  const Owner now = unpack_owner(load_acquire(cursor().owner));
  const std::lock_guard guard(mutex_);
  if (now.use != owner_.use || now.claimed || !subscription_.valid()) {
    return Error{.code = Code::kClosed,
                 .message = "a subscription cannot be handed to another process once a process has read from it"};
  }
  return subscription_.ref();
}

// Claims the cursor if no process has. If another process has, moves the pin of the block to `released`, which the
// caller releases outside the mutex.
Status Subscriber::claim(Identity me, memory::Lease& released) {
  Owner mine = owner_;
  mine.identity = me;
  mine.claimed = true;
  for (std::uint64_t word = load_acquire(cursor().owner);;) {
    const Owner now = unpack_owner(word);
    if (now == mine) return success();
    const bool is_closed = now.identity == memory::kNoIdentity || now.use != owner_.use;
    if (is_closed || now.claimed) {
      released = std::move(subscription_);
      return Error{
          .code = Code::kClosed,
          .message = is_closed ? "this subscription was closed" : "this subscription belongs to another process"};
    }
    if (compare_swap(cursor().owner, word, pack(mine))) break;
  }
  return success();
}

// Call this only in the process that has claimed the cursor.
void Subscriber::count_missed(std::uint64_t count) noexcept {
  store_relaxed(cursor().missed, load_relaxed(cursor().missed) + count);
}

// Moves the cursor to the next readable message, and counts the messages that it skips. Returns true if there is a
// readable message.
bool Subscriber::catch_up(bool& moved) noexcept {
  const std::uint64_t tail = ring_->tail(), position = load_relaxed(cursor().position);
  if (position >= tail) return false;
  std::uint64_t next = position;
  if (owner_.policy != Policy::kBlock) next = std::max(next, ring_->oldest());
  if (owner_.policy == Policy::kLatest) next = std::max(next, tail - 1);
  if (next == position) return true;
  count_missed(next - position);
  store_seq_cst(cursor().position, next);
  moved = true;
  return next < tail;
}

Error Subscriber::overrun() {
  const std::uint64_t count = missed() - std::exchange(reported_, missed());
  return Error{.code = Code::kOverrun,
               .message = std::to_string(count) +
                          " messages were missed: they were overwritten, or skipped, before this subscriber read them",
               .missed = count};
}

// Under mutex_. With Policy::kLatest only the newer of two messages is kept; the other one is moved to `received`.
void Subscriber::keep(std::unique_ptr<Received>& received) noexcept {
  SHMTREE_DCHECK(received != nullptr && received->next == nullptr);
  if (owner_.policy == Policy::kLatest && given_back_ != nullptr) {
    if (given_back_->message.ticket < received->message.ticket) std::swap(given_back_, received);
    return count_missed(1);
  }
  std::unique_ptr<Received>* link = &given_back_;
  while (*link != nullptr && (*link)->message.ticket < received->message.ticket) link = &(*link)->next;
  received->next = std::move(*link);
  *link = std::move(received);
  given_back_count_.fetch_add(1, std::memory_order_relaxed);
}

void Subscriber::give_back(std::unique_ptr<Received> received, FailedBuild how) noexcept {
  const Identity me = ring_->arena()->current_identity();
  {
    const std::lock_guard guard(mutex_);  // a message that is not kept is destroyed after the unlock
    const Owner now = unpack_owner(load_acquire(cursor().owner));
    if (!now.claimed || now.use != owner_.use || now.identity != me) return;
    const bool is_given_up = how == FailedBuild::kCounted && ++received->message.failed_builds >= kMaxFailedBuilds;
    if (is_given_up) {
      count_missed(1);
    } else {
      keep(received);
    }
    refresh_bell();
  }
  wake();  // other threads of this process may wait
}

// Under mutex_, by the process that has claimed the cursor.
bool Subscriber::take_given_back(Incoming& message) noexcept {
  if (given_back_ == nullptr) [[likely]]
    return false;
  const std::unique_ptr<Received> first = std::exchange(given_back_, std::move(given_back_->next));
  SHMTREE_DCHECK(given_back_count_.load(std::memory_order_relaxed) != 0);
  given_back_count_.fetch_sub(1, std::memory_order_relaxed);
  if (owner_.policy == Policy::kLatest && load_relaxed(cursor().position) < ring_->tail()) {
    count_missed(1);
    return false;
  }
  message = std::move(first->message);
  return true;
}

std::unique_ptr<Received> Subscriber::take_all_given_back() noexcept {
  const std::lock_guard guard(mutex_);
  given_back_count_.store(0, std::memory_order_relaxed);
  return std::move(given_back_);
}

// Reads the next message without waiting; kEmpty if there is none.
Status Subscriber::get_now(Incoming& message) {
  auto me = ring_->arena()->identity();  // may recover; resets mutexes that a parent had locked
  if (!me) return std::move(me).error();
  memory::Lease released;
  bool moved = false;
  Status got = success();
  {
    const std::lock_guard guard(mutex_);
    got = claim(*me, released);
    if (!got) return got;
    got = get_claimed(message, moved);
    refresh_bell();
  }
  if (moved) ring_->free_passed();
  return got;
}

void Subscriber::refresh_bell() noexcept {
  bell_.refresh(cursor(), [this] { return ready(); });
}

Result<int> Subscriber::fd(bool* opened) {
  auto me = ring_->arena()->identity();
  if (!me) return std::move(me).error();
  memory::Lease released;
  const std::lock_guard guard(mutex_);
  Status mine = claim(*me, released);
  if (!mine) return std::move(mine).error();
  const bool was_open = bell_.is_open();
  if (!was_open) {
    if (Status kept = ring_->arena()->participants().check_descriptors(); !kept) return std::move(kept).error();
  }
  Status open = bell_.open(cursor());
  if (!open) return std::move(open).error();
  if (opened != nullptr && !was_open) *opened = true;
  ring_->announce_bells();
  refresh_bell();
  return bell_.fd();
}

void Subscriber::close_fd() noexcept {
  const std::lock_guard guard(mutex_);
  bell_.close();
}

bool Subscriber::ready() const {
  const Owner now = unpack_owner(load_acquire(cursor().owner));
  const bool is_ours = now.use == owner_.use && (!now.claimed || now.identity == ring_->arena()->current_identity());
  return now.identity == memory::kNoIdentity || !is_ours || size() != 0 || !ring_->check_publishers();
}

Status Subscriber::get_claimed(Incoming& message, bool& moved) {
  if (take_given_back(message)) return success();
  // If the ring has overwritten the message, tries a later one. If the later message is missing as well, a stopped
  // process is overwriting it, or it is damaged. A call that waits checks again later.
  for (int looks = 0;; ++looks) {
    const bool there = catch_up(moved);
    if (must_report_overrun()) return overrun();
    if (load_relaxed(cursor().position) > ring_->tail()) {
      return Error{.code = Code::kCorrupt, .message = "the shared state of this Broadcast is damaged"};
    }
    if (!there || looks == kMaxPolls) return Error{.code = Code::kEmpty, .message = "no message within the timeout"};
    const std::uint64_t ticket = load_relaxed(cursor().position);
    Status got = ring_->read(ticket, message);
    if (got) {
      message.failed_builds = 0;
      store_seq_cst(cursor().position, ticket + 1);
      moved = true;
      return success();
    }
    if (got.code() != Code::kNotFound) return got;
    if (owner_.policy == Policy::kBlock) {
      return Error{.code = Code::kCorrupt, .message = "the shared state of this Broadcast is damaged"};
    }
  }
}

// The thread holds no lock while it waits.
Status Subscriber::get(Incoming& message, const WaitContext& wait) {
  return ring_->wait_for_item(
      memory::WaitFor::kMessage, "a message", wait, [&] { return get_now(message); }, [this] { return size() != 0; });
}

std::uint64_t Subscriber::size() const noexcept {
  const std::uint64_t tail = ring_->tail(), position = load_relaxed(cursor().position);
  const std::uint64_t given_back = given_back_count_.load(std::memory_order_relaxed);
  if (position >= tail) return given_back;
  if (owner_.policy == Policy::kLatest) return 1;
  return given_back + tail - (owner_.policy == Policy::kBlock ? position : std::max(position, ring_->oldest()));
}

void Subscriber::close() noexcept {
  leave(OwnTransfers::kEnd);
}

// A forked child does not own a cursor that its parent has claimed, and has no transfers.
void Subscriber::leave(OwnTransfers transfers) noexcept {
  memory::Lease subscription = take_subscription();
  take_all_given_back().reset();  // outside the mutex
  const memory::Identity me = ring_->arena()->current_identity();
  if (transfers == OwnTransfers::kEnd && subscription.valid()) {
    memory::end_own_transfers(*ring_->arena(), memory::pack(subscription.ref()));
  }
  subscription.reset();
  close_fd();
  std::uint64_t word = load_acquire(cursor().owner);
  const Owner now = unpack_owner(word);
  if (me == memory::kNoIdentity || now.identity == memory::kNoIdentity || now.use != owner_.use) return;
  if (now.claimed ? now.identity != me : ring_->cursors().is_held(cursor())) return;
  if (compare_swap(cursor().owner, word, std::uint64_t{0})) ring_->free_passed();
}

}  // namespace shmtree::broadcast
