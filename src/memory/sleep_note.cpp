#include "memory/sleep_note.h"

#include <cstdint>

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/dcheck.h"
#include "platform/machine.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;

namespace {

// A sleeping thread updates `since_ns` at the end of each slice. If the value is two slices old, the thread was killed.
constexpr std::uint64_t kMaxUncountedNs = 2 * wait_policy::kLaterSliceNs;

Wait* take_entry(Participant& mine) noexcept {
  for (Wait& entry : mine.waits) {
    auto free = static_cast<std::uint32_t>(WaitFor::kNothing);
    if (load_relaxed(entry.what) == free &&
        compare_swap(entry.what, free, static_cast<std::uint32_t>(WaitFor::kUnsaid)))
      return &entry;
  }
  return nullptr;
}

// Returns the time since `then_ns`, or 0 if that word is damaged.
std::uint64_t since(std::int64_t then_ns, std::int64_t now_ns) noexcept {
  return then_ns > 0 && then_ns < now_ns ? static_cast<std::uint64_t>(now_ns - then_ns) : 0;
}

// The thread that advances `since_ns` counts the time in between.
void count_until(SleepTime& time, std::int64_t now_ns) noexcept {
  std::int64_t then = load_acquire(time.since_ns);
  const std::uint64_t slept = since(then, now_ns);
  if (slept != 0 && compare_swap(time.since_ns, then, now_ns)) add(time.slept_ns, slept);
}

void open(SleepTime& time, std::int64_t now_ns) noexcept {
  std::int64_t expected = 0;
  compare_swap(time.since_ns, expected, now_ns);
}

}  // namespace

SleepNote::SleepNote(const SleepReason& reason, std::int64_t since_ns, std::int64_t now_ns,
                     std::uint32_t threads) noexcept
    : reason_(reason), me_(reason.participants.current()) {
  if (me_ == kNoIdentity) return;
  Participant& mine = reason.participants.slot_of_identity(me_);
  entry_ = take_entry(mine);
  if (entry_ == nullptr) return;
  if (threads != 0) store_relaxed(mine.threads, threads);
  store_relaxed(entry_->about, reason.about);
  store_relaxed(entry_->since_ns, since_ns);
  store_relaxed(entry_->thread, thread_id());
  const std::uint32_t for_ever = threads != 0 ? kWaitsForEver : 0;
  store_seq_cst(entry_->what,
                static_cast<std::uint32_t>(reason.what) | for_ever);  // the entry is complete before the bit is set
  if (reason.time != nullptr) begin(*reason.time, now_ns);
}

// A child that was forked in a signal handler does not sleep, and must not change its parent's words.
SleepNote::~SleepNote() {
  if (entry_ == nullptr || reason_.participants.current() != me_) return;
  store_seq_cst(entry_->what, static_cast<std::uint32_t>(WaitFor::kNothing));
  if (reason_.time != nullptr) end(*reason_.time);
}

void SleepNote::begin(SleepTime& time, std::int64_t now_ns) const noexcept {
  SHMTREE_DCHECK(me_ != kNoIdentity && entry_ != nullptr);
  time.sleepers.add(slot_of(me_));
  std::int64_t then = load_acquire(time.since_ns);
  if (then != 0 && since(then, now_ns) <= kMaxUncountedNs) return;
  compare_swap(time.since_ns, then, now_ns);
}

// Other threads may begin at any moment: each sets its bit and then reads `since_ns`. This thread changes `since_ns`
// and then reads the bits again. So at least one of them opens it.
void SleepNote::end(SleepTime& time) const noexcept {
  const std::int64_t now = monotonic_ns();
  while (!others_of_process_sleep()) {
    time.sleepers.remove(slot_of(me_));
    if (!others_of_process_sleep()) break;
    time.sleepers.add(slot_of(me_));  // another thread began, and may have seen the bit set; it may have ended, too
  }
  count_until(time, now);
  if (!time.sleepers.is_empty()) return;
  const std::uint64_t more = since(exchange_seq_cst(time.since_ns, std::int64_t{0}), now);
  if (more != 0) add(time.slept_ns, more);
  if (!time.sleepers.is_empty()) open(time, now);
}

bool SleepNote::others_of_process_sleep() const noexcept {
  for (const Wait& other : reason_.participants.slot_of_identity(me_).waits) {
    const WaitFor what = what_of_wait(load_seq_cst(other.what));
    if (load_relaxed(other.about) == reason_.about && is_counted_with(what, reason_.what)) return true;
  }
  return false;
}

}  // namespace shmtree::memory
