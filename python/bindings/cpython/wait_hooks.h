// How Python threads wait: without the GIL, and with signal handlers run in between.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "bindings/cpython/gil.h"
#include "bindings/cpython/python_api.h"
#include "platform/waiting.h"

namespace shmtree::python {

class GilHooks : public platform::WaitHooks {
 public:
  void before_block() noexcept override { state_ = PyEval_SaveThread(); }
  void after_block() noexcept override;
  // Also when a signal handler has raised: that exception is then set.
  bool interrupted() noexcept override;
  // Those that have run Python, as of the last interrupted().
  std::uint32_t threads() const noexcept override { return threads_; }

 private:
  PyThreadState* state_ = nullptr;
  std::uint32_t threads_ = 0;
};

// For a call that is long in any case: without the GIL from here to the end of the scope, signal handlers apart.
class DetachedHooks : public platform::WaitHooks {
 public:
  DetachedHooks() noexcept : state_(PyEval_SaveThread()) {}
  ~DetachedHooks() override { restore_thread(state_); }
  DetachedHooks(const DetachedHooks&) = delete;
  DetachedHooks& operator=(const DetachedHooks&) = delete;

  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override;

 private:
  PyThreadState* state_;
};

// act(hooks), without the GIL if it is `detached`.
template <class Act>
auto with_hooks(bool detached, Act act) {
  if (detached) {
    DetachedHooks hooks;
    return act(static_cast<platform::WaitHooks&>(hooks));
  }
  GilHooks hooks;
  return act(static_cast<platform::WaitHooks&>(hooks));
}

// This thread is about to end the process (false: not after all, as in a forked child). What other threads wait for
// then ends only because the process leaves its channels, and they are not to hear of it: they are left waiting.
void set_exiting(bool exiting);
// Does not return to a thread that is left behind.
void stay_if_left_behind();

// Called with the GIL held now and then, while the thread waits; for what has to be looked after lazily. A Python
// callable or null. At most one.
void set_idle_callback(PyObject* callback);
void call_idle_callback();
inline std::atomic<bool> idle_wanted{false};

// The time of a `timeout`: None is no limit, 0 and less no wait. False with TypeError or ValueError set.
bool parse_timeout(PyObject* timeout, std::optional<std::chrono::nanoseconds>* out);
// The deadline of `block` and `timeout` as queues have them: None waits for ever, 0 and less not at all. False with
// TypeError or ValueError set.
bool parse_deadline(PyObject* block, PyObject* timeout, platform::Deadline* out);

}  // namespace shmtree::python
