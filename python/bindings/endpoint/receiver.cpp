// _core.ReceiverBase: the receiving end.
//
// Signal handlers run during waits, and while a large object is built. If one of them raises, the message returns to
// the channel. No handler runs after the object is built and before the call returns it.
#include <memory>
#include <utility>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/frames.h"
#include "bindings/endpoint/get_methods.h"
#include "bindings/endpoint/incoming.h"
#include "bindings/endpoint/spans.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/objects/deaths.h"
#include "endpoint/receive.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;

Pool<channel::Received> spares;

// Storage that a call reuses for its messages. It is reserved beforehand, so that returning a message needs no memory.
struct Spare {
  std::unique_ptr<channel::Received> buffer{spares.take()};
  Spare() = default;
  Spare(const Spare&) = delete;
  Spare& operator=(const Spare&) = delete;
  ~Spare() {
    if (buffer) spares.give_back(buffer.release());
  }
};

PyObject* get_object(Endpoint* self, Deadline deadline, CopyPolicy copy) {
  const Span span("shmtree.get");
  const endpoint::Call call(self->port);
  Channel* channel = begin_receiving(self);
  if (!channel) return nullptr;
  EndHooks hooks(self, End::kReceiving);
  Spare spare;
  Objects objects(self, copy, &hooks);
  return endpoint::receive(objects, *channel, spare.buffer, {deadline, &hooks, &self->spin}).release();
}

// Collects the objects of get_many().
class ManyObjects final : public Objects {
 public:
  ManyObjects(Endpoint* self, CopyPolicy copy, EndHooks* hooks, PyObject* items, Py_ssize_t most)
      : Objects(self, copy, hooks), items_(items), most_(most) {}

  Ref decode(Channel& channel, channel::Incoming& message, bool* may_retry) {
    Ref object = Objects::decode(channel, message, may_retry);
    if (!object || PyList_Append(items_, object.get()) == 0) return object;
    message.set_not_built();
    *may_retry = true;
    return Ref();
  }
  bool wants_more() const noexcept { return PyList_GET_SIZE(items_) < most_ && !self_->port.closed(End::kReceiving); }
  void add(const Ref&) noexcept {}
  void defer(const Error& error) {
    if (error.code != Code::kInterrupted) return defer_error(self_, error);
    failed(error);
    defer_exception(self_);
  }
  void defer(const Ref&, bool may_retry) { defer_failed_build(self_, may_retry); }

 private:
  PyObject* items_;
  Py_ssize_t most_;
};

// Makes the Python object for a delivery to this process.
using MakeDelivery = PyObject*(Endpoint* self, channel::Delivery delivery, CopyPolicy copy);

PyObject* take_as(MakeDelivery* make, Endpoint* self, Deadline deadline, CopyPolicy copy) {
  const endpoint::Call call(self->port);
  Channel* channel = begin_receiving(self);
  if (!channel) return nullptr;
  EndHooks hooks(self, End::kReceiving);
  auto delivery = channel->take({deadline, &hooks, &self->spin});
  if (!delivery) return raise_waited(self, hooks, delivery.error());
  return make(self, std::move(*delivery), copy);
}

PyObject* take(PyObject* object, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  Deadline deadline;
  CopyPolicy copy = CopyPolicy::kAuto;
  if (!parse_get("take", args, nargs, keywords, &deadline, &copy)) return nullptr;
  const Span span("shmtree.take");
  return take_as(new_delivery, as_endpoint(object), deadline, copy);
}

// Works like take(), but decodes nothing until `item` is read, to separate errors of the message from errors of the
// call.
PyObject* take_unloaded(PyObject* object, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  Deadline deadline;
  CopyPolicy copy = CopyPolicy::kAuto;
  if (!parse_get("_take_unloaded", args, nargs, keywords, &deadline, &copy)) return nullptr;
  return take_as(new_unloaded, as_endpoint(object), deadline, copy);
}

PyObject* take_failed_reply(PyObject* object, PyObject*) {
  return PyLong_FromLongLong(as_endpoint(object)->failed_reply.exchange(0, std::memory_order_relaxed));
}

PyObject* dead_letters(PyObject* object, PyObject*) {
  return with_open(object, End::kReceiving, [object](Channel& channel) -> PyObject* {
    Endpoint* self = as_endpoint(object);
    EndHooks hooks(self, End::kReceiving);
    auto found = channel.dead_letters({Deadline::immediate(), &hooks});
    if (!found) return raise_waited(self, hooks, found.error());
    Ref list(PyList_New(0));
    if (!list) return nullptr;
    for (channel::Delivery& delivery : *found) {
      Ref made(new_unloaded(self, std::move(delivery), CopyPolicy::kAll));
      if (!made || PyList_Append(list.get(), made.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

// Checks for deaths if the channel is empty, because messages of a dead receiver return to it. Without the check, a
// process that only polls would never see them.
std::uint64_t size_of(Channel& channel) {
  const std::uint64_t size = channel.size();
  return size == 0 && notice_deaths(*channel.arena(), kLongPollIntervalNs) ? channel.size() : size;
}

// True for a closed queue of which this process has no other object: only its last size is known.
bool is_left(const Endpoint* self) {
  return self->is_queue && self->port.closed() && self->port.was_attached() && !self->port.known_channel();
}

PyObject* qsize(PyObject* self, PyObject*) {
  if (is_left(as_endpoint(self))) return PyLong_FromUnsignedLongLong(as_endpoint(self)->last_size.load());
  return with_readable(self, [](Channel& channel) { return PyLong_FromUnsignedLongLong(size_of(channel)); });
}

PyObject* empty(PyObject* self, PyObject*) {
  return with_open(self, End::kReceiving, [](Channel& channel) { return PyBool_FromLong(size_of(channel) == 0); });
}

// A queue counts as full only when it has `maxsize` objects, although a put may have to wait earlier for another
// reason.
PyObject* full(PyObject* self, PyObject*) {
  if (const Endpoint* const end = as_endpoint(self); is_left(end)) {
    const std::uint64_t capacity = end->last_capacity.load();
    return PyBool_FromLong(capacity != 0 && end->last_size.load() >= capacity);
  }
  return with_readable(self, [self](Channel& channel) {
    if (!as_endpoint(self)->is_queue) return PyBool_FromLong(!channel.sending().has_space());
    return PyBool_FromLong(channel.capacity() != 0 && channel.size() >= channel.capacity());
  });
}

// The functions of GetMethods.
struct ReceivingEnd {
  static PyObject* get(PyObject* self, Deadline deadline, CopyPolicy copy) {
    return get_object(as_endpoint(self), deadline, copy);
  }

  static PyObject* get_many(PyObject* object, Py_ssize_t most, Deadline deadline, CopyPolicy copy,
                            std::optional<std::chrono::nanoseconds> within) {
    const Span span("shmtree.get_many");
    Endpoint* self = as_endpoint(object);
    const endpoint::Call call(self->port);
    Ref items(PyList_New(0));
    Channel* channel = items ? begin_receiving(self) : nullptr;
    if (!channel) return nullptr;
    EndHooks hooks(self, End::kReceiving);
    Spare spare;
    ManyObjects objects(self, copy, &hooks, items.get(), most);
    {
      const Span first("shmtree.get");
      if (!endpoint::receive(objects, *channel, spare.buffer, {deadline, &hooks, &self->spin})) return nullptr;
    }
    endpoint::receive_rest(objects, *channel, spare.buffer, {Deadline::after(within), &hooks, &self->spin});
    return items.release();
  }
};

PyObject* is_ready(PyObject* object, PyObject*) {
  Endpoint* self = as_endpoint(object);
  const endpoint::Call call(self->port);
  // An end is also ready if a call would raise at once.
  if (self->port.closed(End::kReceiving) || self->deferred) Py_RETURN_TRUE;
  if (!attach_if_passive(self, End::kReceiving)) return nullptr;
  Channel& channel = self->port.channel();
  return PyBool_FromLong(channel.ready() || (notice_deaths(*channel.arena(), kLongPollIntervalNs) && channel.ready()));
}

PyObject* fileno(PyObject* self, PyObject*) {
  return descriptor(self, End::kReceiving, &channel::Watchers::poll_fd);
}

PyObject* writable_fileno(PyObject* self, PyObject*) {
  return descriptor(self, End::kReceiving, &channel::Watchers::writable_fd);
}

PyObject* wait_until_ready(PyObject* self, PyObject* timeout) {
  Deadline deadline;
  if (!parse_deadline(nullptr, timeout, &deadline)) return nullptr;
  return with_open(self, End::kReceiving, [&](Channel& channel) -> PyObject* {
    Endpoint* const end = as_endpoint(self);
    if (end->deferred) Py_RETURN_TRUE;
    EndHooks hooks(end, End::kReceiving);
    const Status ready = channel.receiving().poll({deadline, &hooks, &end->spin});
    if (ready.ok()) Py_RETURN_TRUE;
    if (ready.code() == Code::kEmpty) Py_RETURN_FALSE;
    return raise_waited(end, hooks, ready.error());
  });
}

PyObject* make_receiver(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return new_endpoint(type, args, kwargs, End::kReceiving);
}

const PyMethodDef kReceivingMethods[] = {
    {"qsize", as_method<qsize>(), METH_NOARGS, nullptr},
    {"empty", as_method<empty>(), METH_NOARGS, nullptr},
    {"full", as_method<full>(), METH_NOARGS, nullptr},
    {"dead_letters", as_method<dead_letters>(), METH_NOARGS, nullptr},
    {"_ready", as_method<is_ready>(), METH_NOARGS, nullptr},
    {"_open_to_wait", as_method<method_of_end<open_wake_descriptor, End::kReceiving>>(), METH_NOARGS, nullptr},
    {"_close_after_wait", as_method<method_of_end<close_wake_descriptor, End::kReceiving>>(), METH_NOARGS, nullptr},
    {"_note_wait_to_get", as_method<method_of_end<note_wait, End::kReceiving>>(), METH_O, nullptr},
    {"_name_to_get", as_method<method_of_end<wake_name, End::kReceiving>>(), METH_NOARGS, nullptr},
    {"_await_to_get", as_method<method_of_end<await_wake, End::kReceiving>>(), METH_O, nullptr},
    {"fileno", as_method<fileno>(), METH_NOARGS, nullptr},
};

const PyMethodDef kReceiverMethods[] = {
    {"_take_failed_reply", as_method<take_failed_reply>(), METH_NOARGS, nullptr},
    {"_writable_fileno", as_method<writable_fileno>(), METH_NOARGS, nullptr},
    {"_wait_until_ready", as_method<wait_until_ready>(), METH_O, nullptr},
    {"take", as_method<take>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_take_unloaded", as_method<take_unloaded>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
};

}  // namespace

std::span<const PyMethodDef> receiving_methods() {
  return kReceivingMethods;
}

std::array<PyMethodDef, 3> getting_methods() {
  return GetMethods<ReceivingEnd>::table();
}

PyObject* next_object(PyObject* self) {
  return Guarded<GetMethods<ReceivingEnd>::next>::call(self);
}

bool init_receiver(PyObject* module) {
  return add_end_type(
      module, {"shmtree._core.ReceiverBase",
               sizeof(Endpoint),
               guarded<make_receiver>,
               {endpoint_methods(), getting_methods(), receiving_methods(), frame_taking_methods(), kReceiverMethods},
               {endpoint_attributes()},
               next_object});
}

}  // namespace shmtree::python
