// Hooks for the waits of a replay buffer's calls. They also end the wait when another thread closes the object.
#pragma once

#include <atomic>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/wait_hooks.h"

namespace shmtree::python {

class UntilClosed final : public platform::WaitHooks {
 public:
  // Both arguments must outlive this object.
  UntilClosed(platform::WaitHooks& hooks, const std::atomic<bool>& closed) noexcept : hooks_(hooks), closed_(closed) {}

  void before_block() noexcept override { hooks_.before_block(); }
  void after_block() noexcept override { hooks_.after_block(); }
  bool interrupted() noexcept override { return ended() || hooks_.interrupted(); }
  bool ended() const noexcept override { return closed_.load(std::memory_order_acquire); }

 private:
  platform::WaitHooks& hooks_;
  const std::atomic<bool>& closed_;
};

// Sets the exception for a call that these hooks may have ended. Returns null.
inline PyObject* raise_waited(const Error& error, const std::atomic<bool>& closed, const char* what_is_closed) {
  const bool was_ended = error.code == Code::kInterrupted && closed.load(std::memory_order_acquire);
  if (!was_ended || PyErr_Occurred()) return raise(error);
  block_if_left_behind();
  return raise(Error{.code = Code::kClosed, .message = what_is_closed});
}

}  // namespace shmtree::python
