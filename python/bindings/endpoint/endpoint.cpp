#include "bindings/endpoint/endpoint.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cstring>
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
#include "bindings/objects/deaths.h"
#include "platform/clock.h"

namespace shmtree::python {

using channel::Channel;
using channel::End;
using endpoint::Name;

namespace {

PyObject* get_closed(PyObject* self, void*) {
  return PyBool_FromLong(as_endpoint(self)->port.closed());
}

PyObject* get_allow_pickle(PyObject* self, void*) {
  return PyBool_FromLong(as_endpoint(self)->allow_pickle);
}

PyObject* get_pickled(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_endpoint(self)->pickled.load(std::memory_order_relaxed));
}

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

PyObject* close_all(PyObject* self, PyObject*) {
  note_size(as_endpoint(self));
  for (const End which : channel::kEnds) as_endpoint(self)->port.close(which);
  return run_close_callback(self);
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

const PyMethodDef common_methods[] = {
    {"_attach_inherited", as_method<attach_inherited>(), METH_NOARGS, nullptr},
    {"_expect_no_end", as_method<expect_no_end>(), METH_NOARGS, nullptr},
    {"close", as_method<close_all>(), METH_NOARGS, nullptr},
};

const PyGetSetDef common_attributes[] = {
    {"closed", guarded<get_closed>, nullptr, nullptr, nullptr},
    {"allow_pickle", guarded<get_allow_pickle>, nullptr, nullptr, nullptr},
    {"_pickled", guarded<get_pickled>, nullptr, nullptr, nullptr},
    {"_channel", guarded<get_channel>, nullptr, nullptr, nullptr},
    {"_name", guarded<get_name>, guarded<set_name>, nullptr, nullptr},
};

// Joins tables into one, which ends with an empty entry. The table is never freed, like the types that use it.
template <class Entry>
Entry* joined(const std::vector<std::span<const Entry>>& tables) {
  std::size_t count = 1;
  for (const auto& table : tables) count += table.size();
  auto* const all = new Entry[count]{};
  Entry* end = all;
  for (const auto& table : tables) end = std::copy(table.begin(), table.end(), end);
  return all;
}

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

void dealloc_endpoint(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  remove_from_all(as_endpoint(self));
  as_endpoint(self)->port.~Port();
  Py_XDECREF(as_endpoint(self)->deferred.load());
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace

bool add_end_type(PyObject* module, const EndType& made) {
  std::vector<std::span<const PyMethodDef>> methods(made.methods);
  methods.emplace_back(common_methods);
  std::vector<PyType_Slot> slots = {
      {Py_tp_new, reinterpret_cast<void*>(made.make)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_endpoint)},
      {Py_tp_methods, joined(methods)},
      {Py_tp_getset, joined<PyGetSetDef>({common_attributes, made.attributes})},
  };
  if (made.iterates) {
    slots.push_back({Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)});
    slots.push_back({Py_tp_iternext, reinterpret_cast<void*>(guarded<next_object>)});
  }
  slots.push_back({0, nullptr});
  PyType_Spec spec = {made.name, sizeof(Endpoint), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots.data()};
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, std::strrchr(made.name, '.') + 1, type.get()) == 0;
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
  const Status attached = self->port.attach(std::move(channel), ends);
  if (!attached) raise(attached.error());
  return attached.ok();
}

const char* refuser_of_pickles(const Endpoint& self) noexcept {
  if (self.port.channel().allows_pickle()) return "this end";
  return self.allow_pickle ? "the process that created the channel"
                           : "the process that created the channel and of this end";
}

Ref alloc_endpoint(PyTypeObject* type) {
  Ref self(type->tp_alloc(type, 0));
  if (!self) return self;
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

namespace {

PyObject* close_callback = nullptr;  // set when the package is imported

}  // namespace

void set_close_callback(PyObject* callback) {
  Py_INCREF(callback);
  Py_XDECREF(std::exchange(close_callback, callback));
}

PyObject* run_close_callback(PyObject* self) {
  return close_callback ? call_python(close_callback, self) : Py_NewRef(Py_None);
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
  auto usable = end->port.channel().watchers().await(which, pybind11::handle(hub).cast<channel::WakeHub&>());
  return usable ? PyBool_FromLong(*usable) : raise(usable.error());
}

}  // namespace shmtree::python
