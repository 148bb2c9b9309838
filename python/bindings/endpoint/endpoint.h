// What the ends of a channel have in common as Python objects: a sender, a receiver, and a queue, which has both.
//
// All calls need the GIL. Threads may close an end, and take what is deferred, while others are in calls of it.
//
// An object has its channel, and its part in the name, until all of its ends are closed and no thread is in a call of
// it (InCall). After that it still answers what another object of this process keeps the channel for (any_channel).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "bindings/cpython/python_api.h"
#include "bindings/endpoint/calls.h"
#include "channel/channel.h"

namespace shmtree::python {

struct Endpoint {
  PyObject_HEAD std::shared_ptr<channel::Channel> channel;  // from attach() to the end of the last call after close()
  std::weak_ptr<channel::Channel> known;                    // the same, for as long as this process has it
  // By channel::End:
  bool has[2];
  std::atomic<bool> joined[2];  // counts as one of this process's objects of that end
  std::atomic<bool> closed[2];
  bool allow_pickle;
  bool is_queue;
  bool attached;
  Calls calls;                      // of this object
  std::atomic<bool> ended;          // all of its ends were closed
  std::atomic<bool> released;       // `channel` and `name` were let go of, or are not there yet
  std::atomic<PyObject*> deferred;  // an exception for the next receiving call; owned
  std::atomic<std::int64_t>
      unloaded_since_ns;  // waited for since then, or not known: 0; told: -1 (see warn_of_unloaded)
  PyObject* name;         // this object's share of the process's part in a name; owned, null for none
};

// As Python names them.
constexpr channel::End end_of(bool receiving) noexcept {
  return receiving ? channel::End::kReceiving : channel::End::kSending;
}

inline Endpoint* as_endpoint(PyObject* object) noexcept {
  return reinterpret_cast<Endpoint*>(object);
}

inline std::atomic<bool>& closed_flag(Endpoint* self, channel::End which) noexcept {
  return self->closed[static_cast<std::size_t>(which)];
}

inline bool all_closed(const Endpoint* self) noexcept {
  return (self->closed[0] || !self->has[0]) && (self->closed[1] || !self->has[1]);
}
// Lets go of the channel and the name, once.
void release_channel(Endpoint* self);

// A call of `self` that uses its channel: what close() releases meanwhile is there to the end of it. Before
// open_channel(), which tells whether there is a channel at all.
class InCall {
 public:
  explicit InCall(Endpoint* self) noexcept : self_(self) { self->calls.begin(); }
  ~InCall() {
    if (self_->calls.end() && self_->ended.load(std::memory_order_seq_cst)) [[unlikely]]
      release_channel(self_);
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  Endpoint* self_;
};

// tp_new, tp_dealloc and the members that all have: close(), closed, allow_pickle, channel.
Ref alloc_endpoint(PyTypeObject* type);  // without any end
PyObject* new_endpoint(PyTypeObject* type, PyObject* args, PyObject* kwargs, channel::End end);
// Takes part in the ends that `self` has. False with a Python error set.
bool attach_endpoint(Endpoint* self, PyObject* channel, bool allow_pickle);
void dealloc_endpoint(PyObject* self);
void close_end(Endpoint* self, channel::End which);
PyObject* close_endpoint(PyObject* self, PyObject*);
// Called with an object of which an end was closed, for those who wait elsewhere than in its calls. A Python callable
// that returns None; at most one.
void set_close_callback(PyObject* callback);
// After close_end(): calls it. None, or null with a Python error set.
PyObject* tell_of_close(PyObject* self);
extern PyGetSetDef endpoint_getset[];

// The channel, within an InCall, or null with ChannelClosed set. Also looks after what has to be looked after lazily.
channel::Channel* open_channel(Endpoint* self, channel::End which);
// The channel also of an object that was closed, while this process has it by another one; else null with ChannelClosed
// set, or RuntimeError for a queue that was never initialised.
std::shared_ptr<channel::Channel> any_channel(Endpoint* self);
// The same within an InCall, which keeps it while an end is open. So no reference is taken then, which the forked
// children of a waiting process would never give back.
std::shared_ptr<channel::Channel> any_channel_in_call(Endpoint* self);
void set_closed_here(const Endpoint* self);

// For a call that waits at `waiting`: warns, once for each object, when for 10 s nobody has taken part in the other end
// but those whom it is on its way to. False when the warning became an exception, which is set.
bool warn_of_unloaded(Endpoint* self, channel::End waiting);
void set_unloaded_after(double seconds);  // instead of 10, for tests

// Methods that a queue has as well: of senders (send.cpp) ...
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
// ... and of receivers (receive.cpp).
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
