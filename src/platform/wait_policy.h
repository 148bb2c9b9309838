// How long the library waits on its own account, each with its reason. What its users wait for has their deadlines.
#pragma once

#include <cstdint>

namespace shmtree::platform::wait_policy {

// --- Looking who is alive

// How long ago somebody may have done that, for a call that is about to refuse or to wait (a look costs a system call
// for each participant, which a burst of refusals would repeat), and for one that is waiting: as long as its later
// slices.
constexpr std::int64_t kLookedJustNowNs = 5'000'000, kLookedLatelyNs = 250'000'000;
constexpr std::int64_t alive_within_ns(bool waiting) noexcept {
  return waiting ? kLookedLatelyNs : kLookedJustNowNs;
}
// For a recovery on the way of a call that does not wait: a stopped process may stand in the way.
constexpr std::int64_t kRecoverInPassingNs = 100'000'000;

// --- Sleeping at an event (memory/event.h)

// Whoever should wake a sleeper may die before, so it looks again after a slice: short ones in the first stretch, when
// most waits end; longer ones later, when a look costs more than it finds.
constexpr std::int64_t kFirstSliceNs = 50'000'000, kFirstStretchNs = 1'000'000'000, kLaterSliceNs = 250'000'000;

// --- Yielding the core to a thread that was woken (memory/event.cpp)

// A call yields only if its process has woken no thread for this long.
constexpr std::int64_t kRareWakeNs = 500'000;
// A yield that took longer than this gave the core to another process, which kept it.
constexpr std::int64_t kCoreWasKeptNs = 200'000;
// Wake-ups without a yield after that: at first, and at most.
constexpr std::int32_t kFirstUnoffered = 16, kMostUnoffered = 4096;

// --- Proving that a call waits for ever (channel/deadlock.h)

// Time between the two walks of a deadlock proof. Longer than a slice, so that a thread that was woken has moved.
constexpr std::int64_t kDeadlockNs = 300'000'000;

// --- Waiting for a lock (memory/robust_lock.h)

// About 5 us: longer than any critical section.
constexpr int kLockSpins = 200;
// How long a sleeper may miss a wake-up, or a death; and the least, lest a deadline that is over make it spin.
constexpr std::int64_t kLockSliceNs = 20'000'000, kLeastLockSliceNs = 4'000'000;
// A lock is waited for at least this long, whatever the deadline: what is in the channel is there all the same.
constexpr std::int64_t kLockGraceNs = 40'000'000;
// Longest wait of a destructor for a lock; it may hold Python's GIL. Without the lock, recovery does the rest. Longer
// than a time slice of the scheduler, which may have preempted the lock's owner.
constexpr std::int64_t kDropLockNs = 10'000'000;
// An owner that is not stopped lacks a processor: it is waited for that long.
constexpr std::int64_t kBusyOwnerNs = 2'000'000'000;

// --- Writing a shared array (memory/versions.h)

// How long a writer lets a reader go first that was overtaken: longer than a copy takes.
constexpr std::int64_t kReaderGraceNs = 2'000'000'000;

// --- Waiting for memory (memory/allocator.h)

// For memory that only held blocks keep, whose holders may be about to let go of them.
constexpr std::int64_t kHoardPatienceNs = 1'000'000'000;

// --- Spinning before a sleep (channel/spinner.h)

// About what it takes to be woken: a longer spin costs more than it saves.
constexpr std::int64_t kSpinNs = 50'000;
// A spin that took so long was preempted: the kernel's shortest time slice is longer than this, an interrupt shorter.
constexpr std::int64_t kPreemptedNs = 4 * kSpinNs;
// Checks of the condition between two reads of the clock, each of which takes as long as a few checks.
constexpr int kLooksPerClock = 8;
// Spins that may fail before there are none: at first, and at most. One late message must not end spinning.
constexpr std::int32_t kFirstFailures = 3, kMostFailures = 8;
// Where spins do not pay: waits without one before the next try, doubled with every one that fails.
constexpr std::int32_t kFirstSkips = 32, kMostSkips = 1024;
// A wait that was over so soon has caught up with the other side.
constexpr std::int64_t kAtOnceNs = 700;
// How long nothing is looked at then: at first, and at most. Longer, it would be too long for what it saves.
constexpr std::int64_t kFirstBackoffNs = 250, kMostBackoffNs = 10'000;
// As many messages, or places, as are worth being waited for in that way.
constexpr std::uint64_t kEnoughMessages = 32;

// --- Waiting for a thread that wakes nobody (platform/brief_wait.h)

// About 20 us: as long as the system calls take that the other thread may be in.
constexpr int kBriefSpins = 1024;

// --- Wake-ups of poll loops (channel/watchers.h)

// For a byte that was announced: its sender has only to send it, unless it is stopped or has died.
constexpr std::int64_t kAnnouncedWakeNs = 50'000'000;
// For another thread to get a message that a poll loop is told of again: about as long as it takes to be scheduled at
// first, then twice as long each time, where it has to wait for a core.
constexpr std::int64_t kGetterFirstNs = 20'000, kMostGetterFirstNs = 1'000'000;
// A thread that began to wait longer ago than this may not be there any more.
constexpr std::int64_t kGetterIsThereNs = 1'000'000'000;

}  // namespace shmtree::platform::wait_policy
