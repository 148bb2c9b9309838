// Records which objects threads are using: hazard pointers without atomic read-modify-writes in the calls. Each thread
// writes its objects into its own entry. A thread that asks if an object is in use first makes all threads of the
// process execute a barrier (membarrier).
//
// That is an asymmetric Dekker handshake. A caller writes its entry, then checks if the object is closed. A closing
// thread marks the object as closed, then asks. At least one of them sees the other. The same holds at the end of a
// call: the caller clears its entry, then checks if the object is closed.
#pragma once

#include <atomic>
#include <cstddef>

namespace shmtree::platform {

// The entry of one thread, or of one call if its thread's entry is full. Entries are never freed: the next thread or
// call that needs one takes it over.
struct UseEntry {
  static constexpr unsigned kMax = 4;  // nested calls
  std::atomic<const void*> objects[kMax]{};
  std::atomic<const void*> thread{nullptr};  // an address that only that thread has
  std::atomic<bool> taken{true};
  UseEntry* next = nullptr;
};
extern constinit thread_local UseEntry* t_use_entry;  // null before the first call, and after the last

// Records that this thread uses `object` until the end of the scope. Scopes may end in any order, since a thread may
// have several stacks (greenlets).
class InUse {
 public:
  explicit InUse(const void* object) noexcept {
    UseEntry* const entry = t_use_entry;
    word_ = entry != nullptr ? &entry->objects[0] : nullptr;
    if (word_ == nullptr || word_->load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
      word_ = other_word();
      if (word_ == nullptr) {
        borrowed_ = begin_elsewhere(object);
        return;
      }
    }
    word_->store(object, std::memory_order_relaxed);
    light_barrier();
  }
  ~InUse() {
    if (word_ == nullptr) [[unlikely]] {
      end_elsewhere(borrowed_);
      return;
    }
    word_->store(nullptr, std::memory_order_release);
    light_barrier();
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  // One side of the asymmetric barrier. Either the thread that calls is_in_use() sees all earlier stores of this
  // thread, or this thread sees from here on all stores that the other thread made before its barrier.
  static void light_barrier() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
  static std::atomic<const void*>* other_word() noexcept;
  static UseEntry* begin_elsewhere(const void* object) noexcept;
  static void end_elsewhere(UseEntry* borrowed) noexcept;
  std::atomic<const void*>* word_;  // null if the thread has no free word
  UseEntry* borrowed_;              // set if `word_` is null: entry of this use, or null if it is only counted
};

// A use by a call of `owner`. After the use it calls after_use(), which completes a close that another thread began.
template <class Owner>
class CallOf {
 public:
  CallOf(Owner& owner, const void* used) noexcept : after_{owner}, use_(used) {}

 private:
  struct After {
    Owner& owner;
    ~After() { owner.after_use(); }
  };
  const After after_;
  const InUse use_;  // Ends before `after_`.
};

// Returns true if a thread uses an object in [begin, begin + bytes). If the system has no such barrier, each call
// executes one itself. While a use could not be recorded for lack of memory, returns true for all objects.
//
// A forked child has one thread, and sees the uses of that thread. In a child of a fork that ran no handlers, the uses
// of the parent's other threads never end.
bool is_in_use(const void* begin, std::size_t bytes) noexcept;
inline bool is_in_use(const void* object) noexcept {
  return is_in_use(object, 1);
}
// Drops the uses of threads that do not exist in a forked child. Called by its only thread.
void forget_uses_of_other_threads() noexcept;

}  // namespace shmtree::platform
