// Durations and limits of the library's internal waits, each with its reason. Waits on behalf of users follow the
// users' deadlines.
#pragma once

#include <cstdint>

namespace shmtree::platform::wait_policy {

// --- Checking for deaths

// Maximum age of the last check for deaths. First: for a call that is about to fail or to wait. A check costs a system
// call for each participant, and a burst of failures would repeat it. Second: for a call that is waiting, as long as
// its later slices.
constexpr std::int64_t kShortPollIntervalNs = 5'000'000, kLongPollIntervalNs = 250'000'000;
constexpr std::int64_t alive_within_ns(bool waiting) noexcept {
  return waiting ? kLongPollIntervalNs : kShortPollIntervalNs;
}
// Time limit of a recovery in a call that does not wait, since a stopped process may block it.
constexpr std::int64_t kRecoverInPassingNs = 100'000'000;

// --- Sleeping at an event (memory/event.h)

// The process that should wake a sleeper may die first, so the sleeper checks again after each slice. Slices are short
// at first, when most waits end, and longer later, when a check costs more than it finds.
constexpr std::int64_t kFirstSliceNs = 50'000'000, kFirstStretchNs = 1'000'000'000, kLaterSliceNs = 250'000'000;

// --- Yielding the core to a thread that was woken (memory/event.cpp)

// A call yields only if its process has woken no thread for this long.
constexpr std::int64_t kRareWakeNs = 500'000;
// A yield that took longer than this gave the core to another process, which kept it.
constexpr std::int64_t kCoreWasKeptNs = 200'000;
// Wake-ups without a yield after that: at first, and at most.
constexpr std::int32_t kFirstUnoffered = 16, kMaxUnoffered = 4096;

// --- Proving that a call is deadlocked (channel/peer_wait.h)

// Time between the two walks of a deadlock proof. Longer than a slice, so that a thread that was woken has moved.
constexpr std::int64_t kDeadlockNs = 300'000'000;

// --- Waiting for a lock (memory/robust_lock.h)

// About 5 us, longer than any critical section.
constexpr int kLockSpins = 200;
// Maximum duration of one sleep, after which the thread checks again, in case that it missed a wake-up or a death. The
// minimum keeps a thread whose deadline has passed from spinning.
constexpr std::int64_t kLockSliceNs = 20'000'000, kMinLockSliceNs = 4'000'000;
// Minimum wait for a lock, even if the deadline has passed: a call with timeout 0 must still get a message that is in
// the channel.
constexpr std::int64_t kLockGraceNs = 40'000'000;
// Longest wait of a destructor for a lock; it may hold Python's GIL. Without the lock, recovery does the rest. Longer
// than a time slice of the scheduler, which may have preempted the lock's owner.
constexpr std::int64_t kDropLockNs = 10'000'000;
// Time to wait for a lock's owner that is not stopped: it probably waits for a core.
constexpr std::int64_t kBusyOwnerNs = 2'000'000'000;

// --- Writing a shared array (shared_array/versions.h)

// Longest time for which a writer waits for a reader whose copies failed because of earlier writes. Longer than one
// copy.
constexpr std::int64_t kReaderGraceNs = 2'000'000'000;

// --- Waiting for memory (memory/allocator.h)

// Time to wait for memory that only pinned blocks occupy, since their holders may be about to release them.
constexpr std::int64_t kHoardPatienceNs = 1'000'000'000;
// Time to wait for memory that other processes have claimed, since their claims may be about to end.
constexpr std::int64_t kClaimPatienceNs = 40'000'000;

// --- Spinning before a sleep (platform/spin.h)

// Approximate cost of a wake-up: a longer spin costs more than it saves.
constexpr std::int64_t kSpinNs = 50'000;
// A spin that took this long was preempted: the kernel's shortest time slice is longer, and an interrupt is shorter.
constexpr std::int64_t kPreemptedNs = 4 * kSpinNs;
// Checks of the condition between two reads of the clock, each of which takes as long as a few checks.
constexpr int kPollsPerClock = 8;
// First and maximum number of failed spins after which spinning stops. A single late message must not stop it.
constexpr std::int32_t kFirstFailures = 3, kMaxFailures = 8;
// Number of waits that skip the spin, doubled with every try that fails. Also used by platform/spin.h.
constexpr std::int32_t kFirstSkips = 32, kMaxSkips = 1024;
// A wait that takes less time than this has succeeded at once. Later waits then begin with a backoff (Spinner).
constexpr std::int64_t kAtOnceNs = 700;
// First and maximum duration of that backoff. A longer one would cost more than it saves.
constexpr std::int64_t kFirstBackoffNs = 250, kMaxBackoffNs = 10'000;
// Maximum number of messages, or free slots, that a backoff waits for.
constexpr std::uint64_t kEnoughMessages = 32;

// --- Spinning that a program asks for (platform/spin.h)

// Polls between two reads of the clock: about 1 us.
constexpr int kSpinPollsPerClock = 32;
// Number of spins in a row that end in vain, after which waits sleep at once: a program that is idle for a moment has
// fewer. Maximum number of these waits.
constexpr std::int32_t kVainSpins = 4, kMaxVainSkips = 256;
// Maximum time without a check for deaths and signals.
constexpr std::int64_t kSpinSliceNs = 10'000'000;

// --- Waiting for a thread that sends no wake-up (platform/brief_wait.h)

// About 20 us, the duration of the system calls that the other thread may be in.
constexpr int kBriefSpins = 1024;

// --- Wake-ups of poll loops (channel/watchers.h)

// Maximum wait for an announced byte. Its sender is about to send it, unless it is stopped or dead.
constexpr std::int64_t kAnnouncedWakeNs = 50'000'000;
// Time for another thread to receive a message of which a poll loop is notified again. At first about the time to be
// scheduled, then doubled each time, in case the thread waits for a core.
constexpr std::int64_t kGetterFirstNs = 20'000, kMaxGetterFirstNs = 1'000'000;
// A thread that began to wait longer ago than this may no longer exist.
constexpr std::int64_t kGetterIsThereNs = 1'000'000'000;

}  // namespace shmtree::platform::wait_policy
