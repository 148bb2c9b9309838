// Which objects threads are in calls of: hazard pointers, without an atomic operation in the calls. Each thread writes
// them into a place of its own, and whoever asks makes all threads of the process pass a barrier first (membarrier).
//
// That is an asymmetric Dekker handshake: a caller writes its place, then looks whether the object is closed; whoever
// closes it says so, then asks. One of them sees the other. At the end as well: a caller clears its place, then looks.
#pragma once

#include <atomic>
#include <cstddef>

namespace shmtree::platform {

// Of one thread, or of one call that finds no room in its thread's place. Places are never freed: the next thread or
// call that needs one takes it over.
struct UsePlace {
  static constexpr unsigned kMost = 4;  // calls within calls
  std::atomic<const void*> objects[kMost]{};
  std::atomic<const void*> thread{nullptr};  // an address that only that thread has
  std::atomic<bool> taken{true};
  UsePlace* next = nullptr;
};
extern constinit thread_local UsePlace* t_use_place;  // null before the first call, and after the last

// This thread is in a call of `object` to the end of the scope. Scopes may end in any order: a thread may have several
// stacks, as those of greenlets.
class InUse {
 public:
  explicit InUse(const void* object) noexcept {
    UsePlace* const place = t_use_place;
    word_ = place != nullptr ? &place->objects[0] : nullptr;
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
  // Whoever passes the barrier of is_in_use() sees all that this thread stored before, or this thread sees from here on
  // what that one stored before it.
  static void light_barrier() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
  static std::atomic<const void*>* other_word() noexcept;
  static UsePlace* begin_elsewhere(const void* object) noexcept;
  static void end_elsewhere(UsePlace* borrowed) noexcept;
  std::atomic<const void*>* word_;  // null when the thread has none that is free
  UsePlace* borrowed_;              // set if `word_` is null: the place of this use; null if it is only counted
};

// Returns whether a thread is in a call of an object in [begin, begin + bytes). Where the system has no such barrier,
// each call passes one itself. While a call runs that had no memory to be recorded, returns true for all objects.
//
// A forked child has one thread, and is told of the calls that this one is in. In a child of a fork that ran no
// handlers those of the parent's other threads never end.
bool is_in_use(const void* begin, std::size_t bytes) noexcept;
inline bool is_in_use(const void* object) noexcept {
  return is_in_use(object, 1);
}
// In a forked child, by its only thread.
void forget_uses_of_other_threads() noexcept;

}  // namespace shmtree::platform
