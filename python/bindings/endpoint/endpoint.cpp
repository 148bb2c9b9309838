#include "bindings/endpoint/endpoint.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/objects/deaths.h"
#include "platform/clock.h"

namespace shmtree::python {

using channel::Channel;
using channel::End;
using endpoint::Name;

namespace {

PyObject* get_channel(PyObject* self, void*) {
  auto channel = any_channel(as_endpoint(self));
  return channel ? pybind11::cast(std::move(channel)).release().ptr() : nullptr;
}

PyObject* get_name(PyObject* self, void*) {
  return pybind11::cast(as_endpoint(self)->port.name()).release().ptr();
}

int set_name(PyObject* self, PyObject* value, void*) {
  try {
    as_endpoint(self)->port.set_name(pybind11::cast<std::shared_ptr<Name>>(pybind11::handle(value)));
  } catch (const pybind11::cast_error&) {
    PyErr_Format(PyExc_TypeError, "_name is %R; it must be a Name, or None", value);
    return -1;
  }
  return 0;
}

PyObject* attach_inherited(PyObject* self, PyObject*) {
  const endpoint::Call call(as_endpoint(self)->port);
  for (const End which : channel::kEnds) {
    if (!attach_if_passive(as_endpoint(self), which)) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* expect_no_end(PyObject* self, PyObject*) {
  as_endpoint(self)->stalled_wait.was_warned.store(true, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

const PyMethodDef kEndpointMethods[] = {
    {"_attach_inherited", as_method<attach_inherited>(), METH_NOARGS, nullptr},
    {"_expect_no_end", as_method<expect_no_end>(), METH_NOARGS, nullptr},
};

const PyGetSetDef kEndpointAttributes[] = {
    {"_channel", guarded<get_channel>, nullptr, nullptr, nullptr},
    {"_name", guarded<get_name>, guarded<set_name>, nullptr, nullptr},
};

// All Endpoint objects of this process, the newest first. Changed under the mutex; the GIL suffices to read it.
platform::ForkSafeMutex endpoints_mutex;
Endpoint* endpoints = nullptr;

void add_to_all(Endpoint* self) noexcept {
  const std::lock_guard guard(endpoints_mutex);
  self->next = endpoints;
  if (endpoints) endpoints->previous = self;
  endpoints = self;
}

void remove_from_all(Endpoint* self) noexcept {
  const std::lock_guard guard(endpoints_mutex);
  (self->previous ? self->previous->next : endpoints) = self->next;
  if (self->next) self->next->previous = self->previous;
}

// --- Functions of EndKind --------------------------------------------------------------------------------------------

bool is_closed(const EndObject* self) noexcept {
  return static_cast<const Endpoint*>(self)->port.closed();
}

void close_both(EndObject* self) noexcept {
  note_size(static_cast<Endpoint*>(self));
  for (const End which : channel::kEnds) static_cast<Endpoint*>(self)->port.close(which);
}

void fail_sender(EndObject* self, memory::Failure failure) noexcept {
  static_cast<Endpoint*>(self)->port.fail(End::kSending, failure);
}

std::shared_ptr<memory::Arena> arena_of(EndObject* self) {
  const auto channel = any_channel(static_cast<Endpoint*>(self));
  return channel ? channel->arena() : nullptr;
}

PyObject* new_array_of_sender(EndObject* self, const ArrayRequest& request) {
  Endpoint* const end = static_cast<Endpoint*>(self);
  return with_any(reinterpret_cast<PyObject*>(self), [&](Channel& channel) {
    EndHooks hooks(end, End::kSending);
    PyObject* array = new_array(channel.arena(), request, hooks);
    if (!array && hooks.was_closed()) set_closed_here(end);
    return array;
  });
}

const char* refuser_of_pickles(const EndObject* self) noexcept {
  if (static_cast<const Endpoint*>(self)->port.channel().allows_pickle()) return "this end";
  return self->allow_pickle ? "the process that created the channel"
                            : "the process that created the channel and of this end";
}

void destroy(EndObject* self) noexcept {
  remove_from_all(static_cast<Endpoint*>(self));
  static_cast<Endpoint*>(self)->port.~Port();
}

void set_closed(const EndObject* self) noexcept {
  set_closed_here(static_cast<const Endpoint*>(self));
}

constexpr EndKind kChannelEnds{is_closed,           close_both, fail_sender,        arena_of,
                               new_array_of_sender, set_closed, refuser_of_pickles, destroy};

}  // namespace

std::span<const PyMethodDef> endpoint_methods() {
  return kEndpointMethods;
}

std::span<const PyGetSetDef> endpoint_attributes() {
  return kEndpointAttributes;
}

bool attach_endpoint(Endpoint* self, PyObject* given, std::initializer_list<End> ends, bool allow_pickle) {
  const CriticalSection alone(reinterpret_cast<PyObject*>(self));
  std::shared_ptr<Channel> channel;
  try {
    channel = pybind11::handle(given).cast<std::shared_ptr<Channel>>();
  } catch (const pybind11::cast_error&) {
    channel = nullptr;  // the result of a cast from None, which is no error either
  }
  if (!channel) {
    PyErr_SetString(PyExc_TypeError, "an end needs a channel: create both ends with shmtree.create_pair()");
    return false;
  }
  if (self->port.was_attached()) {
    PyErr_SetString(PyExc_RuntimeError, "this object already has, or had, a channel");
    return false;
  }
  self->allow_pickle = allow_pickle;
  note_process_name();  // the program may have renamed the process
  self->spin.set_as(channel->arena()->spin());
  const Status attached = self->port.attach(std::move(channel), ends);
  if (!attached) raise(attached.error());
  return attached.ok();
}

Ref alloc_endpoint(PyTypeObject* type) {
  Ref self(type->tp_alloc(type, 0));
  if (!self) return self;
  as_endpoint(self.get())->kind = &kChannelEnds;
  new (&as_endpoint(self.get())->port) endpoint::Port();
  add_to_all(as_endpoint(self.get()));
  return self;
}

PyObject* new_endpoint(PyTypeObject* type, PyObject* args, PyObject* kwargs, End end) {
  static const char* const names[] = {"channel", "allow_pickle", nullptr};
  PyObject* given = nullptr;
  int allow_pickle = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p", const_cast<char**>(names), &given, &allow_pickle)) {
    return nullptr;
  }
  Ref self = alloc_endpoint(type);
  if (!self) return nullptr;
  return attach_endpoint(as_endpoint(self.get()), given, {end}, allow_pickle != 0) ? self.release() : nullptr;
}

void note_size(Endpoint* self) noexcept {
  if (!self->is_queue || self->port.closed()) return;
  const endpoint::Call call(self->port);
  if (const auto channel = self->port.known_channel()) {
    self->last_size.store(channel->size(), std::memory_order_relaxed);
    self->last_capacity.store(channel->capacity(), std::memory_order_relaxed);
  }
}

void set_closed_here(const Endpoint* self) {
  PyErr_SetString(error_types().channel_closed, self->is_queue ? "this queue is closed in this process"
                                                               : "this end of the channel was closed in this process");
}

Channel* open_channel(Endpoint* self, End which) {
  if (idle_wanted.load(std::memory_order_relaxed)) [[unlikely]]
    call_idle_callback();
  if (self->port.is_attached(which)) [[likely]]
    return &self->port.channel();
  if (!self->port.closed(which)) return attach_if_passive(self, which) ? &self->port.channel() : nullptr;
  set_closed_here(self);
  return nullptr;
}

namespace {

// Returns false with a Python error set.
[[gnu::cold, gnu::noinline]] bool has_receivers(Channel& channel) {
  notice_deaths(*channel.arena(), kLongPollIntervalNs);
  const Status attended = channel.ends().check_open(End::kReceiving);
  if (attended.ok()) return true;
  block_if_left_behind();
  raise(attended.error());
  return false;
}

}  // namespace

Channel* begin_sending(Endpoint* self) {
  Channel* const channel = open_channel(self, End::kSending);
  if (channel && channel->takes_requests() && !self->sends_requests) [[unlikely]] {
    PyErr_SetString(PyExc_ValueError,
                    "this sender is of a Service, which takes requests only: send them with shmtree.Client");
    return nullptr;
  }
  if (!channel || !self->is_queue || !self->port.closed(End::kReceiving)) [[likely]]
    return channel;
  return has_receivers(*channel) ? channel : nullptr;
}

bool attach_if_passive(Endpoint* self, End which) {
  const Status attached = self->port.attach_again(which);
  if (!attached) raise(attached.error());
  return attached.ok();
}

Endpoint* newest_endpoint() noexcept {
  return endpoints;
}

std::shared_ptr<Channel> any_channel(Endpoint* self) {
  auto channel = self->port.known_channel();
  if (channel) return channel;
  if (self->is_queue && !self->port.was_attached()) {
    PyErr_SetString(PyExc_RuntimeError, "this queue was not initialised: __init__() of its class was not called");
  } else {
    set_closed_here(self);
  }
  return nullptr;
}

namespace {

// Slows down a thread that polls the same message repeatedly. The receiving thread then gets the GIL before the switch
// interval has passed.
void let_receive(Endpoint* self, Channel& channel) {
  using namespace platform::wait_policy;
  const unsigned long getter = self->getter.load(std::memory_order_relaxed);
  if (getter == 0 || getter == PyThread_get_thread_ident() || !channel.ready()) return;
  if (platform::monotonic_ns() - self->getter_ns.load(std::memory_order_relaxed) > kGetterIsThereNs) return;
  const std::uint64_t received = channel.passed(End::kReceiving) + 1;
  if (self->polled.exchange(received) != received) return self->polled_again.store(0);
  const std::uint32_t again = std::min(self->polled_again.fetch_add(1), 16u);
  const WithoutGil unlocked;
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kGetterFirstNs << again, kMaxGetterFirstNs)));
}

}  // namespace

PyObject* descriptor(PyObject* self, End which, Result<int> (channel::Watchers::*get)(End)) {
  return with_open(self, which, [&](Channel& channel) {
    if (which == End::kReceiving) let_receive(as_endpoint(self), channel);
    auto fd = (channel.watchers().*get)(which);
    return fd ? PyLong_FromLong(*fd) : raise(fd.error());
  });
}

PyObject* wake_descriptor(PyObject* self, End which) {
  return with_open(self, which, [which](Channel& channel) {
    auto fd = channel.watchers().wake_fd(which);
    return fd ? PyLong_FromLong(*fd) : raise(fd.error());
  });
}

PyObject* open_wake_descriptor(PyObject* self, End which) {
  return with_open(self, which, [which](Channel& channel) {
    bool opened = false;
    auto fd = channel.watchers().wake_fd(which, &opened);
    return fd ? Py_BuildValue("(iN)", *fd, PyBool_FromLong(opened)) : raise(fd.error());
  });
}

PyObject* close_wake_descriptor(PyObject* self, End which) {
  const endpoint::Port& port = as_endpoint(self)->port;
  if (auto channel = port.closed(which) ? nullptr : port.known_channel()) channel->watchers().close_wake_fd(which);
  Py_RETURN_NONE;
}

PyObject* wake_name(PyObject* self, End which) {
  return with_open(self, which, [which](Channel& channel) {
    const channel::EndName name = channel.watchers().name_of(which);
    return PyBytes_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
  });
}

PyObject* await_wake(PyObject* self, End which, PyObject* hub) {
  Endpoint* const end = as_endpoint(self);
  const endpoint::Call call(end->port);
  if (end->port.closed(which) || (which == End::kReceiving && end->deferred)) Py_RETURN_TRUE;
  if (!attach_if_passive(end, which)) return nullptr;
  channel::WakeHub* const to = hub_of(hub);
  if (!to) return nullptr;
  auto usable = end->port.channel().watchers().await(which, *to);
  return usable ? PyBool_FromLong(*usable) : raise(usable.error());
}

}  // namespace shmtree::python
