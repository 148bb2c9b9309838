#include "platform/in_use.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "platform/atomics.h"

namespace shmtree::platform {

// Places are never freed: a thread that ends leaves its own to the next that begins.
struct UsePlace {
  static constexpr unsigned kDepth = 4;  // calls within calls
  std::atomic<const void*> objects[kDepth]{};
  unsigned depth = 0;  // of the thread alone
  std::atomic<bool> taken{true};
  UsePlace* next = nullptr;
};

namespace {

std::atomic<UsePlace*> g_places{nullptr};
std::atomic<unsigned> g_elsewhere{0};  // uses that have no place

bool barrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

bool has_barrier() noexcept {  // asked for once, by a process that has calls to tell of
  static const bool has = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return has;
}

// All that this thread stored is seen by whoever passes the barrier of is_in_use(), or this thread sees what that one
// stored before it.
void light_barrier() noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

struct Owner {
  UsePlace* place = nullptr;
  ~Owner();
};
thread_local constinit UsePlace* t_place = nullptr;
thread_local Owner t_owner;

Owner::~Owner() {
  t_place = nullptr;  // calls in later destructors of the thread are counted
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

std::atomic<const void*>* free_word() noexcept {
  static thread_local bool was_here = false;
  if (t_place == nullptr) [[unlikely]] {
    if (was_here || !has_barrier()) return nullptr;
    was_here = true;
    t_owner.place = t_place = find_place();
    if (t_place == nullptr) return nullptr;
    t_place->depth = 0;
  }
  return t_place->depth == UsePlace::kDepth ? nullptr : &t_place->objects[t_place->depth++];
}

}  // namespace

InUse::InUse(const void* object) noexcept : word_(free_word()) {
  if (word_ == nullptr) {
    g_elsewhere.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  word_->store(object, std::memory_order_relaxed);
  light_barrier();
}

InUse::~InUse() {
  if (word_ == nullptr) {
    g_elsewhere.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
  word_->store(nullptr, std::memory_order_release);
  light_barrier();
  --t_place->depth;
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
