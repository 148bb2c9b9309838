#include "channel/tap.h"

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "memory/held_locks.h"
#include "memory/robust_lock.h"
#include "platform/dcheck.h"
#include "platform/never_destroyed.h"
#include "platform/wait_policy.h"
#include "platform/weak_registry.h"

namespace shmtree::channel {

using namespace platform;
using memory::slot_of;

namespace {

constexpr std::uint64_t kShareOfNotes = 16, kShareOfKept = 8;  // divisors of the arena's budget
constexpr std::uint64_t kShareOfFree = 4;                      // divisor of its free memory
constexpr std::int64_t kMemoryWithinNs = 500'000'000, kCloseWithinNs = 2'000'000'000;

platform::WeakRegistry<Tap>& taps() noexcept {
  return never_destroyed<platform::WeakRegistry<Tap>>();
}

// Returns a small number if little memory is free, so that a tap can be opened in an arena that is almost full, and
// leaves the memory to the senders.
std::uint64_t number_of_notes(const Arena& arena, std::uint64_t note_bytes, bool times_only) noexcept {
  const memory::BlockPool& pool = arena.pool();
  const std::uint64_t share = std::min(pool.max_bytes() / kShareOfNotes, pool.free_bytes() / kShareOfFree);
  return std::clamp(std::bit_floor(share / note_bytes), kMinTapNotes, max_tap_notes(times_only));
}

// True if the channel has a tap that is alive. Under both locks.
bool is_tapped(const Control& control) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control.shared.senders_lock) &&
                 memory::HeldLocks::contains(control.shared.receivers_lock));
  const auto notes = TapNotes::at(control.arena.blocks(), control.slot_bytes, load_relaxed(control.shared.tap));
  return notes && control.arena.participants().is_alive(load_once(notes->header().owner));
}

// Both locks of a channel, under which a tap begins and ends. Never waits for one while it holds the other. Senders
// would wait as well, and a wait may have to run a repair, which takes both.
class BothLocks {
 public:
  explicit BothLocks(const Control& control) noexcept : control_(control) {}
  ~BothLocks() {
    if (!held_) return;
    control_.arena.unlock(control_.shared.receivers_lock);
    control_.arena.unlock(control_.shared.senders_lock);
  }
  BothLocks(const BothLocks&) = delete;
  BothLocks& operator=(const BothLocks&) = delete;

  Status take(const WaitContext& wait) {
    SHMTREE_DCHECK(!held_);
    Arena& arena = control_.arena;
    memory::RobustLock receivers(control_.shared.receivers_lock, arena.participants());
    for (;;) {
      Status senders = arena.lock(control_.shared.senders_lock, wait);
      if (!senders) return senders;
      held_ = receivers.try_lock();
      if (held_) return success();
      arena.unlock(control_.shared.senders_lock);
      if (wait.deadline.passed())
        return Error{Code::kTimeout, "timed out: the channel's two locks were never free at the same time"};
      Status free = arena.lock(control_.shared.receivers_lock, wait);
      if (!free) return free;
      arena.unlock(control_.shared.receivers_lock);
    }
  }

 private:
  const Control& control_;
  bool held_ = false;
};

}  // namespace

Result<std::shared_ptr<Tap>> Tap::open(const Control& control, const Ends& ends, std::shared_ptr<const void> keeps,
                                       Wants wants, const WaitContext& wait) {
  Arena& arena = control.arena;
  static constinit ForkHandlers handlers{
      .child = [] { taps().for_each_unlocked([](Tap& tap, bool) { tap.slot_.lock.reset(); }); }};
  add_fork_handlers(handlers);
  auto me = arena.identity();
  if (!me) return std::move(me).error();
  const bool times_only = wants == Wants::kTimes;
  const std::uint64_t note_bytes = tap_note_bytes(control.slot_bytes, times_only);
  const std::uint64_t count = number_of_notes(arena, note_bytes, times_only);
  auto block = arena.allocate(sizeof(TapHeader) + count * note_bytes, memory::BlockKind::kDeliveries,
                              {Deadline::after_ns(kMemoryWithinNs), wait.hooks});
  if (!block) {
    Error error = std::move(block).error();
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  auto slot = arena.reconciler().reserve_slot();
  if (!slot) return std::move(slot).error();
  auto* header = new (block->data()) TapHeader{};
  header->owner = slot->identity;
  header->count = static_cast<std::uint32_t>(count);
  header->max_bytes = arena.pool().max_bytes() / kShareOfKept;
  header->times_only = times_only;
  for (std::uint64_t i = 0; i < count; ++i) new (block->data() + sizeof(TapHeader) + i * note_bytes) TapNote{};
  const BlockRef ref = block->ref();
  const auto notes = TapNotes::at(control.arena.blocks(), control.slot_bytes, memory::pack(ref));
  if (!notes) return Error{Code::kCorrupt, "the arena's table of blocks is damaged"};
  arena.blocks().entry(ref.id)->holders.add(slot_of(slot->identity));
  block->publish();
  std::shared_ptr<Tap> tap(new Tap(control, ends, std::move(keeps), std::move(*slot), ref, *notes, wants));
  taps().insert(tap, [](const Tap&) { return false; });
  tap->next_ = load_relaxed(control.shared.tail);            // its end if open() fails below
  arena.participants().keep_lock_from_children(tap->slot_);  // from children forked meanwhile
  BothLocks locks(control);
  if (Status taken = locks.take(wait); !taken) return std::move(taken).error();
  if (is_tapped(control)) return Error{Code::kInvalid, "the channel already has a tap, and supports one at a time"};
  tap->next_ = load_relaxed(control.shared.tail);
  store_relaxed(tap->notes_.header().read, tap->next_);
  store_release(control.shared.tap, memory::pack(ref));
  store_release(control.shared.timed, std::uint32_t{times_only});
  return tap;
}

// Waits for the locks only for a limited time, since a stopped process may hold one. On a timeout, this participant is
// dead as soon as its slot is abandoned, and recovery does the rest.
Tap::~Tap() {
  taps().erase(this);
  if (!is_mine()) return;
  release();
  if (stop({Deadline::after_ns(kCloseWithinNs), nullptr})) {
    taken_ = std::min(end() - next_, notes_.count());
    next_ += taken_;
    release();
    Arena& arena = control_.arena;
    if (arena.blocks().entry(block_.id)->holders.take(slot_of(slot_.identity))) arena.reclaimer().collect(block_);
  }
  control_.arena.participants().abandon(std::move(slot_));
}

std::uint64_t Tap::end() const noexcept {
  return stopped_at_.value_or(load_acquire(control_.shared.tail));
}

// Visits notes below `end` until look(note) has returned true for `most` of them. The caller's load of `end` makes the
// notes below it visible.
template <class Look>
void Tap::take_notes(std::uint64_t end, std::size_t most, Look look) {
  SHMTREE_DCHECK(taken_ <= next_);
  for (std::size_t seen = 0; next_ < end && seen < most; ++next_, ++taken_) {
    if (taken_ >= notes_.count()) {  // none of these has a note
      missed_ += end - next_;
      taken_ += end - next_;
      next_ = end;
      break;
    }
    const TapNote& note = notes_.of(next_);
    if (load_acquire(note.ticket) == next_ + 1 && look(note)) {
      ++seen;
    } else {
      ++missed_;
    }
  }
}

std::vector<Tap::Seen> Tap::take(std::size_t most) {
  std::vector<Seen> seen;
  if (!is_mine() || wants_ != Wants::kMessages) return seen;
  seen.reserve(most);
  take_notes(end(), most, [&](const TapNote& note) {
    Seen one{.ticket = next_, .put_ns = 0, .frame = {}, .block = {}};
    if (!look_at(note, one)) return false;
    seen.push_back(one);
    return true;
  });
  return seen;
}

std::vector<Tap::Times> Tap::take_times(std::size_t most, bool also_queued) {
  std::vector<Times> times;
  if (!is_mine() || wants_ != Wants::kTimes) return times;
  times.reserve(most);
  const std::uint64_t received = load_acquire(control_.shared.head), end = this->end();
  take_notes(also_queued ? end : std::min(end, received), most, [&](const TapNote& note) {
    const bool is_received = next_ < received;
    times.push_back({.ticket = next_,
                     .put_ns = load_relaxed(note.put_ns),
                     .put_pid = load_relaxed(note.put_pid),
                     .put_thread = load_relaxed(note.put_thread),
                     .got_ns = is_received ? load_relaxed(note.got_ns) : 0,
                     .got_pid = is_received ? load_relaxed(note.got_pid) : 0,
                     .got_thread = is_received ? load_relaxed(note.got_thread) : 0});
    return true;
  });
  return times;
}

// Reads a note, of which any word may be damaged.
bool Tap::look_at(const TapNote& note, Seen& seen) const noexcept {
  memory::BlockTable& blocks = control_.arena.blocks();
  const std::uint64_t bytes = load_relaxed(note.frame_bytes), packed = load_relaxed(note.block);
  seen.put_ns = load_relaxed(note.put_ns);
  if (packed == 0) {
    seen.frame = {note.inline_data(), bytes};
    return bytes <= control_.inline_bytes();
  }
  seen.block = memory::unpack(packed);
  if (!blocks.is_current(seen.block) || blocks.address(seen.block.id) == nullptr) return false;
  if (!blocks.entry(seen.block.id)->holders.contains(slot_of(slot_.identity))) return false;
  seen.frame = {blocks.address(seen.block.id), bytes};
  return bytes <= blocks.capacity_of(seen.block.id);
}

// A Dekker handshake with a receiver. The tap clears its bit, then reads `head`. The receiver advances `head`, clears
// its own bit, then reads all bits. So at least one of them frees the block.
void Tap::release_note(TapNote& note, std::uint64_t ticket) noexcept {
  Arena& arena = control_.arena;
  const std::uint64_t packed = load_relaxed(note.block);
  if (packed == 0) return;
  const BlockRef ref = memory::unpack(packed);
  const bool held =
      arena.blocks().is_current(ref) && arena.blocks().entry(ref.id)->holders.take(slot_of(slot_.identity));
  store_relaxed(note.block, std::uint64_t{0});
  fence_seq_cst();
  if (held && load_seq_cst(control_.shared.head) > ticket) arena.reclaimer().collect(ref);
}

void Tap::release() noexcept {
  if (taken_ == 0 || !is_mine()) return;
  TapHeader& header = notes_.header();
  std::uint64_t out = load_relaxed(header.bytes_out);
  const std::uint64_t first = next_ - taken_;
  for (std::uint64_t ticket = first; ticket != first + std::min(taken_, notes_.count()); ++ticket) {
    TapNote& note = notes_.of(ticket);
    if (load_relaxed(note.ticket) != ticket + 1) continue;
    release_note(note, ticket);
    out = load_relaxed(note.bytes);
  }
  taken_ = 0;
  store_release(header.bytes_out, out);
  store_release(header.read, next_);  // the notes may be overwritten
}

bool Tap::is_over(const WaitContext& wait) {
  if (!is_mine()) return true;
  Arena& arena = control_.arena;
  if (arena.participants().check(wait_policy::kLongPollIntervalNs)) static_cast<void>(arena.reconcile(wait));
  const bool ends = stopped_at_.has_value() || ends_.is_over(End::kSending);
  return ends && next_ >= end();  // the end was checked first
}

Status Tap::stop(const WaitContext& wait) {
  if (stopped_at_ || !is_mine()) return success();
  ChannelHeader& shared = control_.shared;
  BothLocks locks(control_);
  if (Status taken = locks.take(wait); !taken) return taken;
  if (load_relaxed(shared.tap) == memory::pack(block_)) {
    store_release(shared.timed, std::uint32_t{0});
    store_release(shared.tap, std::uint64_t{0});
  }
  stopped_at_ = load_relaxed(shared.tail);
  return success();
}

}  // namespace shmtree::channel
