// Warns a process that waits in vain: for more than 10 s for an end that no attached process has ever used. Each object
// warns once.
//
// The time counts while calls of the object wait, whatever their timeouts, as long as no process has used the other end
// and no message comes. Calls that wait at the same time count once. Waits in queues do not count, because the stream
// of a queue never ends.
//
// If the processes that have the other end have not used it and wait themselves, only the blocked only thread of a
// process without signal handlers warns. A coroutine or another thread of this process may use the other end later.
//
// Thread safety: any thread.
#pragma once

#include "bindings/endpoint/endpoint.h"

namespace shmtree::python {

// Adds a wait that began at `since_ns`. `passed` is the number of messages that have passed the other end; a change
// resets the count. Returns the total time once, when it is long enough for a warning; otherwise returns 0.
std::int64_t count_stalled_wait(StalledWait& stalled_wait, std::uint64_t passed, std::int64_t since_ns);
enum class Waiter {
  kOnlyThread,  // this thread is blocked, and is the only one that runs Python; no signal handler is set
  kOther,
};
// Call it repeatedly while a call waits at `waiting`. `since_ns` is when the wait began (platform::monotonic_ns()).
// Returns false if the warning became an exception, which is set.
bool warn_of_stalled_wait(Endpoint* self, channel::End waiting, std::int64_t since_ns, Waiter waiter);
// Does the same, for Waiter::kOther, after a wait of so many seconds. Returns None, or null with that exception set.
PyObject* note_wait(PyObject* self, channel::End waiting, PyObject* seconds);

void set_unused_after(double seconds);  // replaces the 10 s in tests

}  // namespace shmtree::python
