#include "platform/fork.h"

#include <pthread.h>
#include <sys/mman.h>

#include <new>

#include "platform/atomics.h"
#include "platform/brief_wait.h"
#include "platform/file.h"
#include "platform/in_use.h"

namespace shmtree::platform {
namespace {

constexpr std::uint64_t kStamp = 0x73686d7472656531;

// Words that are 0 in every child.
struct OwnWords {
  std::atomic<std::uint64_t> stamp{kStamp};
  std::atomic<std::uint32_t> forgets{0};  // locked by the thread in forget_parent()
};

// Without a page (no memory at load), only the fork handlers tell a child from its parent.
constinit OwnWords g_without_page;
constinit OwnWords* g_own_words = &g_without_page;

void make_page() noexcept {
  void* page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  madvise(page, page_size(), MADV_WIPEONFORK);
  g_own_words = new (page) OwnWords;
  g_process_stamp = &g_own_words->stamp;
}

void spin_lock(std::atomic<std::uint32_t>& word) noexcept {
  for (BriefWait owner; word.exchange(1, std::memory_order_acquire) != 0;) owner.pause();
}

std::atomic<const ForkHandlers*> g_handlers{nullptr};

void call_all(ForkHandler ForkHandlers::*which) {
  for (const ForkHandlers* each = g_handlers.load(); each != nullptr; each = each->next) {
    if (each->*which != nullptr) (each->*which)();
  }
}

}  // namespace

constinit std::atomic<std::uint64_t>* g_process_stamp = &g_without_page.stamp;

// Every ForkSafeMutex of the process.
class ForkSafeMutexes {
 public:
  static void insert(ForkSafeMutex* mutex) noexcept {
    spin_lock(word_);
    mutex->next_ = first_;
    if (first_ != nullptr) first_->previous_ = mutex;
    first_ = mutex;
    word_.store(0, std::memory_order_release);
  }
  static void erase(ForkSafeMutex* mutex) noexcept {
    spin_lock(word_);
    (mutex->previous_ != nullptr ? mutex->previous_->next_ : first_) = mutex->next_;
    if (mutex->next_ != nullptr) mutex->next_->previous_ = mutex->previous_;
    word_.store(0, std::memory_order_release);
  }
  static void lock_all() noexcept {
    spin_lock(word_);
    for (ForkSafeMutex* mutex = first_; mutex != nullptr; mutex = mutex->next_) mutex->lock();
  }
  static void unlock_all() noexcept {
    for (ForkSafeMutex* mutex = first_; mutex != nullptr; mutex = mutex->next_) mutex->unlock();
    word_.store(0, std::memory_order_release);
  }
  // Under the lock of the mutexes, so that a forked child gets a complete list of handlers.
  static void add(ForkHandlers& handlers) noexcept {
    spin_lock(word_);
    const ForkHandlers* each = g_handlers.load();
    while (each != nullptr && each != &handlers) each = each->next;
    if (each == nullptr) {
      handlers.next = g_handlers.load();
      g_handlers = &handlers;
    }
    word_.store(0, std::memory_order_release);
  }

 private:
  static inline std::atomic<std::uint32_t> word_{0};
  static inline ForkSafeMutex* first_ = nullptr;
};

ForkSafeMutex::ForkSafeMutex() {
  ForkSafeMutexes::insert(this);
}
ForkSafeMutex::~ForkSafeMutex() {
  ForkSafeMutexes::erase(this);
}
void ForkSafeMutex::lock() noexcept {
  spin_lock(word_);
}

void forget_parent() noexcept {
  if (process_stamp() != 0) return;
  spin_lock(g_own_words->forgets);  // two threads of the child may get here at the same time
  if (process_stamp() == 0) {
    ForkSafeMutexes::unlock_all();
    call_all(&ForkHandlers::orphan);
    store_relaxed(*g_process_stamp, kStamp);
  }
  g_own_words->forgets.store(0, std::memory_order_release);
}

void add_fork_handlers(ForkHandlers& handlers) noexcept {
  ForkSafeMutexes::add(handlers);
}

namespace {

// Registered before any other static initialiser runs, so that no thread can hold a mutex during a fork that runs no
// handlers.
struct AtLoad {
  AtLoad() noexcept {
    make_page();
    pthread_atfork(
        [] {
          call_all(&ForkHandlers::first);
          ForkSafeMutexes::lock_all();
          call_all(&ForkHandlers::prepare);
        },
        [] {
          call_all(&ForkHandlers::parent);
          ForkSafeMutexes::unlock_all();
        },
        [] {
          store_relaxed(*g_process_stamp, kStamp);
          forget_uses_of_other_threads();
          call_all(&ForkHandlers::child);
          ForkSafeMutexes::unlock_all();
          call_all(&ForkHandlers::last);
        });
  }
};
[[gnu::init_priority(101)]] const AtLoad g_at_load;  // the lowest priority number that programs may use

}  // namespace

}  // namespace shmtree::platform
