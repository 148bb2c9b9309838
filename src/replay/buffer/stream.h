// What is behind a writer of a user's: its stream in this process, and how calls of several threads take turns in it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "replay/buffer/buffer.h"
#include "replay/rows/writer.h"

namespace shmtree::replay {

// Belongs to one process: a forked child begins with one of its own. What its parent's threads were in the middle of
// stays as it is there.
struct Stream {
  Stream(const Buffer& buffer, memory::Identity me);

  const memory::Identity owner;
  std::timed_mutex mutex;
  std::atomic<std::thread::id> user{};  // the thread that has the mutex
  const std::shared_ptr<Tables> tables;
  Writer writer;

  // The stream's, which no other one of this machine is likely to have. One that is asked for before the first row is
  // not that row's to choose any more. With the mutex.
  std::uint32_t number();
  bool belongs_to_this_process() const noexcept { return owner == tables->store()->arena()->current_identity(); }
  bool is_used_by_caller() const noexcept { return user.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
};

// Gives up a stream, which ends with its last call.
void let_go(std::shared_ptr<Stream> stream);

// The one of this process: `kept`, or a new one that is kept then. Errors as of Arena::identity(). One thread at a
// time.
Result<std::shared_ptr<Stream>> stream_of(const Buffer& buffer, std::shared_ptr<Stream>& kept);

// While this thread has the mutex.
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

// For threads that have one writer. False when there was no time, or `wait` was interrupted.
bool lock(Stream& stream, const WaitContext& wait);

// act(writer), by one thread at a time. kFull when there was no time, kInterrupted also when the wait had ended before.
template <class Act>
auto alone(Stream& stream, const WaitContext& wait, Act act) -> decltype(act(stream.writer)) {
  if (!lock(stream, wait)) {
    const bool is_late = wait.deadline.passed() && !wait.ended();
    return Error{is_late ? Code::kFull : Code::kInterrupted, "another thread is adding to this stream"};
  }
  const std::lock_guard guard(stream.mutex, std::adopt_lock);
  const InUse in_use(stream);
  if (wait.ended()) return Error{Code::kInterrupted, "closed meanwhile"};
  return act(stream.writer);
}

}  // namespace shmtree::replay
