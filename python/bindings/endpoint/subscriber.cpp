// _core.SubscriberBase: reads the messages of a Broadcast.
#include "bindings/endpoint/subscriber.h"

#include <memory>
#include <new>
#include <utility>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/endpoint/get_methods.h"
#include "channel/wake_hub.h"
#include "endpoint/copy_policy.h"

namespace shmtree::python {

namespace py = pybind11;
using broadcast::Ring;
using broadcast::Subscriber;
using platform::Deadline;

namespace {

struct SubscriberEnd : RingEnd<SubscriberEnd, Subscriber> {
  static constexpr const char* kName = "Subscriber";
  static constexpr const char* kRefuser = "this Subscriber";

  // The functions of GetMethods.
  static PyObject* get(PyObject* self, Deadline deadline, CopyPolicy copy);
  static PyObject* get_many(PyObject* self, Py_ssize_t most, Deadline deadline, CopyPolicy copy,
                            std::optional<std::chrono::nanoseconds> within);
};

Pool<broadcast::Received> broadcast_spares;

// Storage into which a call receives. It is reserved beforehand, so that returning the message needs no memory.
class BroadcastBuffer {
 public:
  explicit BroadcastBuffer(Subscriber& reader) : reader_(reader), received_(broadcast_spares.take()) {}
  ~BroadcastBuffer() {
    if (received_ == nullptr) return;
    received_->message.block.reset();
    broadcast_spares.give_back(received_.release());
  }
  BroadcastBuffer(const BroadcastBuffer&) = delete;
  BroadcastBuffer& operator=(const BroadcastBuffer&) = delete;
  broadcast::Incoming& message() noexcept { return received_->message; }
  void give_back(broadcast::FailedBuild how) noexcept { reader_.give_back(std::move(received_), how); }

 private:
  Subscriber& reader_;
  std::unique_ptr<broadcast::Received> received_;
};

// Returns the next message. If there is no memory to build it, or a signal handler raises, the next call returns it.
// Otherwise, sets `*recurs` if the next call will run into the same error.
PyObject* read_one(SubscriberEnd* self, Subscriber& reader, Deadline deadline, CopyPolicy copy, bool* recurs) {
  RingHooks hooks(self);
  BroadcastBuffer buffer(reader);
  const Status got = reader.get(buffer.message(), {deadline, &hooks, &self->spin});
  if (!got) {
    const Code code = got.code();
    *recurs = code == Code::kEmpty || code == Code::kClosed || code == Code::kPeerDied || hooks.was_closed();
    return hooks.raise(got.error());
  }
  const Ring& ring = *reader.ring();
  const broadcast::Incoming& message = buffer.message();
  const CopyPolicy policy = endpoint::copy_policy_of_published(copy, ring, message.block.valid());
  Retry retry = Retry::kNever;
  PyObject* object =
      decode_published(*ring.arena(), message.frame(), message.block, policy, self->allow_pickle, &retry);
  if (retry == Retry::kCounted) buffer.give_back(broadcast::FailedBuild::kCounted);
  if (retry == Retry::kInterrupted) buffer.give_back(broadcast::FailedBuild::kInterrupted);
  *recurs = retry == Retry::kCounted && PyErr_ExceptionMatches(PyExc_MemoryError);
  return object;
}

PyObject* SubscriberEnd::get(PyObject* self, Deadline deadline, CopyPolicy copy) {
  if (raise_deferred(as_end(self))) return nullptr;
  bool recurs = false;
  return with_open(self, [&](Subscriber& reader) { return read_one(of(self), reader, deadline, copy, &recurs); });
}

// Appends the next message. Returns false if none arrives by the deadline, or after an error, which the next call
// raises.
bool append_one(SubscriberEnd* self, Subscriber& reader, Deadline deadline, CopyPolicy copy, PyObject* items) try {
  // Reserves the item's place, so that a message is never lost for lack of memory.
  if (PyList_Append(items, Py_None) != 0) return PyErr_Clear(), false;
  const Py_ssize_t last = PyList_GET_SIZE(items) - 1;
  bool recurs = false;
  PyObject* object = read_one(self, reader, deadline, copy, &recurs);
  if (object) return PyList_SetItem(items, last, object) == 0;
  Py_SET_SIZE(reinterpret_cast<PyVarObject*>(items), last);  // Needs no memory. No other thread has the list.
  Py_DECREF(Py_None);
  if (recurs) return PyErr_Clear(), false;
  return defer_exception(self), false;
} catch (const std::bad_alloc&) {  // the next call meets it again
  return false;
}

PyObject* SubscriberEnd::get_many(PyObject* object, Py_ssize_t most, Deadline deadline, CopyPolicy copy,
                                  std::optional<std::chrono::nanoseconds> within) {
  SubscriberEnd* const self = of(object);
  if (raise_deferred(self)) return nullptr;
  return with_open(object, [&](Subscriber& reader) -> PyObject* {
    Ref items(PyList_New(1));
    bool recurs = false;
    PyObject* first = items ? read_one(self, reader, deadline, copy, &recurs) : nullptr;
    if (!first) return nullptr;
    PyList_SET_ITEM(items.get(), 0, first);
    const Deadline rest = Deadline::after(within);
    while (PyList_GET_SIZE(items.get()) < most && !self->port.closed() && (reader.size() > 0 || !rest.passed())) {
      if (!append_one(self, reader, rest, copy, items.get())) break;
    }
    return items.release();
  });
}

// Returns (ticket, frame) of the next message, without waiting.
PyObject* get_frame(PyObject* self, PyObject*) {
  return SubscriberEnd::with_open(self, [&](Subscriber& reader) -> PyObject* {
    BroadcastBuffer buffer(reader);
    RingHooks hooks(as_end(self));
    const Status got = reader.get(buffer.message(), {Deadline::immediate(), &hooks});
    if (!got) return hooks.raise(got.error());
    const broadcast::Incoming& message = buffer.message();
    return published_frame(*reader.ring()->arena(), message.ticket, message.frame(), message.block);
  });
}

PyObject* subscriber_empty(PyObject* self, PyObject*) {
  return SubscriberEnd::with_open(self, [](Subscriber& reader) { return PyBool_FromLong(reader.size() == 0); });
}

PyObject* subscriber_fileno(PyObject* self, PyObject*) {
  return SubscriberEnd::with_open(self, [](Subscriber& reader) {
    const auto fd = reader.fd();
    return fd ? PyLong_FromLong(*fd) : raise(fd.error());
  });
}

PyObject* open_to_wait_for_message(PyObject* self, PyObject*) {
  return SubscriberEnd::with_open(self, [](Subscriber& reader) {
    bool opened = false;
    const auto fd = reader.fd(&opened);
    return fd ? Py_BuildValue("(iN)", *fd, PyBool_FromLong(opened)) : raise(fd.error());
  });
}

PyObject* close_after_wait_for_message(PyObject* self, PyObject*) {
  if (const auto reader = SubscriberEnd::of(self)->port.part()) reader->close_fd();
  Py_RETURN_NONE;
}

PyObject* await_message(PyObject* self, PyObject* hub) {
  const auto reader = SubscriberEnd::of(self)->port.part();
  if (!reader || as_end(self)->deferred) Py_RETURN_TRUE;
  channel::WakeHub* const to = hub_of(hub);
  if (!to) return nullptr;
  const Status asked = reader->ring()->await(to->address());
  return asked ? PyBool_FromLong(reader->ready()) : raise(asked.error());
}

PyObject* is_ready_to_get(PyObject* self, PyObject*) {
  const auto reader = SubscriberEnd::of(self)->port.part();
  return PyBool_FromLong(!reader || as_end(self)->deferred || reader->ready());
}

// A subscriber never warns of a long wait.
PyObject* ignore_wait(PyObject*, PyObject*) {
  Py_RETURN_NONE;
}

// Arguments: arena, block, allow_pickle, name. Opens the subscription that another object has given.
PyObject* attach_subscriber(PyObject* self, PyObject* args) {
  PyObject *arena = nullptr, *name = nullptr;
  unsigned long long block = 0;
  int allow_pickle = 0;
  if (!PyArg_ParseTuple(args, "OKpO", &arena, &block, &allow_pickle, &name)) return nullptr;
  return new_reference_from([&]() -> py::object {
    GilHooks hooks;
    std::shared_ptr<Subscriber> reader = unwrap(Subscriber::open(
        py::handle(arena).cast<std::shared_ptr<memory::Arena>>(), memory::unpack(block), {Deadline(), &hooks}));
    const bool allowed = allow_pickle != 0 && reader->ring()->allows_pickle();
    SubscriberEnd::of(self)->attach(std::move(reader), allowed, name);
    return py::none();
  });
}

// Returns (arena, block) of a subscription that goes to another process.
PyObject* give_subscription(PyObject* self, PyObject*) {
  return SubscriberEnd::with_open(self, [](Subscriber& reader) {
    return new_reference_from([&] {
      const memory::BlockRef block = unwrap(reader.give());
      return py::make_tuple(reader.ring()->arena(), memory::pack(block));
    });
  });
}

const PyMethodDef kSubscriberMethods[] = {
    {"qsize", reading_method<SubscriberEnd, &Subscriber::size>(), METH_NOARGS, nullptr},
    {"empty", as_method<subscriber_empty>(), METH_NOARGS, nullptr},
    {"fileno", as_method<subscriber_fileno>(), METH_NOARGS, nullptr},
    {"_attach", as_method<attach_subscriber>(), METH_VARARGS, nullptr},
    {"_give", as_method<give_subscription>(), METH_NOARGS, nullptr},
    {"_get_frame", as_method<get_frame>(), METH_NOARGS, nullptr},
    {"_ready", as_method<is_ready_to_get>(), METH_NOARGS, nullptr},
    {"_open_to_wait", as_method<open_to_wait_for_message>(), METH_NOARGS, nullptr},
    {"_close_after_wait", as_method<close_after_wait_for_message>(), METH_NOARGS, nullptr},
    {"_note_wait_to_get", as_method<ignore_wait>(), METH_O, nullptr},
    {"_name_to_get", reading_method<SubscriberEnd, &Ring::name>(), METH_NOARGS, nullptr},
    {"_await_to_get", as_method<await_message>(), METH_O, nullptr},
};

const PyGetSetDef kSubscriberAttributes[] = {
    {"_name", guarded<name_of_end<SubscriberEnd>>, nullptr, nullptr, nullptr},
    {"missed", reading_attribute<SubscriberEnd, &Subscriber::missed>(), nullptr, nullptr, nullptr},
};

}  // namespace

PyObject* new_subscriber(PyTypeObject* type, std::unique_ptr<Subscriber> subscriber, bool allow_pickle,
                         std::shared_ptr<endpoint::Name> name) {
  Ref self(SubscriberEnd::make(type, nullptr, nullptr));
  if (!self) return nullptr;
  SubscriberEnd::of(self.get())->attach_new(std::move(subscriber), allow_pickle, std::move(name));
  return self.release();
}

bool init_subscriber(PyObject* module) {
  return add_end_type(module, {"shmtree._core.SubscriberBase",
                               sizeof(SubscriberEnd),
                               guarded<SubscriberEnd::make>,
                               {GetMethods<SubscriberEnd>::table(), kSubscriberMethods},
                               {kSubscriberAttributes},
                               guarded<GetMethods<SubscriberEnd>::next>});
}

}  // namespace shmtree::python
