// Which objects threads are in calls of, told without an atomic operation in the calls: each thread writes them into a
// place of its own, and whoever asks makes all threads of the process pass a barrier first.
//
// The order that makes it safe: a caller writes its place, then looks whether the object is closed; whoever closes it
// says so, then asks. One of them sees the other. The same at the end: a caller clears its place, then looks.
#pragma once

#include <atomic>

namespace shmtree::platform {

struct UsePlace;

// This thread is in a call of `object` to the end of the scope.
class InUse {
 public:
  explicit InUse(const void* object) noexcept;
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  std::atomic<const void*>* word_;  // null when the thread has no place left for it: then it is counted
};

// Whether some thread may be in a call of `object`. Also true where the system has no such barrier.
bool is_in_use(const void* object) noexcept;

}  // namespace shmtree::platform
