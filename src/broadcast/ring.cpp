#include "broadcast/ring.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "broadcast/doorbell.h"
#include "memory/control_block.h"
#include "memory/held_locks.h"
#include "platform/clock.h"
#include "platform/copy.h"
#include "platform/dcheck.h"
#include "platform/errors.h"
#include "platform/never_destroyed.h"
#include "platform/other_version.h"
#include "platform/weak_registry.h"

namespace shmtree::broadcast {

using namespace platform;
using memory::BlockKind;
using memory::Failure;
using memory::HeldLocks;
using memory::Lease;
using memory::ListEntry;
using memory::PublisherRole;

namespace {

constexpr std::uint64_t header_bytes(const RingUse& use) noexcept {
  return sizeof(RingHeader) + use.cursors * sizeof(Cursor);
}
constexpr std::uint64_t list_offset(const RingUse& use, std::uint64_t entries) noexcept {
  return header_bytes(use) + entries * use.entry_bytes;
}
constexpr std::uint64_t control_bytes(const RingUse& use, std::uint64_t entries) noexcept {
  return list_offset(use, entries) + entries * sizeof(ListEntry);
}
std::byte* frame_after(Entry& entry) noexcept {
  return reinterpret_cast<std::byte*>(&entry + 1);
}

platform::WeakRegistry<Ring>& rings() noexcept {
  return never_destroyed<platform::WeakRegistry<Ring>>();
}

// Drops the oldest messages of each Broadcast of the arena that this process has open.
bool shrink(const memory::ArenaHeader& of, std::uint64_t bytes, const WaitContext& wait) {
  bool dropped = false;
  for (const auto& ring : rings().all()) {
    if (&ring->arena()->header() == &of) dropped = ring->drop_oldest(bytes, wait) || dropped;
  }
  return dropped;
}

[[maybe_unused]] const bool kRingsMade = [] {
  memory::Allocator::set_shrinker(&shrink);
  static constinit ForkHandlers handlers{.last = [] {
    rings().for_each_unlocked([](Ring& ring, bool is_expired) {
      if (!is_expired) ring.note_object();
    });
  }};
  add_fork_handlers(handlers);
  return true;
}();

}  // namespace

Ring::Ring(std::shared_ptr<Arena> arena, Lease control, const RingUse& use)
    : arena_(std::move(arena)),
      control_(std::move(control)),
      use_(use),
      entries_(header().entries),
      entry_bytes_(use.entry_bytes),
      capacity_(header().capacity),
      history_(header().history),
      max_bytes_(header().max_bytes),
      ring_(control_.data() + header_bytes(use)),
      list_(reinterpret_cast<ListEntry*>(control_.data() + list_offset(use, entries_))) {}

Ring::~Ring() {
  rings().erase(this);
}

std::shared_ptr<Ring> Ring::registered(std::shared_ptr<Ring> ring) {
  return rings().insert(
      ring, [&](const Ring& other) { return other.arena() == ring->arena() && other.block() == ring->block(); });
}

Result<std::shared_ptr<Ring>> Ring::create(std::shared_ptr<Arena> arena, const Options& options,
                                           const WaitContext& wait, const RingUse& use) try {
  const std::uint64_t longer = std::max(options.capacity, options.history);
  if (options.capacity == 0 || longer >= kMaxEntries) {
    return Error{.code = Code::kInvalid,
                 .message = "capacity is " + std::to_string(options.capacity) + " and history is " +
                            std::to_string(options.history) + "; both must be below " + std::to_string(kMaxEntries) +
                            ", and capacity at least 1"};
  }
  const std::uint64_t entries = longer + 1;
  auto block = make_control_block(*arena, use.kind, control_bytes(use, entries), wait);
  if (!block) return std::move(block).error();
  auto* header = new (block->data()) RingHeader{};
  header->magic = use.magic;
  header->version = kRingVersion;
  header->entries = static_cast<std::uint32_t>(entries);
  header->capacity = options.capacity;
  header->history = options.history;
  header->max_bytes = options.max_bytes;
  header->entry_bytes = static_cast<std::uint32_t>(use.entry_bytes);
  if (options.allow_pickle) header->flags |= kPickles;
  if (options.waits) header->flags |= kWaits;
  memory::Publishers(arena->participants(), header->publishers).attach(PublisherRole::kMade);
  const std::vector<BlockRef> nothing(entries);
  auto control = hold_control_block(*arena, std::move(*block), nothing, wait);
  if (!control) return std::move(control).error();
  return registered(std::shared_ptr<Ring>(new Ring(std::move(arena), std::move(*control), use)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status Ring::check_options(const Options& options) const {
  OptionDifferences others;
  others.compare("capacity", capacity_, options.capacity);
  others.compare("history", history_, options.history);
  others.compare("max_bytes", max_bytes_, options.max_bytes);
  others.compare_flags("allow_pickle", allows_pickle(), options.allow_pickle);
  const auto ending = [](bool waits) { return std::string(waits ? "wait" : "raise"); };
  others.compare("on_peer_death", ending(has_flag(kWaits)), ending(options.waits));
  return others.of("a Broadcast");
}

Result<std::shared_ptr<Ring>> Ring::open(const std::shared_ptr<Arena>& arena, BlockRef block, const WaitContext& wait,
                                         const RingUse& use) try {
  const std::string name = std::string("a ") + use.name;
  auto control = open_control_block(*arena, block, use.kind, header_bytes(use), name.c_str(), wait);
  if (!control) return std::move(control).error();
  const auto& header = *reinterpret_cast<const RingHeader*>(control->data());
  const bool has_magic = load_once(header.magic) == use.magic;
  const std::uint32_t version = load_once(header.version);
  if (has_magic && version != kRingVersion) {
    return platform::other_version("the " + std::string(use.name) + " has layout version", version, kRingVersion);
  }
  const std::uint64_t entries = load_once(header.entries), capacity = load_once(header.capacity);
  const std::uint64_t history = load_once(header.history);
  const bool fits = has_magic && load_once(header.entry_bytes) == use.entry_bytes && entries >= 2 &&
                    entries <= kMaxEntries && capacity != 0 && capacity < entries && history < entries &&
                    control_bytes(use, entries) <= arena->blocks().capacity_of(block.id);
  if (!fits) return Error{.code = Code::kIncompatible, .message = "this block of the arena is not " + name};
  return registered(std::shared_ptr<Ring>(new Ring(arena, std::move(*control), use)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// --- Cursors

// Runs if a reader lags by a whole ring, since a dead reader would keep that many messages forever.
void Ring::poll_for_deaths() noexcept {
  const std::int64_t now = coarse_monotonic_ns();
  if (now - last_poll_ns_.load(std::memory_order_relaxed) < wait_policy::kLongPollIntervalNs) return;
  last_poll_ns_.store(now, std::memory_order_relaxed);
  drop_dead();
}

Result<std::uint32_t> Ring::subscribe(Policy policy, bool from_oldest, BlockRef subscription, Owner* owner,
                                      const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  drop_dead();
  auto locks = lock_and_repair(Locks::kRing, wait);
  if (!locks) return std::move(locks).error();
  RingHeader& shared = header();
  const std::uint32_t number = cursors().find_free();
  if (number != kMaxCursors) {
    Cursor& mine = cursors().at(number);
    // The ring may still contain small messages that all readers have read.
    const std::uint64_t end = tail();
    const std::uint64_t unread = std::min(cursors().slowest(Readers::kAll).position, end - std::min(end, history_));
    const std::uint64_t position = from_oldest ? std::max(oldest(), unread) : end;
    *owner = {.identity = *me, .use = (load_relaxed(mine.uses) + 1) & kUseMask, .policy = policy};
    store_relaxed(mine.uses, owner->use);
    store_relaxed(mine.missed, std::uint64_t{0});
    store_relaxed(mine.asks, 0u);
    store_relaxed(mine.position, position);
    store_relaxed(mine.subscription, memory::pack(subscription));
    store_relaxed(shared.slowest, std::min(load_relaxed(shared.slowest), position));
    if (number >= cursors().used()) store_release(shared.cursors_high, number + 1);
    store_seq_cst(mine.owner, pack(*owner));
  }
  unlock(*locks);
  notify_all(shared.space);  // for wait_for_readers()
  if (number != kMaxCursors) return number;
  return Error{.code = Code::kInvalid,
               .message = "this Broadcast already has " + std::to_string(kMaxCursors) +
                          " subscriptions, which is the limit: close unused ones"};
}

std::vector<Ring::Position> Ring::positions() const {
  std::vector<Position> found;
  for (std::uint32_t number = 0; number < cursors().used(); ++number) {
    if (!cursors().owner_of(number).claimed) continue;
    for (const int pid : cursors().pids_of(number)) {
      found.push_back({number, pid, load_acquire(cursors().at(number).position)});
    }
  }
  return found;
}

// --- Putting

Status Ring::lock(Locks locks, const WaitContext& wait) {
  memory::Reconciler& reconciler = arena_->reconciler();
  if (locks == Locks::kRing) return reconciler.lock(header().lock, wait);
  for (;;) {
    Status locked = reconciler.lock_arena(wait);
    if (!locked || reconciler.lock_briefly(header().lock)) return locked;
    arena_->reclaimer().unlock();
    // The owner of the ring's lock is stopped or dead: waits for a stopped owner, and recovers from a dead one.
    locked = reconciler.lock(header().lock, wait);
    if (!locked) return locked;
    arena_->unlock(header().lock);
  }
}

void Ring::unlock(Locks locks) noexcept {
  arena_->unlock(header().lock);
  if (locks == Locks::kArenaAndRing) arena_->reclaimer().unlock();
}

// True if a put of a small message may have to remove a message in a block, or to repair the ring.
bool Ring::touches_blocks() const noexcept {
  const RingHeader& shared = header();
  return load_relaxed(shared.blocks_end) > load_relaxed(shared.kept) || load_relaxed(shared.putting) != 0 ||
         references().at(load_relaxed(shared.tail) % entries_).id.value != 0;
}

Result<Ring::Locks> Ring::lock_and_repair(Locks locks, const WaitContext& wait) {
  if (touches_blocks()) locks = Locks::kArenaAndRing;
  Status locked = lock(locks, wait);
  if (locked && locks == Locks::kRing && touches_blocks()) {  // the answer changed before the lock was taken
    unlock(locks);
    locks = Locks::kArenaAndRing;
    locked = lock(locks, wait);
  }
  if (!locked) return std::move(locked).error();
  if (locks == Locks::kArenaAndRing && load_relaxed(header().putting) != 0) repair();
  return locks;
}

bool Ring::has_space(const Cursors::Slowest& slowest, std::uint64_t bytes) const noexcept {
  const std::uint64_t behind = tail() - std::min(slowest.position, tail());
  if (behind == 0) return true;
  if (behind >= capacity_) return false;
  if (max_bytes_ == 0) return true;
  const std::uint64_t queued = load_relaxed(header().put_bytes) - load_relaxed(entry(slowest.position).before);
  return queued + bytes <= max_bytes_;
}

// Usually the last known position of the slowest reader shows that there is space. Checks all cursors only if it does
// not.
bool Ring::has_space_now(std::uint64_t bytes) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header().lock));
  if (load_relaxed(header().cursors_high) == 0) return true;
  const Cursors::Slowest last{load_relaxed(header().slowest), memory::kNoIdentity};
  if (has_space(last, bytes)) return true;
  const Cursors::Slowest now = cursors().slowest(Readers::kBlocking);
  store_relaxed(header().slowest, now.position);
  return has_space(now, bytes);
}

// If this thread has only the ring's lock, touches_blocks() was false, so a block here means that shared memory is
// damaged.
void Ring::remove_entry(std::uint64_t index, Locks locks) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header().lock));
  store_relaxed(entry_at(index).ticket, std::uint64_t{0});
  fence_seq_cst();  // readers see the cleared ticket, or this process their holder bits
  const BlockRef block = references().empty(index);
  if (block.id.value != 0 && locks == Locks::kArenaAndRing) arena_->reclaimer().free_if_unreferenced(block);
}

std::uint64_t Ring::needed() const noexcept {
  const std::uint64_t end = tail();
  return std::min(cursors().slowest(Readers::kAll).position, end - std::min(end, history_));
}

bool Ring::has_passed_blocks() const noexcept {
  const std::uint64_t kept = load_relaxed(header().kept);
  return load_relaxed(header().blocks_end) > kept && needed() > kept;
}

// Removes the messages that every reader has read, but not the history, if any of them may have blocks.
void Ring::remove_passed() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header().lock) && HeldLocks::contains(arena_->header().arena_lock));
  if (load_relaxed(header().blocks_end) <= load_relaxed(header().kept)) return;
  const std::uint64_t limit = needed();
  for (std::uint64_t at = first_kept(); at < limit; ++at) {
    if (load_relaxed(entry(at).ticket) == at + 1) remove_entry(at % entries_, Locks::kArenaAndRing);
    store_relaxed(header().kept, at + 1);
  }
}

// Returns a ticket before which the ring has no message.
std::uint64_t Ring::first_kept() const noexcept {
  const std::uint64_t end = tail();
  return std::max(load_relaxed(header().kept), end - std::min(end, entries_));
}

std::uint64_t Ring::kept_bytes() const noexcept {
  const std::uint64_t first = first_kept(), put = load_relaxed(header().put_bytes);
  if (first >= tail()) return 0;
  const std::uint64_t before = load_relaxed(entry(first).before);
  const bool is_there = load_acquire(entry(first).ticket) == first + 1;
  return is_there && put > before ? put - before : 0;
}

// Returns 0 for a Latest: it has no limit on bytes that readers have not read.
std::uint64_t Ring::referred_bytes(BlockRef block) const noexcept {
  return use_.cursors == 0 ? 0 : arena_->blocks().referred_bytes(block);
}

std::uint64_t Ring::frame_bytes(std::uint64_t ticket) const noexcept {
  const std::uint64_t bytes = load_relaxed(entry(ticket).bytes);
  return load_acquire(entry(ticket).ticket) == ticket + 1 ? bytes : 0;
}

// Sets `putting`, as a put does. If the process is killed in the middle, repair() then finds where the messages begin.
bool Ring::drop_oldest(std::uint64_t bytes, const WaitContext& wait) noexcept {
  RingHeader& shared = header();
  const auto limit = [&] {
    const std::uint64_t end = tail();
    return std::min({cursors().slowest(Readers::kBlocking).position, end - std::min(end, history_),
                     load_relaxed(shared.blocks_end)});
  };
  if (first_kept() >= limit()) return false;
  const auto locks = or_out_of_memory([&] { return lock_and_repair(Locks::kArenaAndRing, wait); });
  if (!locks) return false;
  store_release(shared.putting, tail() + 1);
  bool dropped = false;
  std::uint64_t freed = 0;
  const std::uint64_t end = limit();
  for (std::uint64_t at = first_kept(); at < end && freed < bytes; ++at) {
    const Entry& oldest = entry(at);
    if (load_relaxed(oldest.ticket) == at + 1) {
      const bool is_block = load_relaxed(oldest.block) != 0;
      const auto& after = at + 1 == tail() ? shared.put_bytes : entry(at + 1).before;
      if (is_block) freed += load_relaxed(after) - load_relaxed(oldest.before);
      dropped = dropped || is_block;
      remove_entry(at % entries_, Locks::kArenaAndRing);
    }
    store_relaxed(shared.kept, at + 1);
  }
  store_release(shared.putting, std::uint64_t{0});
  unlock(*locks);
  return dropped;
}

// Repairs the ring after a process has died in a put or a drop.
void Ring::repair() noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header().lock) && HeldLocks::contains(arena_->header().arena_lock));
  const std::uint64_t end = tail();
  for (std::uint64_t index = 0; index < entries_; ++index) {
    const std::uint64_t ticket = load_relaxed(entry_at(index).ticket);
    const bool is_there =
        ticket != 0 && ticket <= end && end - (ticket - 1) <= entries_ && (ticket - 1) % entries_ == index;
    if (!is_there) remove_entry(index, Locks::kArenaAndRing);
  }
  std::uint64_t first = first_kept();  // skips what drop_oldest() has removed
  while (first < end && load_relaxed(entry(first).ticket) != first + 1) ++first;
  store_relaxed(header().kept, first);
  const Entry& last = entry(end - 1);
  const std::uint64_t referred = referred_bytes(memory::unpack(load_relaxed(last.block)));
  store_relaxed(header().blocks_end, end);
  store_relaxed(header().put_bytes, end == 0 ? 0 : load_relaxed(last.before) + load_relaxed(last.bytes) + referred);
  store_relaxed(header().putting, std::uint64_t{0});
}

std::uint64_t Ring::write(const Outgoing& outgoing, std::uint64_t bytes, std::uint64_t counted, Locks locks) noexcept {
  SHMTREE_DCHECK(HeldLocks::contains(header().lock) && bytes <= counted);
  SHMTREE_DCHECK(outgoing.held.valid() || (bytes == outgoing.frame.size() && bytes <= inline_bytes()));
  RingHeader& shared = header();
  const std::uint64_t ticket = load_relaxed(shared.tail);
  const std::uint64_t before = load_relaxed(shared.put_bytes);
  const bool is_block = outgoing.held.valid();
  const BlockRef block = outgoing.held.ref();
  store_release(shared.putting, ticket + 1);
  const std::uint64_t index = ticket % entries_;
  Entry& mine = entry_at(index);
  // A process that was killed in remove_entry() may have left a reference of an entry without a ticket.
  const bool is_empty = load_relaxed(mine.ticket) == 0 && references().at(index).id.value == 0;
  // A reader that sees the new words also sees that the old ticket was cleared.
  is_empty ? fence_release() : remove_entry(index, locks);
  if (is_block) references().fill(index, block);
  store_relaxed(mine.block, is_block ? memory::pack(block) : 0);
  store_relaxed(mine.bytes, bytes);
  store_relaxed(mine.before, before);
  if (!is_block) copy_racing(frame_after(mine), outgoing.frame.data(), outgoing.frame.size());
  store_release(mine.ticket, ticket + 1);
  store_relaxed(shared.put_bytes, before + counted);
  if (is_block) store_relaxed(shared.blocks_end, ticket + 1);
  store_release(shared.tail, ticket + 1);
  if (locks == Locks::kArenaAndRing) remove_passed();
  store_release(shared.putting, std::uint64_t{0});
  return ticket;
}

std::string Ring::unread_by(const Cursors::Slowest& slowest) const {
  std::string text = cursors().name(slowest.number);
  text += " not read ";
  text += std::to_string(tail() - std::min(tail(), slowest.position));
  text += " messages of a Broadcast of capacity ";
  text += std::to_string(capacity_);
  if (!cursors().owner_of(slowest.number).claimed) text += ", through a subscription that was never used";
  return text;
}

Error Ring::full(const Cursors::Slowest& slowest, std::uint64_t bytes) const {
  return Error{.code = Code::kFull,
               .message = "no space for " + std::to_string(bytes) + " bytes within the timeout: " + unread_by(slowest)};
}

Result<std::uint64_t> Ring::put(Outgoing& outgoing, const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  if (outgoing.block.valid()) {
    auto lease = arena_->hold_new(std::move(outgoing.block));
    if (!lease) return std::move(lease).error();
    outgoing.held = std::move(*lease);
  }
  const bool is_block = outgoing.held.valid();
  const std::uint64_t frame = is_block ? outgoing.bytes : outgoing.frame.size();
  if (!is_block && frame > inline_bytes())
    return Error{.code = Code::kInvalid,
                 .message = "a frame of " + std::to_string(frame) + " bytes is too large to go inline"};
  std::uint64_t bytes = frame;  // includes the arrays to which the message refers, as max_bytes does
  if (is_block) bytes += referred_bytes(outgoing.held.ref());
  publishing().enter(*me);
  Result<std::uint64_t> ticket = std::uint64_t{0};
  bool is_behind = false;
  // An error while taking the lock ends the wait, too.
  const auto put_now = [&] {
    auto locks = lock_and_repair(is_block ? Locks::kArenaAndRing : Locks::kRing, wait);
    if (!locks) {
      ticket = std::move(locks).error();
      return true;
    }
    const bool has_space = has_space_now(bytes);
    if (has_space) {
      is_behind = load_relaxed(entry(load_relaxed(header().tail)).ticket) != 0;
      ticket = write(outgoing, frame, bytes, *locks);
    }
    unlock(*locks);
    return has_space;
  };
  const auto drop_dead_readers = [&](bool) -> Result<bool> { return drop_dead(); };
  memory::EventWait waiting(header().space, {arena_->participants(), memory::WaitFor::kSpace, memory::pack(block())},
                            wait);
  auto came = memory::wait_until(waiting, wait, "space", put_now, drop_dead_readers,
                                 [&] { return has_space(cursors().slowest(Readers::kBlocking), bytes); });
  if (!came) return std::move(came).error();
  if (!*came) return full(cursors().slowest(Readers::kBlocking), bytes);
  if (!ticket) return ticket;
  announce();
  if (is_behind) poll_for_deaths();
  return ticket;
}

Status Ring::wait_until_passed(std::uint64_t ticket, const WaitContext& wait) {
  if (const std::uint64_t next = tail(); ticket >= next) {
    return Error{Code::kInvalid, "ticket " + std::to_string(ticket) +
                                     " does not exist yet: the Broadcast's next ticket is " + std::to_string(next)};
  }
  const auto has_passed = [&] {
    const Cursors::Slowest now = cursors().slowest(Readers::kBlocking);
    return now.reader == memory::kNoIdentity || now.position > ticket;
  };
  const auto drop_dead_readers = [&](bool) -> Result<bool> { return drop_dead(); };
  memory::EventWait waiting(header().space, {arena_->participants(), memory::WaitFor::kAcks, memory::pack(block())},
                            wait);
  auto came = memory::wait_until(waiting, wait, "readers", has_passed, drop_dead_readers, has_passed);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{
      .code = Code::kTimeout,
      .message = "messages were not read within the timeout: " + unread_by(cursors().slowest(Readers::kBlocking))};
}

Status Ring::wait_for_readers(std::uint64_t count, const WaitContext& wait) {
  drop_dead();
  const auto are_there = [&] { return readers() >= count; };
  const auto drop_dead_readers = [&](bool) -> Result<bool> { return drop_dead(); };
  // Observers have no name for this kind of wait.
  memory::EventWait waiting(header().space, {arena_->participants(), memory::WaitFor::kUnsaid, memory::pack(block())},
                            wait);
  auto came = memory::wait_until(waiting, wait, "subscribers", are_there, drop_dead_readers, are_there);
  if (!came) return std::move(came).error();
  if (*came) return success();
  return Error{.code = Code::kTimeout,
               .message = std::to_string(readers()) + " of " + std::to_string(count) +
                          " subscribers were there within the timeout"};
}

// Wakes all readers, because there is a message, or because no process puts any more.
void Ring::announce() const noexcept {
  notify_all(header().items);
  if (load_relaxed(header().has_bells) == 0) [[likely]]
    return;
  Doorbell::ring(cursors());  // this call executes the fence that must precede the reads of the hubs' bits
  hubs().wake();
}

Status Ring::await(WakeAddress hub) {
  Status asked = hubs().await(hub);
  if (!asked) return asked;
  announce_bells();
  fence_seq_cst();  // a process that puts sees the bit, or this one sees the message
  return success();
}

Status Ring::await_space(WakeAddress hub) {
  Status asked = space_hubs().await(hub);
  if (!asked) return asked;
  store_seq_cst(header().has_space_requests, 1u);
  fence_seq_cst();  // a process that moves a cursor sees the bit, or this one sees the cursor's position
  return success();
}

// Wakes the processes that wait for space. No text is sent while the ring has no space: the process that makes the
// space sends it.
void Ring::announce_space() noexcept {
  notify_all(header().space);  // this call executes the fence that must precede the reads of the hubs' bits and of the
                               // other cursors
  if (load_relaxed(header().has_space_requests) == 0) [[likely]]
    return;
  if (!header().awaiting_space.is_empty() && has_space(cursors().slowest(Readers::kBlocking), 0)) space_hubs().wake();
}

bool Ring::drop_dead() noexcept {
  const bool dropped = cursors().drop_dead();
  if (dropped) free_passed();
  return dropped;
}

// --- Publishers

void Ring::join() noexcept {
  const std::lock_guard guard(ends_mutex_);
  ends_.fetch_add(1, std::memory_order_relaxed);
  note_role();
}

void Ring::note_object() const noexcept {
  if (tail() != 0) return;
  const std::lock_guard guard(ends_mutex_);
  note_role();
}

// Under the mutex.
void Ring::note_role() const noexcept {
  const bool can_put = ends_.load(std::memory_order_relaxed) != 0;
  if (tail() == 0) publishing().attach(can_put ? PublisherRole::kOpened : PublisherRole::kReads);
}

void Ring::part(Failure failure) noexcept {
  {
    const std::lock_guard guard(ends_mutex_);
    if (failure != Failure::kNone) failure_ = failure;
    SHMTREE_DCHECK(ends_.load(std::memory_order_relaxed) != 0);
    ends_.fetch_sub(1, std::memory_order_relaxed);
  }
  after_use();
}

// Under the mutex, so that an object that joins meanwhile finds the word removed, and its put sets it again.
void Ring::leave_if_unused() noexcept {
  {
    const std::lock_guard guard(ends_mutex_);
    if (ends_.load(std::memory_order_relaxed) != 0 || is_in_use(this)) return;
    const Failure failure = std::exchange(failure_, Failure::kNone);
    if (!publishing().leave(failure == Failure::kNone ? memory::exit_failure() : failure)) return;
    note_role();
  }
  announce();
}

void Ring::leave() noexcept {
  if (!publishing().leave()) return;
  if (tail() == 0) publishing().attach(PublisherRole::kReads);
  announce();
}

// Processes that wait for the first message do not count as publishers for each other.
void Ring::note_reader() const noexcept {
  if (tail() == 0 && publishing().attach(PublisherRole::kReads)) announce();
}

// True if the control block is in transit, or if a process holds it that has not set its word yet. An example is a
// child that is just starting.
bool Ring::may_have_other_publishers() const noexcept {
  bool found = arena_->transfers().is_in_transit(memory::pack(block()), memory::Transferred::kMemory);
  const std::uint32_t mine = memory::slot_of(arena_->current_identity());
  arena_->blocks().entry(block().id)->holders.for_each([&](std::uint32_t slot) {
    found = found || (slot != mine && arena_->participants().is_owner_alive(slot) && !publishing().has_word(slot));
  });
  return found;
}

Status Ring::check_publishers() const {
  if (has_flag(kWaits)) return success();
  using Stream = memory::Publishers::Stream;
  if (tail() != 0) return publishing().check(Stream::kBegun, "published");
  const auto check_first = [&] { return publishing().check(Stream::kNotBegun, "could publish"); };
  if (check_first() || may_have_other_publishers()) return success();
  return check_first();  // a process may have set its word since the first check
}

bool Ring::has_space() noexcept {
  return has_space(cursors().slowest(Readers::kBlocking), 0) ||
         (drop_dead() && has_space(cursors().slowest(Readers::kBlocking), 0));
}

std::uint64_t Ring::unread_before(std::uint64_t ticket) const noexcept {
  return ticket - std::min(ticket, cursors().slowest(Readers::kBlocking).position);
}

std::optional<Ring::Blocker> Ring::unused_blocker() const {
  const Cursors::Slowest now = cursors().slowest(Readers::kBlocking);
  const Owner owner = cursors().owner_of(now.number);
  if (now.reader == memory::kNoIdentity || now.position == tail() || owner.claimed) return std::nullopt;
  return Blocker{now.position, cursors().name(now.number)};
}

void Ring::wake() noexcept {
  notify_all(header().items);
  notify_all(header().space);
}

void Ring::leave_all() noexcept {
  for (const auto& ring : rings().all()) ring->leave();
}

// --- Reading

std::uint64_t Ring::oldest() const noexcept {
  const std::uint64_t end = tail();
  return std::min(end, std::max(load_acquire(header().kept), end - std::min(end, std::max(capacity_, history_))));
}

namespace {

Error overwritten() {
  return Error{.code = Code::kNotFound, .message = "the message was overwritten"};
}
Error damaged() {
  return Error{.code = Code::kCorrupt, .message = "the shared state of this Broadcast is damaged"};
}

}  // namespace

// Pins the block of an entry that was read.
Result<Lease> Ring::hold(const Entry& from, std::uint64_t ticket, BlockRef block, std::uint64_t bytes) const {
  if (!arena_->blocks().is_current(block)) return overwritten();
  auto held = arena_->hold_while(block, from.ticket, ticket + 1);
  if (!held) return held;
  const memory::BlockEntry* listed = arena_->blocks().entry(block.id);
  const bool fits = memory::is_kind(*listed, BlockKind::kPublished) && bytes <= held->bytes() &&
                    bytes <= arena_->blocks().capacity_of(block.id) && arena_->blocks().is_current(block);
  if (!fits) return damaged();
  return held;
}

Result<Lease> Ring::read_block(std::uint64_t ticket, std::uint64_t* bytes) const {
  const Entry& from = entry(ticket);
  if (load_acquire(from.ticket) != ticket + 1) return overwritten();
  const BlockRef block = memory::unpack(load_relaxed(from.block));
  *bytes = load_relaxed(from.bytes);
  fence_acquire();  // what was read is that message's, if it still is the entry's
  if (load_relaxed(from.ticket) != ticket + 1) return overwritten();
  return hold(from, ticket, block, *bytes);
}

Status Ring::read(std::uint64_t ticket, Incoming& message) const {
  Entry& from = entry(ticket);
  if (load_acquire(from.ticket) != ticket + 1) return overwritten();
  const std::uint64_t packed = load_relaxed(from.block), bytes = load_relaxed(from.bytes);
  if (packed == 0) copy_racing(message.small, frame_after(from), std::min(bytes, inline_bytes()));
  fence_acquire();  // what was read is that message's, if it still is the entry's
  if (load_relaxed(from.ticket) != ticket + 1) return overwritten();
  if (packed == 0 && bytes > inline_bytes()) return damaged();
  message.ticket = ticket;
  message.bytes = bytes;
  message.block.reset();
  if (packed == 0) return success();
  auto held = hold(from, ticket, memory::unpack(packed), bytes);
  if (!held) return std::move(held).error();
  message.block = std::move(*held);
  return success();
}

// Removes the messages that every reader has passed, if this process gets both locks without waiting. Otherwise the
// next process that puts or passes a message removes them.
void Ring::free_passed() noexcept {
  announce_space();
  if (!has_passed_blocks()) return;
  if (!arena_->reclaimer().try_lock()) return;
  if (memory::RobustLock(header().lock, arena_->participants()).try_lock()) {
    if (load_relaxed(header().putting) == 0) remove_passed();
    arena_->unlock(header().lock);
  }
  arena_->reclaimer().unlock();
}

}  // namespace shmtree::broadcast
