// Parameters of a blocking call: its deadline, and callbacks of the embedding program.
#pragma once

#include <cstdint>

#include "platform/clock.h"
#include "platform/machine.h"

namespace shmtree::platform {

// Callbacks of the embedding program. The Python bindings release the GIL and run signal handlers here. Only the
// waiting thread calls them, and never while it holds a shared lock.
class WaitHooks {
 public:
  virtual ~WaitHooks() = default;
  // The thread is about to block for more than a few microseconds.
  virtual void before_block() noexcept = 0;
  // The thread has stopped blocking.
  virtual void after_block() noexcept = 0;
  // Returns true to end the wait with Code::kInterrupted. Called between blocks, at least every 250 ms.
  virtual bool interrupted() noexcept = 0;
  // Returns true to end the wait, like interrupted(). Also called immediately before each block, when other threads can
  // already wake this one. So if a thread makes the result true and then wakes the waiters, no waiter misses it. Must
  // not take long.
  virtual bool ended() const noexcept { return false; }
  // Returns the number of threads of the process that could do what this thread waits for; 0: unknown.
  virtual std::uint32_t threads() const noexcept { return own_thread_count(); }
};

class SpinSetting;

struct WaitContext {
  Deadline deadline{};
  WaitHooks* hooks = nullptr;   // not owned
  SpinSetting* spin = nullptr;  // of the object that waits; not owned, null for none

  bool interrupted() const noexcept { return hooks != nullptr && hooks->interrupted(); }
  bool ended() const noexcept { return hooks != nullptr && hooks->ended(); }
  std::uint32_t threads() const noexcept { return hooks != nullptr ? hooks->threads() : own_thread_count(); }
};

// Marks a scope in which the thread may block.
class BlockingScope {
 public:
  explicit BlockingScope(WaitHooks* hooks) noexcept : hooks_(hooks) {
    if (hooks_ != nullptr) hooks_->before_block();
  }
  ~BlockingScope() {
    if (hooks_ != nullptr) hooks_->after_block();
  }
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

 private:
  WaitHooks* hooks_;
};

}  // namespace shmtree::platform
