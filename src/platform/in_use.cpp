#include "platform/in_use.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "platform/atomics.h"

namespace shmtree::platform {

constinit thread_local UsePlace* t_use_place = nullptr;

namespace {

std::atomic<UsePlace*> g_places{nullptr};
std::atomic<unsigned> g_elsewhere{0};             // uses that have no place
constinit thread_local unsigned t_elsewhere = 0;  // those of this thread

bool barrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

bool has_barrier() noexcept {  // asked for once, by a process that has calls to tell of
  static const bool has = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return has;
}

struct Owner {
  UsePlace* place = nullptr;
  ~Owner();
};
thread_local Owner t_owner;

Owner::~Owner() {
  t_use_place = nullptr;  // calls in later destructors of the thread are counted
  if (place != nullptr) place->taken.store(false, std::memory_order_release);
}

UsePlace* find_place() noexcept {
  for (UsePlace* each = g_places.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    if (!each->taken.exchange(true, std::memory_order_acq_rel)) return each;
  }
  auto* made = new (std::nothrow) UsePlace;
  if (made == nullptr) return nullptr;
  made->next = g_places.load(std::memory_order_relaxed);
  while (!g_places.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return made;
}

}  // namespace

// The thread's first call, or one within others.
std::atomic<const void*>* InUse::other_word() noexcept {
  static thread_local bool was_here = false;
  if (!was_here && has_barrier()) {
    was_here = true;
    t_owner.place = t_use_place = find_place();
  }
  if (t_use_place != nullptr) {
    for (auto& word : t_use_place->objects) {
      if (word.load(std::memory_order_relaxed) == nullptr) return &word;
    }
  }
  ++t_elsewhere;
  g_elsewhere.fetch_add(1, std::memory_order_seq_cst);
  return nullptr;
}

void InUse::end_elsewhere() noexcept {
  --t_elsewhere;
  g_elsewhere.fetch_sub(1, std::memory_order_seq_cst);
}

void forget_uses_of_other_threads() noexcept {
  for (UsePlace* each = g_places.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    if (each == t_use_place) continue;
    for (auto& word : each->objects) word.store(nullptr, std::memory_order_relaxed);
    each->taken.store(false, std::memory_order_release);
  }
  g_elsewhere.store(t_elsewhere, std::memory_order_seq_cst);
}

bool is_in_use(const void* object) noexcept {
  // A child of a fork may have to register anew.
  const bool passed =
      has_barrier() &&
      (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
       (barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)));
  if (!passed || g_elsewhere.load(std::memory_order_seq_cst) != 0) return true;
  for (UsePlace* each = g_places.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    for (const auto& word : each->objects) {
      if (word.load(std::memory_order_acquire) == object) return true;
    }
  }
  return false;
}

}  // namespace shmtree::platform
