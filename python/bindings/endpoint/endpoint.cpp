#include "bindings/endpoint/endpoint.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "platform/clock.h"

namespace shmtree::python {

using channel::Channel;
using channel::End;

namespace {

void leave(Endpoint* self, End which) noexcept {
  if (self->joined[static_cast<std::size_t>(which)].exchange(false)) self->channel->leave(which);
}

PyObject* get_closed(PyObject* self, void*) {
  return PyBool_FromLong(all_closed(as_endpoint(self)));
}

PyObject* get_allow_pickle(PyObject* self, void*) {
  return PyBool_FromLong(as_endpoint(self)->allow_pickle);
}

PyObject* get_channel(PyObject* self, void*) {
  auto channel = any_channel(as_endpoint(self));
  return channel ? pybind11::cast(std::move(channel)).release().ptr() : nullptr;
}

PyObject* get_name(PyObject* self, void*) {
  const CriticalSection alone(self);
  PyObject* name = as_endpoint(self)->name;
  return Py_NewRef(name ? name : Py_None);
}

int set_name(PyObject* self, PyObject* value, void*) {
  Ref old;
  const CriticalSection alone(self);
  PyObject* name = value == Py_None ? nullptr : value;
  Py_XINCREF(name);
  old = Ref(std::exchange(as_endpoint(self)->name, name));
  return 0;
}

}  // namespace

bool attach_endpoint(Endpoint* self, PyObject* given, bool allow_pickle) {
  const CriticalSection alone(reinterpret_cast<PyObject*>(self));
  std::shared_ptr<Channel> channel;
  try {
    channel = pybind11::handle(given).cast<std::shared_ptr<Channel>>();
  } catch (const pybind11::cast_error&) {
    channel = nullptr;  // as None is cast to, without an error
  }
  if (!channel) {
    PyErr_SetString(PyExc_TypeError, "ends are made in pairs: see shmtree.create_pair()");
    return false;
  }
  if (self->attached) {
    PyErr_SetString(PyExc_RuntimeError, "this object has, or had, a channel already");
    return false;
  }
  self->channel = std::move(channel);
  self->known = self->channel;
  self->attached = true;
  self->calls.list();
  self->allow_pickle = allow_pickle;
  for (const End which : {End::kSending, End::kReceiving}) {
    const auto index = static_cast<std::size_t>(which);
    if (!self->has[index]) continue;
    const Status joined = self->channel->join(which);
    if (!joined.ok()) return raise(joined.error()), false;
    self->joined[index] = true;
    self->closed[index] = false;
  }
  self->released = false;
  return true;
}

Ref alloc_endpoint(PyTypeObject* type) {
  Ref self(type->tp_alloc(type, 0));
  if (!self) return self;
  Endpoint* endpoint = as_endpoint(self.get());
  new (&endpoint->channel) std::shared_ptr<Channel>();
  new (&endpoint->known) std::weak_ptr<Channel>();
  endpoint->released = true;  // there is nothing yet
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
  Endpoint* endpoint = as_endpoint(self.get());
  endpoint->has[static_cast<std::size_t>(end)] = true;
  return attach_endpoint(endpoint, given, allow_pickle != 0) ? self.release() : nullptr;
}

PyGetSetDef endpoint_getset[] = {
    {"closed", guarded<get_closed>, nullptr, "Whether close() was called on this object.", nullptr},
    {"allow_pickle", guarded<get_allow_pickle>, nullptr, "Whether this end may send, or load, pickles.", nullptr},
    {"_channel", guarded<get_channel>, nullptr, "The channel itself.", nullptr},
    {"_name", guarded<get_name>, set_name, "The name that this end keeps, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

void dealloc_endpoint(PyObject* self) {
  Endpoint* endpoint = as_endpoint(self);
  PyTypeObject* type = Py_TYPE(self);
  for (const End which : {End::kSending, End::kReceiving}) leave(endpoint, which);
  endpoint->calls.unlist();
  endpoint->channel.~shared_ptr();
  endpoint->known.~weak_ptr();
  Py_XDECREF(endpoint->name);
  Py_XDECREF(endpoint->deferred.load());
  type->tp_free(self);
  Py_DECREF(type);
}

void release_channel(Endpoint* self) {
  if (self->released.exchange(true)) return;
  Ref name;
  std::shared_ptr<Channel> channel;
  {
    const CriticalSection alone(reinterpret_cast<PyObject*>(self));
    name = Ref(std::exchange(self->name, nullptr));
    channel = std::exchange(self->channel, nullptr);
  }
}

namespace {

PyObject* close_callback = nullptr;  // set as the package is imported

}  // namespace

void set_close_callback(PyObject* callback) {
  Py_INCREF(callback);
  Py_XDECREF(std::exchange(close_callback, callback));
}

void close_end(Endpoint* self, End which) {
  const InCall call(self);
  if (!self->has[static_cast<std::size_t>(which)] || closed_flag(self, which).exchange(true)) return;
  if (all_closed(self)) self->ended = true;
  leave(self, which);
  self->channel->watchers().wake_all();  // threads that wait at this object
}

PyObject* tell_of_close(PyObject* self) {
  return close_callback ? call_python(close_callback, self) : Py_NewRef(Py_None);
}

PyObject* close_endpoint(PyObject* self, PyObject*) {
  for (const End which : {End::kSending, End::kReceiving}) close_end(as_endpoint(self), which);
  return tell_of_close(self);
}

void set_closed_here(const Endpoint* self) {
  PyErr_SetString(error_types().channel_closed, self->is_queue ? "this queue is closed in this process"
                                                               : "this end of the channel was closed in this process");
}

Channel* open_channel(Endpoint* self, End which) {
  if (idle_wanted.load(std::memory_order_relaxed)) [[unlikely]]
    call_idle_callback();
  // After InCall has counted the call, in one order with close(): that sees the count, or this sees that it is closed.
  if (!closed_flag(self, which).load(std::memory_order_seq_cst)) [[likely]]
    return self->channel.get();
  set_closed_here(self);
  return nullptr;
}

std::shared_ptr<Channel> any_channel(Endpoint* self) {
  auto channel = self->known.lock();
  if (channel) return channel;
  if (self->is_queue && !self->attached) {
    PyErr_SetString(PyExc_RuntimeError, "this queue was not initialised: __init__() of its class was not called");
  } else {
    set_closed_here(self);
  }
  return nullptr;
}

std::shared_ptr<Channel> any_channel_in_call(Endpoint* self) {
  if (!self->channel || all_closed(self)) return any_channel(self);
  return {std::shared_ptr<Channel>(), self->channel.get()};
}

namespace {

constexpr std::int64_t kTold = -1;
std::atomic<std::int64_t> unloaded_after_ns{10'000'000'000};

bool warn(End peers, const channel::OnTheirWay& sent) {
  const char* what = peers == End::kSending ? "sender" : "receiver";
  const auto seconds = static_cast<unsigned long long>(std::max<std::int64_t>(sent.age_ns, 0) / 1'000'000'000);
  const std::string who = sent.pid == 0 ? "a process that has ended" : "process " + std::to_string(sent.pid);
  return PyErr_WarnFormat(error_types().unused_end_warning, 1,
                          "this channel waits for nobody but a %s that %s pickled %llu s ago and that has not been "
                          "loaded (%llu in all): it keeps the stream open until it is, or that process ends",
                          what, who.c_str(), seconds, static_cast<unsigned long long>(sent.count)) == 0;
}

}  // namespace

bool warn_of_unloaded(Endpoint* self, End waiting) {
  std::atomic<std::int64_t>& since = self->unloaded_since_ns;
  std::int64_t begun = since.load(std::memory_order_relaxed);
  if (begun == kTold) return true;
  const End peers = waiting == End::kReceiving ? End::kSending : End::kReceiving;
  Channel& channel = *self->channel;
  if (channel.ending() == channel::Ending::kNever || !channel.ends().is_only_on_its_way(peers)) {
    since.store(0, std::memory_order_relaxed);
    return true;
  }
  const std::int64_t now = platform::monotonic_ns();
  if (begun == 0) {
    since.store(now, std::memory_order_relaxed);
    return true;
  }
  if (now - begun < unloaded_after_ns.load(std::memory_order_relaxed) || !since.compare_exchange_strong(begun, kTold)) {
    return true;
  }
  return warn(peers, channel.ends().on_their_way(peers));
}

void set_unloaded_after(double seconds) {
  unloaded_after_ns = static_cast<std::int64_t>(seconds * 1e9);
}

}  // namespace shmtree::python
