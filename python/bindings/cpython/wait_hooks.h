// Hooks for the waits of Python threads: they release the GIL while a thread sleeps, and run signal handlers in
// between.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "bindings/cpython/gil.h"
#include "bindings/cpython/python_api.h"
#include "platform/spin.h"
#include "platform/waiting.h"

namespace shmtree::python {

class GilHooks : public platform::WaitHooks {
 public:
  void before_block() noexcept override { state_ = PyEval_SaveThread(); }
  void after_block() noexcept override;
  // Also returns true if a signal handler has raised. That exception is then set.
  bool interrupted() noexcept override;
  // Number of threads that have run Python, counted by the last interrupted().
  std::uint32_t threads() const noexcept override { return threads_; }

 private:
  PyThreadState* state_ = nullptr;
  std::uint32_t threads_ = 0;
};

// Hooks for a call that takes long in any case. The GIL stays released until the end of the scope, except while signal
// handlers run.
class DetachedHooks : public platform::WaitHooks {
 public:
  DetachedHooks() noexcept : state_(PyEval_SaveThread()) {}
  ~DetachedHooks() override { restore_thread(state_); }
  DetachedHooks(const DetachedHooks&) = delete;
  DetachedHooks& operator=(const DetachedHooks&) = delete;

  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override;
  // Calls act() with the GIL.
  template <class Act>
  void with_gil(Act act) {
    struct Scope {
      PyThreadState*& state;
      explicit Scope(PyThreadState*& saved) noexcept : state(saved) { restore_thread(state); }
      ~Scope() { state = PyEval_SaveThread(); }
    } scope(state_);
    act();
  }

 private:
  PyThreadState* state_;
};

// Calls act(hooks), and releases the GIL around it if `detached` is true.
template <class Act>
auto with_hooks(bool detached, Act act) {
  if (detached) {
    DetachedHooks hooks;
    return act(static_cast<platform::WaitHooks&>(hooks));
  }
  GilHooks hooks;
  return act(static_cast<platform::WaitHooks&>(hooks));
}

// Copies the name that multiprocessing has for this process to its arenas, for observers. Needs the GIL.
void note_process_name() noexcept;

// Records that this thread is about to end the process; false clears the record, as in a forked child. The exit closes
// the channels at which other threads wait. These threads block until the process has ended, so that the program does
// not see the error of the close.
void set_exiting(bool exiting);
// Blocks forever if another thread is ending the process.
void block_if_left_behind();

// Sets the one Python callable (or null) for deferred work. A waiting thread calls it now and then, with the GIL.
void set_idle_callback(PyObject* callback);
void call_idle_callback();
inline std::atomic<bool> idle_wanted{false};

// Converts a `timeout` in seconds: None means no limit, 0 and less means no wait. Returns false with TypeError or
// ValueError set; they name the argument `what`.
bool parse_timeout(PyObject* timeout, std::optional<std::chrono::nanoseconds>* out, const char* what = "timeout");
// Return the spin of an object in seconds, and set it. The latter returns false with TypeError or ValueError set.
PyObject* spin_seconds(const platform::SpinSetting& spin);
bool set_spin_seconds(platform::SpinSetting& spin, PyObject* seconds);
// Converts `block` and `timeout` with the meaning they have for queue.Queue: a timeout of None blocks indefinitely, 0
// and less does not block. Returns false with TypeError or ValueError set: also for seconds in the place of `block`.
bool parse_deadline(PyObject* block, PyObject* timeout, platform::Deadline* out);

}  // namespace shmtree::python
