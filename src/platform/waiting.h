// How a call waits: until when, and what the embedding program wants done around it.
#pragma once

#include <cstdint>

#include "platform/clock.h"
#include "platform/machine.h"

namespace shmtree::platform {

// Callbacks of the embedding program (the Python bindings release the GIL and run signal handlers here).
// Called by the waiting thread only, never while a shared lock is held.
class WaitHooks {
 public:
  virtual ~WaitHooks() = default;
  // The thread is about to block for more than a few microseconds.
  virtual void before_block() noexcept = 0;
  // It has stopped blocking.
  virtual void after_block() noexcept = 0;
  // True ends the wait with Code::kInterrupted. Called between blocks, at least every 250 ms.
  virtual bool interrupted() noexcept = 0;
  // The same, and called before each block as well, when the thread can be woken already: who makes it true, and then
  // wakes those who wait, is never too early. May not take long.
  virtual bool ended() const noexcept { return false; }
  // How many threads the process has that could do what this one waits for; 0: not known.
  virtual std::uint32_t threads() const noexcept { return own_thread_count(); }
};

struct WaitContext {
  Deadline deadline{};
  WaitHooks* hooks = nullptr;  // not owned

  bool interrupted() const noexcept { return hooks != nullptr && hooks->interrupted(); }
  bool ended() const noexcept { return hooks != nullptr && hooks->ended(); }
  std::uint32_t threads() const noexcept { return hooks != nullptr ? hooks->threads() : own_thread_count(); }
};

// Brackets a stretch in which the thread may block.
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
