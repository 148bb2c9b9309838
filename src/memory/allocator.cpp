#include "memory/allocator.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "memory/event.h"
#include "memory/held_locks.h"
#include "platform/clock.h"
#include "platform/dcheck.h"
#include "platform/file.h"
#include "platform/memory_claim.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::uint64_t kLarge = 1u << 20;  // larger commits check the machine's memory before the arena lock is taken
constexpr std::uint64_t kStep = 16u << 20;  // of a large commit; programs may take memory meanwhile
constexpr std::int64_t kNoGrowthNs = 1'000'000'000;

// Until this time, reuse resting blocks rather than commit new pages: the machine was out of memory.
std::atomic<std::int64_t> g_no_growth_until_ns{0};

std::atomic<Allocator::Shrinker> g_shrinker{nullptr};

std::string in_words(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes";
}

// Commits pages. Returns 0, errno, or kNoMemory if the machine and its control groups have no memory for them.
constexpr int kNoMemory = -1;
int commit_if_it_fits(int fd, std::uint64_t offset, std::uint64_t bytes, WaitHooks* hooks) noexcept {
  const auto credit = bytes <= kLarge ? MemoryClaim::Credit::kShared : MemoryClaim::Credit::kNone;
  for (const Deadline patience = Deadline::after_ns(wait_policy::kClaimPatienceNs);;) {
    {
      MemoryClaim claim(bytes, credit);
      if (claim.answer() == MemoryClaim::Answer::kFits) {
        int failure = 0;
        for (std::uint64_t done = 0; done < bytes && failure == 0; done += kStep) {
          const std::uint64_t step = std::min(kStep, bytes - done);
          if (done != 0 && !claim.still_fits()) return kNoMemory;
          failure = try_commit_pages(fd, offset + done, step);
          claim.committed(step);
        }
        return failure;
      }
      if (claim.answer() == MemoryClaim::Answer::kTooLittle || patience.passed()) return kNoMemory;
    }
    const BlockingScope blocking(hooks);
    pause_briefly();
  }
}

}  // namespace

void Allocator::set_shrinker(Shrinker shrinker) noexcept {
  g_shrinker.store(shrinker, std::memory_order_release);
}

// Allocates the pages that `committed` already counts. If that fails, frees the block and corrects the count.
Result<OwnedBlock> Allocator::commit(const BlockPool::Taken& taken, Identity me, const Request& request,
                                     const WaitContext& wait, bool* short_of_machine) {
  const std::uint64_t need = request.pages, had = std::min(taken.had, need);
  SHMTREE_DCHECK(taken.data != nullptr && request.bytes <= need &&
                 need <= std::uint64_t{1} << taken.ref.id.size_class());
  int failure = 0;
  if (need > had) {
    // Leaves the block as if the process were killed here: without descriptors, it counts as dead for the others.
    if (Status kept = parts_.participants.check_descriptors(); !kept) return std::move(kept).error();
    const std::uint64_t more = need - had, from = parts_.table.geometry().data_offset(taken.ref.id) + had;
    const BlockingScope blocking(more > kLarge ? wait.hooks : nullptr);
    failure = commit_if_it_fits(parts_.mapping.file().number(), from, more, more > kLarge ? nullptr : wait.hooks);
  }
  if (failure == kNoMemory) {
    parts_.reclaimer.give_back(taken.ref, had, need - had);
    *short_of_machine = true;
    return OwnedBlock{};
  }
  if (failure == 0) return OwnedBlock(parts_.reclaimer, taken, me, request.bytes, need > had);
  parts_.reclaimer.give_back(taken.ref, had, need - had);  // before the error, for which memory may be short too
  Error error = os_error("the system has no memory for a shared block of " + in_words(need), failure);
  error.code = Code::kOutOfSharedMemory;
  return error;
}

// Returns true if the machine has memory for `need` bytes of pages. Free blocks already have pages, but how many of
// these the new block will reuse is known only under the lock. So this first assumes that it reuses all of them, and
// after an eviction that it reuses none.
bool Allocator::free_machine_memory(std::uint64_t need, const WaitContext& wait) {
  const std::uint64_t idle = parts_.pool.idle_bytes();
  return need <= idle || has_memory_for(need - idle) || (evict(need, wait) != 0 && has_memory_for(need));
}

// Makes one attempt. Returns an invalid block if there is no space now.
Result<OwnedBlock> Allocator::try_allocate(const Request& request, const WaitContext& wait, bool* short_of_machine) {
  const unsigned size_class = parts_.table.geometry().class_for(request.bytes);
  SHMTREE_DCHECK(size_class <= parts_.table.geometry().max_class());
  const std::uint64_t need = request.pages;
  // Does not grow in a pinned arena, where pages stay with their class, nor for large blocks, for which
  // free_machine_memory() counts on the idle pages.
  bool may_grow = need <= kLarge && parts_.pool.wants_to_grow(size_class) && !parts_.participants.is_pinned() &&
                  coarse_monotonic_ns() >= g_no_growth_until_ns.load(std::memory_order_relaxed);
  for (int attempt = 0; attempt < 4; ++attempt) {
    Status table = parts_.pool.ensure_table(size_class);
    if (!table) {
      parts_.participants.has_descriptors();  // the cause may be a closed descriptor: this notes it
      return std::move(table).error();
    }
    if (need > kLarge && !free_machine_memory(need, wait)) {
      *short_of_machine = true;
      return OwnedBlock{};
    }
    Status locked = reconciler_.lock_arena(wait);
    if (!locked) return std::move(locked).error();
    // Read after the wait, which may run code that forks and continues in the child.
    const Identity me = parts_.participants.current();
    BlockPool::Taken taken;
    if (me != kNoIdentity) taken = parts_.pool.take(size_class, need, request.bytes, request.kind, me, may_grow);
    const std::uint64_t committed = load_relaxed(header_.committed_bytes);
    parts_.reclaimer.unlock();
    if (taken.unmapped && may_grow) {
      may_grow = false;
      continue;
    }
    if (taken.unmapped) {
      return parts_.mapping.unmapped("a block of " + in_words(need));
    }
    if (taken.data != nullptr) {
      auto block = commit(taken, me, request, wait, short_of_machine);
      const bool no_pages = *short_of_machine || (!block && block.code() == Code::kOutOfSharedMemory);
      if (no_pages && may_grow) {  // retry with a resting block, which has pages
        g_no_growth_until_ns.store(coarse_monotonic_ns() + kNoGrowthNs, std::memory_order_relaxed);
        may_grow = false;
        *short_of_machine = false;
        continue;
      }
      if (!*short_of_machine || evict(need, wait) == 0) return block;
      *short_of_machine = false;
      continue;
    }
    const std::uint64_t most = parts_.pool.max_bytes();
    const std::uint64_t over = committed + need > most ? committed + need - most : 0;
    if (over == 0) continue;  // the table was not long enough
    if (evict(over, wait) == 0) break;
  }
  return OwnedBlock{};
}

Result<OwnedBlock> Allocator::allocate(std::uint64_t bytes, BlockKind kind, const WaitContext& wait) {
  SHMTREE_DCHECK(!HeldLocks::contains(header_.arena_lock) && !HeldLocks::contains(header_.reconcile_lock));
  if (auto me = reconciler_.identity(); !me) return std::move(me).error();
  const BlockPool& pool = parts_.pool;
  if (bytes > pool.max_bytes()) {
    return Error{Code::kMessageTooLarge, "an allocation of " + in_words(bytes) + " is over the arena's budget of " +
                                             in_words(pool.max_bytes()) + " (max_bytes)"};
  }
  const Request request{bytes, parts_.table.geometry().round_to_pages(std::max<std::uint64_t>(bytes, 1)), kind};
  Result<OwnedBlock> block = OwnedBlock{};
  bool short_of_machine = false;
  const auto ready = [&] {
    short_of_machine = false;
    block = try_allocate(request, wait, &short_of_machine);
    return !block || block->valid();
  };
  std::int64_t hoarded_since = 0;
  bool repaired_now = false;  // since the last sleep: a repeated request must not keep the call from ending
  const auto before_sleep = [&](bool first) -> Result<bool> {
    if (first && !pool.counts_are_possible()) request_recovery(header_);
    if (!repaired_now && parts_.participants.check(wait_policy::alive_within_ns(!first))) {
      repaired_now = true;
      Status repaired = reconciler_.reconcile(wait);
      if (!repaired) return std::move(repaired).error();
      return true;
    }
    const Shrinker shrink = g_shrinker.load(std::memory_order_acquire);
    if (shrink != nullptr && shrink(header_, request.pages, wait)) return true;
    const bool stuck =
        pool.held_bytes() >= pool.used_bytes() || is_kept_by_pins(bytes);  // receiving queued messages would not help
    const std::int64_t now = monotonic_ns();
    if (!stuck) hoarded_since = 0;
    if (stuck && hoarded_since == 0) hoarded_since = now;
    const bool impatient = wait.deadline.is_immediate() || now - hoarded_since >= wait_policy::kHoardPatienceNs;
    if (stuck && impatient) return no_space(bytes, short_of_machine);
    repaired_now = false;
    return false;
  };
  EventWait waiting(header_.space, {parts_.participants, WaitFor::kMemory}, wait);
  auto came = wait_until(waiting, wait, "memory", ready, before_sleep);
  if (!came) return std::move(came).error();
  if (*came) return block;
  if (short_of_machine) {
    Error error = no_space(bytes, true);
    error.code = Code::kFull;
    return error;
  }
  return Error{Code::kFull, "no shared memory for " + in_words(bytes) +
                                " within the timeout: " + in_words(pool.used_bytes()) + " of the arena's budget of " +
                                in_words(pool.max_bytes()) + " are in use"};
}

Error Allocator::no_space(std::uint64_t bytes, bool short_of_machine) const {
  const std::uint64_t used = parts_.pool.used_bytes();
  const std::string budget = in_words(parts_.pool.max_bytes());
  if (short_of_machine) {
    std::string shortage = memory_shortage(bytes);
    if (shortage.empty()) shortage = "the machine had no memory for " + in_words(bytes) + " more";  // by now it has
    return Error{Code::kOutOfSharedMemory,
                 shortage + "; the arena uses " + in_words(used) + " of its budget of " + budget};
  }
  const bool all_held = parts_.pool.held_bytes() >= used;
  return Error{Code::kOutOfSharedMemory,
               "no shared memory for " + in_words(bytes) + ": of the arena's budget of " + budget + ", " +
                   in_words(used) + (all_held ? " are held by processes and none are queued" : " are in use") + " (" +
                   inspector_.describe_holders(4) + ")" +
                   (parts_.participants.is_pinned() ? ", and free blocks of other sizes cannot be reused, "
                                                      "because a process pinned the arena for DMA"
                                                    : "") +
                   "; drop received arrays, or give the arena a larger max_bytes"};
}

// Returns true if only DMA pins prevent an allocation of `bytes`. The budget has space for it, but free blocks of other
// classes keep their pages, and no block of its class is in use that a process could free.
bool Allocator::is_kept_by_pins(std::uint64_t bytes) const noexcept {
  if (!parts_.participants.is_pinned() || parts_.pool.used_bytes() + bytes > parts_.pool.max_bytes()) return false;
  const unsigned size_class = parts_.table.geometry().class_for(bytes);
  const std::uint64_t entries = parts_.table.walked_entries(size_class);
  for (std::uint64_t index = 0; index < entries; ++index) {
    const BlockEntry* block = parts_.table.entry(BlockId::make(size_class, index));
    if (block == nullptr || state_of(load_acquire(block->word)) != BlockState::kFree) return false;
  }
  return true;
}

// Returns pages of free blocks to the system until it has returned `want` bytes, or there are no more.
std::uint64_t Allocator::evict(std::uint64_t want, const WaitContext& wait) noexcept {
  std::uint64_t bytes = 0;
  while (bytes < want && parts_.participants.current() != kNoIdentity && reconciler_.lock_arena_quietly(wait)) {
    const Reclaimer::Evicted evicted = parts_.reclaimer.evict_and_unlock(want - bytes, wait.hooks);
    bytes += evicted.bytes;
    if (evicted.done) break;
  }
  return bytes;
}

std::uint64_t Allocator::trim() noexcept {
  const WaitContext wait;
  if (parts_.participants.check(0)) reconciler_.reconcile_quietly(wait);
  return evict(parts_.pool.committed_bytes(), wait);
}

// Victims are also chosen under the arena lock, so no process chooses one from here on. No process holds a victim that
// was chosen before, so no process can register its pages before it is free again.
Status Allocator::set_pinned(bool pinned, const WaitContext& wait) {
  Status locked = reconciler_.lock_arena(wait);
  if (!locked) return locked;
  parts_.participants.set_pinned(pinned);
  parts_.reclaimer.unlock();
  return success();
}

}  // namespace shmtree::memory
