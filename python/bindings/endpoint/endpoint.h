// The common part of the Python objects for ends of a channel: a sender, a receiver, and a queue, which has both ends.
//
// All calls need the GIL.
//
// endpoint::Port manages the object's share of the channel. This file adds what only Python needs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>

#include "bindings/cpython/python_api.h"
#include "bindings/endpoint/end_object.h"
#include "endpoint/port.h"

namespace shmtree::python {

// Time that calls of an object have waited for an end that no process uses (stalled_wait.h).
struct StalledWait {
  std::atomic<std::int64_t> waited_ns;
  std::atomic<std::int64_t> counted_to_ns;  // the time up to which waited_ns counts
  std::atomic<std::uint64_t> passed;        // messages that had passed the other end at that time
  std::atomic<bool> was_warned;
};

struct Endpoint : EndObject {
  endpoint::Port port;
  bool is_queue;
  bool sends_requests;  // of a Client: may put into the channel of a Service
  StalledWait stalled_wait;
  std::atomic<unsigned long> getter;    // the thread that last blocked for a message; 0: none
  std::atomic<std::int64_t> getter_ns;  // when it began to wait
  // Receive count, plus one, at the last fileno() that found a message.
  std::atomic<std::uint64_t> polled;
  std::atomic<std::uint32_t> polled_again;  // calls of fileno() since then that found the same message
  // Number of a request (service/wire.h) with a reply that could not be decoded, until a Client reads it. 0: none.
  std::atomic<std::int64_t> failed_reply;
  // Messages and capacity of a queue when this object of it was closed.
  std::atomic<std::uint64_t> last_size, last_capacity;
  Endpoint *previous, *next;  // links of the list of all objects of this process
};

// Converts a flag from Python.
constexpr channel::End end_of(bool receiving) noexcept {
  return receiving ? channel::End::kReceiving : channel::End::kSending;
}

inline Endpoint* as_endpoint(PyObject* object) noexcept {
  return static_cast<Endpoint*>(as_end(object));
}

// Returns the channel, within a Call, or null with ChannelClosed set. Also does deferred work.
channel::Channel* open_channel(Endpoint* self, channel::End which);
// Does the same for calls that put. It also returns null, with ChannelClosed set, for a queue object that has closed
// its receiving end, if no process has a receiving end any more. ValueError is set for the channel of a Service, unless
// the object sends requests.
channel::Channel* begin_sending(Endpoint* self);
// Notes the size of a queue that this object is about to close. Its qsize() and full() return it when the process has
// no other object of the channel, as those of multiprocessing.Queue do.
void note_size(Endpoint* self) noexcept;
// Returns the channel also if the object was closed, as long as this process has another object of the channel.
// Otherwise returns null with ChannelClosed set, or with RuntimeError set for a queue that was never initialised.
std::shared_ptr<channel::Channel> any_channel(Endpoint* self);
void set_closed_here(const Endpoint* self);
// Attaches the end if it is passive. Returns false with ChannelClosed set if the stream has ended in the meantime.
bool attach_if_passive(Endpoint* self, channel::End which);

// Calls visit(end) for each object of an end that this process inherited through fork. Needs the GIL. No other thread
// may make or drop an end meanwhile.
template <class Visit>
void for_each_inherited(Visit visit);

// Calls act(channel) in a call of an object if the end is open. Returns null on the same errors as open_channel().
template <class Act>
PyObject* with_open(PyObject* object, channel::End which, Act act) {
  Endpoint* const self = as_endpoint(object);
  const endpoint::Call call(self->port);
  channel::Channel* const channel = open_channel(self, which);
  return channel ? act(*channel) : nullptr;
}
// Calls act(channel) in a call of an object that may be closed. Returns null on the same errors as any_channel().
template <class Act>
PyObject* with_any(PyObject* object, Act act) {
  Endpoint* const self = as_endpoint(object);
  const endpoint::Call call(self->port);
  const auto channel = self->port.closed() ? any_channel(self) : self->port.any_channel();
  return channel ? act(*channel) : nullptr;
}
// Calls act(channel) for a property of the receiving end. A queue reports it even when it is closed.
template <class Act>
PyObject* with_readable(PyObject* object, Act act) {
  return as_endpoint(object)->is_queue ? with_any(object, act) : with_open(object, channel::End::kReceiving, act);
}

// Returns the object that was made last.
Endpoint* newest_endpoint() noexcept;

template <class Visit>
void for_each_inherited(Visit visit) {
  for (Endpoint* each = newest_endpoint(); each; each = each->next) {
    if (each->port.was_attached() && each->port.is_inherited()) visit(*each);
  }
}

// Make an object without any end, and an object with one end.
Ref alloc_endpoint(PyTypeObject* type);
PyObject* new_endpoint(PyTypeObject* type, PyObject* args, PyObject* kwargs, channel::End end);
// Attaches the object to these ends. Returns false with a Python error set.
bool attach_endpoint(Endpoint* self, PyObject* channel, std::initializer_list<channel::End> ends, bool allow_pickle);

// Returns the descriptor for poll loops that this function of the channel's Watchers makes.
PyObject* descriptor(PyObject* self, channel::End which, Result<int> (channel::Watchers::*get)(channel::End));
// Returns a descriptor that is readable while the end is ready.
PyObject* wake_descriptor(PyObject* self, channel::End which);
// For a caller that also polls now and then: returns (descriptor, true if this call opened it), and ends its use.
PyObject* open_wake_descriptor(PyObject* self, channel::End which);
PyObject* close_wake_descriptor(PyObject* self, channel::End which);
// wake_name() returns the name by which a hub reports the end. await_wake() registers the end with a hub, and returns
// true if the end is ready already.
PyObject* wake_name(PyObject* self, channel::End which);
PyObject* await_wake(PyObject* self, channel::End which, PyObject* hub);
// Wraps such a function as a method for one end.
template <auto function, channel::End which>
PyObject* method_of_end(PyObject* self, PyObject* argument) {
  if constexpr (std::is_invocable_v<decltype(function), PyObject*, channel::End>) {
    return function(self, which);
  } else {
    return function(self, which, argument);
  }
}

class EndHooks;
// Returns the result of a put: the ticket for a sender, None for a queue. Returns null with a Python error set.
PyObject* ticket_or_error(Endpoint* self, EndHooks& hooks, const Result<std::uint64_t>& ticket);
// Puts an object, as Sender.put() does.
PyObject* put_object(Endpoint* self, PyObject* object, platform::Deadline deadline, bool move);

// Tables of methods. endpoint_methods(): all ends of channels. putting_methods() of put_methods.h, and
// sending_methods(): senders and queues (sender.cpp). getting_methods() of get_methods.h, and receiving_methods():
// receivers and queues (receiver.cpp).
std::span<const PyMethodDef> endpoint_methods();
std::span<const PyGetSetDef> endpoint_attributes();
std::array<PyMethodDef, 3> putting_methods();
std::span<const PyMethodDef> sending_methods();
std::array<PyMethodDef, 3> getting_methods();
std::span<const PyMethodDef> receiving_methods();
PyObject* next_object(PyObject* self);  // tp_iternext

}  // namespace shmtree::python
