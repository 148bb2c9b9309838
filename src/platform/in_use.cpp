#include "platform/in_use.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/never_destroyed.h"

namespace shmtree::platform {

constinit thread_local UseEntry* t_use_entry = nullptr;

namespace {

std::atomic<UseEntry*> g_entries{nullptr};
std::atomic<unsigned> g_unlisted{0};             // uses that have no entry, for lack of memory
constinit thread_local unsigned t_unlisted = 0;  // those of this thread; its address identifies the thread

bool barrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

// Registers with the kernel once, at the first use, since that takes some milliseconds.
bool has_barrier() noexcept {
  return computed_once<[] { return barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }>();
}

struct Owner {
  UseEntry* entry = nullptr;
  ~Owner();
};
thread_local Owner t_owner;

Owner::~Owner() {
  t_use_entry = nullptr;  // calls in later destructors of the thread borrow places
  if (entry != nullptr) entry->taken.store(false, std::memory_order_release);
}

UseEntry* find_entry() noexcept {
  for (UseEntry* each = g_entries.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    if (each->taken.load(std::memory_order_relaxed) || each->taken.exchange(true, std::memory_order_acq_rel)) continue;
    each->thread.store(&t_unlisted, std::memory_order_relaxed);
    return each;
  }
  auto* entry = new (std::nothrow) UseEntry;
  if (entry == nullptr) return nullptr;
  entry->thread.store(&t_unlisted, std::memory_order_relaxed);
  entry->next = g_entries.load(std::memory_order_relaxed);
  while (!g_entries.compare_exchange_weak(entry->next, entry, std::memory_order_acq_rel)) {
  }
  return entry;
}

}  // namespace

// Called for the thread's first use and for nested ones.
std::atomic<const void*>* InUse::other_word() noexcept {
  static thread_local bool was_here = false;
  if (!was_here && has_barrier()) {
    was_here = true;
    t_owner.entry = t_use_entry = find_entry();
  }
  if (t_use_entry != nullptr) {
    for (auto& word : t_use_entry->objects) {
      if (word.load(std::memory_order_relaxed) == nullptr) return &word;
    }
  }
  return nullptr;
}

// Executes a barrier itself. If the system has no membarrier, is_in_use() cannot make this thread execute one.
UseEntry* InUse::begin_elsewhere(const void* object) noexcept {
  UseEntry* const borrowed = find_entry();
  if (borrowed != nullptr) {
    borrowed->objects[0].store(object, std::memory_order_relaxed);
  } else {
    ++t_unlisted;
    g_unlisted.fetch_add(1, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return borrowed;
}

void InUse::end_elsewhere(UseEntry* borrowed) noexcept {
  if (borrowed != nullptr) {
    borrowed->objects[0].store(nullptr, std::memory_order_release);
    borrowed->taken.store(false, std::memory_order_release);
  } else {
    --t_unlisted;
    g_unlisted.fetch_sub(1, std::memory_order_release);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void forget_uses_of_other_threads() noexcept {
  for (UseEntry* each = g_entries.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    if (each->thread.load(std::memory_order_relaxed) == &t_unlisted) continue;
    for (auto& word : each->objects) word.store(nullptr, std::memory_order_relaxed);
    each->taken.store(false, std::memory_order_release);
  }
  g_unlisted.store(t_unlisted, std::memory_order_seq_cst);
}

bool is_in_use(const void* begin, std::size_t bytes) noexcept {
  // A forked child may have to register again.
  const bool passed =
      has_barrier() &&
      (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
       (barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)));
  if (!passed) {
    // A sandbox that the process entered after the first use may forbid membarrier. Stores become visible long before
    // this sleep ends.
    if (has_barrier()) pause_briefly();
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  if (g_unlisted.load(std::memory_order_seq_cst) != 0) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  for (UseEntry* each = g_entries.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    for (const auto& word : each->objects) {
      // A null word is not in the range, since the difference wraps.
      if (reinterpret_cast<std::uintptr_t>(word.load(std::memory_order_acquire)) - first < bytes) return true;
    }
  }
  return false;
}

}  // namespace shmtree::platform
