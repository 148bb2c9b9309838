// How many threads are in calls of an object.
//
// A forked child has one thread, the one that forked. If that was in no call, nobody is in one there, and all counts
// begin at 0 again. If it was in one (it forked in code of the user's, which the call ran), it goes on with that call
// in the child: then all counts stay as they were, those of the parent's other threads included, since they do not tell
// whose they are. So a count is never less than the calls that there are, and only in a child of that kind more.
#pragma once

#include <atomic>
#include <cstdint>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

#ifdef Py_GIL_DISABLED
using CallCount = std::atomic<std::uint32_t>;
#else
using CallCount = std::uint32_t;  // the GIL guards it: nothing that costs in calls that nobody disturbs
#endif

// Calls that this thread is in, of any object.
extern constinit thread_local std::uint32_t t_calls;

// Of one object. All zero before it is listed.
class Calls {
 public:
  void begin() noexcept {
    ++t_calls;
    ++count_;
  }
  // Whether it was the last.
  bool end() noexcept {
    --t_calls;
    return --count_ == 0;
  }

  // Before the first call, and after the last: forked children are to begin again.
  void list() noexcept;
  void unlist() noexcept;

 private:
  friend bool init_calls();
  static void begin_again() noexcept;

  CallCount count_;
  bool listed_;
  Calls *previous_, *next_;
};

// Has the counts of forked children begin again. False with a Python error set.
bool init_calls();

}  // namespace shmtree::python
