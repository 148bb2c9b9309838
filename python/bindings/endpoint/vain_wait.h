// Waits in vain: who waits for more than 10 s for an end that those who have it never used is told, once for each
// object.
//
// What counts is the time that calls of the object wait, whatever their timeouts, while nobody at the other end has
// used it and no message comes; several at once count once. In queues nobody waits for an end.
//
// Thread safety: any thread.
#pragma once

#include "bindings/endpoint/endpoint.h"

namespace shmtree::python {

// Counts a wait since then for who has passed so many messages, and is of no use. How long such waits were in all, once
// it is to be told; else 0.
std::int64_t count_vain_wait(VainWait& vain, std::uint64_t passed, std::int64_t since_ns);
// For a call that waits at `waiting` since then, a time of platform::monotonic_ns(); it may say so again and again.
// False when the warning became an exception, which is set.
bool warn_of_vain_wait(Endpoint* self, channel::End waiting, std::int64_t since_ns);
// The same for one that has just waited for so many seconds. None, or null with that exception set.
PyObject* note_wait(PyObject* self, channel::End waiting, PyObject* seconds);

void set_unused_after(double seconds);  // instead of 10, for tests

}  // namespace shmtree::python
