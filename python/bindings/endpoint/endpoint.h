// What the ends of a channel have in common as Python objects: a sender, a receiver, and a queue, which has both.
//
// All calls need the GIL. Threads may close an end, and take what is deferred, while others are in calls of it.
//
// What an object has of its channel is endpoint::Port's; here is what Python needs besides.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

#include "bindings/cpython/python_api.h"
#include "endpoint/port.h"

namespace shmtree::python {

// How long calls of an object have waited for an end that nobody uses (vain_wait.h).
struct VainWait {
  std::atomic<std::int64_t> waited_ns;
  std::atomic<std::int64_t> counted_to_ns;  // a time, up to which they are counted
  std::atomic<std::uint64_t> passed;        // messages through the other end by then
  std::atomic<bool> told;
};

struct Endpoint {
  PyObject_HEAD endpoint::Port port;
  bool allow_pickle;
  bool is_queue;
  std::atomic<PyObject*> deferred;  // an exception for the next receiving call; owned
  VainWait vain;
  std::atomic<unsigned long> getter;        // the thread that last had to wait for a message; 0: none
  std::atomic<std::int64_t> getter_ns;      // when it began to
  std::atomic<std::uint64_t> polled;        // receive count, plus one, at the last fileno() that found a message
  std::atomic<std::uint32_t> polled_again;  // how often that was asked for since, with the same message there
  std::atomic<std::uint64_t> pickled;       // messages given to put() that needed a pickle
  Endpoint *previous, *next;                // of all of this process
};

// As Python names them.
constexpr channel::End end_of(bool receiving) noexcept {
  return receiving ? channel::End::kReceiving : channel::End::kSending;
}

inline Endpoint* as_endpoint(PyObject* object) noexcept {
  return reinterpret_cast<Endpoint*>(object);
}

// The channel, within a Call, or null with ChannelClosed set. Also looks after what has to be looked after lazily.
channel::Channel* open_channel(Endpoint* self, channel::End which);
// The same for calls that put: also null, with ChannelClosed set, for a queue whose receiving end this object has
// closed and no process has any more.
channel::Channel* begin_sending(Endpoint* self);
// The channel also of an object that was closed, while this process has it by another one; else null with ChannelClosed
// set, or RuntimeError for a queue that was never initialised.
std::shared_ptr<channel::Channel> any_channel(Endpoint* self);
void set_closed_here(const Endpoint* self);
// Attaches the end if it is passive. False with ChannelClosed set, when the stream has ended in the meantime.
bool attach_if_passive(Endpoint* self, channel::End which);

// Calls visit(end) for each object of an end that this process has over a fork; with the GIL. No other thread may make
// or drop any meanwhile.
template <class Visit>
void for_each_inherited(Visit visit);

// act(channel) in a call of an object whose end is open, or null as open_channel().
template <class Act>
PyObject* with_open(PyObject* object, channel::End which, Act act) {
  Endpoint* const self = as_endpoint(object);
  const endpoint::Call call(self->port);
  channel::Channel* const channel = open_channel(self, which);
  return channel ? act(*channel) : nullptr;
}
// act(channel) in a call of an object that may be closed, or null as any_channel().
template <class Act>
PyObject* with_any(PyObject* object, Act act) {
  Endpoint* const self = as_endpoint(object);
  const endpoint::Call call(self->port);
  const auto channel = self->port.closed() ? any_channel(self) : self->port.any_channel();
  return channel ? act(*channel) : nullptr;
}
// A queue tells of itself also when it is closed.
template <class Act>
PyObject* with_readable(PyObject* object, Act act) {
  return as_endpoint(object)->is_queue ? with_any(object, act) : with_open(object, channel::End::kReceiving, act);
}

// The newest of the objects there are.
Endpoint* newest_endpoint() noexcept;

template <class Visit>
void for_each_inherited(Visit visit) {
  for (Endpoint* each = newest_endpoint(); each; each = each->next) {
    if (each->port.was_attached() && each->port.is_inherited()) visit(*each);
  }
}

// Of a type of ends: what it is made of, one table after the other.
struct EndType {
  const char* name;
  newfunc make;
  std::initializer_list<std::span<const PyMethodDef>> methods;
  std::span<const PyGetSetDef> attributes;  // besides those that all have
  bool iterates;
  const char* doc;
};
// Makes the type, and adds it to the module. False with a Python error set.
bool add_end_type(PyObject* module, const EndType& made);
// What they are made by: an object without any end, and one with one end.
Ref alloc_endpoint(PyTypeObject* type);
PyObject* new_endpoint(PyTypeObject* type, PyObject* args, PyObject* kwargs, channel::End end);
// Takes part in these ends. False with a Python error set.
bool attach_endpoint(Endpoint* self, PyObject* channel, std::initializer_list<channel::End> ends, bool allow_pickle);

// Who it is that pickles are refused by, after name_refuser().
[[gnu::cold]] const char* refuser_of_pickles(const Endpoint& self) noexcept;

// Called with an object of which an end was closed, for those who wait elsewhere than in its calls. A Python callable
// that returns None; at most one.
void set_close_callback(PyObject* callback);
// After an end was closed: calls it. None, or null with a Python error set.
PyObject* tell_of_close(PyObject* self);
// A descriptor that is readable while there is something to do at that end.
PyObject* wake_descriptor(PyObject* self, channel::End which);
// The same for a caller that also looks in slices: (descriptor, whether it was opened now). And the end of its use.
PyObject* open_wake_descriptor(PyObject* self, channel::End which);
PyObject* close_wake_descriptor(PyObject* self, channel::End which);
// As what a hub tells of that end; and, from the hub, once it is told of, whether there is something to do already.
PyObject* wake_name(PyObject* self, channel::End which);
PyObject* await_wake(PyObject* self, channel::End which, PyObject* hub);

class EndHooks;
// Of what was put: a sender's put() returns the ticket, a queue's nothing. Null with a Python error set.
PyObject* told_ticket(Endpoint* self, EndHooks& hooks, const Result<std::uint64_t>& ticket);

// What senders and queues have (send.cpp), and receivers and queues (receive.cpp).
std::span<const PyMethodDef> sending_methods();
std::span<const PyMethodDef> receiving_methods();
PyObject* next_object(PyObject* self);  // of an iteration

// Create the types and add them to the module. False with a Python error set.
bool init_sender(PyObject* module);
bool init_receiver(PyObject* module);
bool init_queue(PyObject* module);
bool init_delivery(PyObject* module);

}  // namespace shmtree::python
