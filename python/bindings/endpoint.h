// What the ends of a channel have in common as Python objects: a sender, a receiver, and a queue, which has both.
//
// All calls need the GIL. Threads may close an end, and take what is deferred, while others are in calls of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "bindings/python_api.h"
#include "bindings/wait_hooks.h"
#include "channel/channel.h"

namespace shmtree::python {

struct Endpoint {
  PyObject_HEAD std::shared_ptr<channel::Channel> channel;  // stays when the ends are closed; null until attach()
  // By channel::End:
  bool has[2];
  std::atomic<bool> joined[2];  // counts as one of this process's objects of that end
  std::atomic<bool> closed[2];
  bool allow_pickle;
  bool is_queue;
  std::atomic<PyObject*> deferred;  // an exception for the next receiving call; owned
};

inline Endpoint* as_endpoint(PyObject* object) noexcept {
  return reinterpret_cast<Endpoint*>(object);
}

inline std::atomic<bool>& closed_flag(Endpoint* self, channel::End which) noexcept {
  return self->closed[static_cast<std::size_t>(which)];
}

// tp_new, tp_dealloc and the members that all have: close(), closed, allow_pickle, channel.
PyObject* new_endpoint(PyTypeObject* type, PyObject* args, PyObject* kwargs, channel::End end);
// Takes part in the ends that `self` has. False with a Python error set.
bool attach_endpoint(Endpoint* self, PyObject* channel, bool allow_pickle);
void dealloc_endpoint(PyObject* self);
void close_end(Endpoint* self, channel::End which);
PyObject* close_endpoint(PyObject* self, PyObject*);
extern PyGetSetDef endpoint_getset[];

// The channel, or null with ChannelClosed set. Also looks after what has to be looked after lazily.
channel::Channel* open_channel(Endpoint* self, channel::End which);
void set_closed_here(const Endpoint* self);

// Sets the exception for a call of `self` that waited with these hooks: what a signal handler raised, ChannelClosed
// when the end was closed meanwhile, else what stands for `error`. Returns null. `self` may be null where no hooks
// watch it.
PyObject* raise_waited(const Endpoint* self, const GilHooks& hooks, const Error& error);

// Methods that a queue has as well: of senders (endpoint_send.cpp) ...
struct PutArguments {
  PyObject* object;
  platform::Deadline deadline;
  bool move;
};
bool parse_put(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords, PutArguments* out);
bool parse_put_nowait(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords, PutArguments* out);
// The ticket; nothing with a Python error set.
std::optional<std::uint64_t> put_object(Endpoint* self, const PutArguments& arguments);
PyObject* endpoint_put_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords);
PyObject* endpoint_can_put(PyObject* self, PyObject*);
PyObject* endpoint_fileno_to_put(PyObject* self, PyObject*);
// ... and of receivers (endpoint_receive.cpp).
PyObject* endpoint_get(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords);
PyObject* endpoint_get_nowait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords);
PyObject* endpoint_get_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords);
PyObject* endpoint_next(PyObject* self);
std::uint64_t endpoint_size(channel::Channel& channel);
PyObject* endpoint_empty(PyObject* self, PyObject*);
PyObject* endpoint_ready(PyObject* self, PyObject*);
PyObject* endpoint_fileno(PyObject* self, PyObject*);
PyObject* wake_descriptor(Endpoint* self, channel::End which);

// Create the types and add them to the module. False with a Python error set.
bool init_sender(PyObject* module);
bool init_receiver(PyObject* module);
bool init_queue(PyObject* module);
bool init_delivery(PyObject* module);

}  // namespace shmtree::python
