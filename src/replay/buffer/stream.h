// The stream behind a user's writer object in one process, and the lock that serialises the calls of its threads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "replay/buffer/buffer.h"
#include "replay/rows/writer.h"

namespace shmtree::replay {

// Belongs to one process. A forked child creates its own, and leaves its parent's unchanged.
struct Stream {
  Stream(const Buffer& buffer, memory::Identity me);

  const memory::Identity owner;
  std::timed_mutex mutex;
  std::atomic<std::thread::id> user{};  // thread that holds the mutex
  const std::shared_ptr<Tables> tables;
  Writer writer;

  // Returns the number of the stream, which is unlikely to equal that of another stream on this machine. If called
  // before the first row, it chooses the number, instead of that row. Requires the mutex.
  std::uint32_t number();
  bool belongs_to_this_process() const noexcept { return owner == tables->store()->arena()->current_identity(); }
  bool is_used_by_caller() const noexcept { return user.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
};

// Releases a stream. It ends when the last call that uses it returns.
void release_stream(std::shared_ptr<Stream> stream);

// Returns `kept` if it belongs to this process, or replaces it by a new stream. Errors: those of Arena::identity().
// Thread safety: one thread at a time.
Result<std::shared_ptr<Stream>> stream_of(const Buffer& buffer, std::shared_ptr<Stream>& kept);

// Scope in which this thread is recorded as holder of the mutex.
class InUse {
 public:
  explicit InUse(Stream& stream) noexcept : stream_(stream) {
    stream_.user.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ~InUse() { stream_.user.store({}, std::memory_order_relaxed); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  Stream& stream_;
};

// Locks the mutex. Returns false at the deadline, or if `wait` was interrupted.
bool lock(Stream& stream, const WaitContext& wait);

// Calls act(writer) with the mutex locked. Returns kFull at the deadline. Returns kInterrupted if the wait was
// interrupted or had ended before.
template <class Act>
auto alone(Stream& stream, const WaitContext& wait, Act act) -> decltype(act(stream.writer)) {
  if (!lock(stream, wait)) {
    const bool is_late = wait.deadline.passed() && !wait.ended();
    return Error{is_late ? Code::kFull : Code::kInterrupted, "another thread is adding to this stream"};
  }
  const std::lock_guard guard(stream.mutex, std::adopt_lock);
  const InUse in_use(stream);
  if (wait.ended()) return Error{Code::kInterrupted, "the buffer was closed during the call"};
  return act(stream.writer);
}

}  // namespace shmtree::replay
