// _core.Delivery: an unacked message.
#include <new>
#include <utility>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/guarded.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/incoming.h"
#include "endpoint/receive.h"

namespace shmtree::python {
namespace {

using platform::Deadline;

struct Delivery {
  PyObject_HEAD channel::Delivery delivery;
  PyObject* item;      // null until it is decoded
  PyObject* receiver;  // the receiver that decodes the item; null afterwards
  MayBeNacked may_be_nacked;
  std::uint64_t ticket;
  std::uint32_t attempts;
  bool may_retry;   // decoding failed, but may succeed later or in another process
  CopyPolicy copy;  // for an item that is not decoded yet; unless it is kAll, only one thread decodes the item
};

PyTypeObject* delivery_type = nullptr;

Delivery* as_delivery(PyObject* object) noexcept {
  return reinterpret_cast<Delivery*>(object);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_delivery(self)->item);
  Py_VISIT(as_delivery(self)->receiver);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(as_delivery(self)->item);
  Py_CLEAR(as_delivery(self)->receiver);
  return 0;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  as_delivery(self)->delivery.~Delivery();  // nacks a message that is still unacked
  as_delivery(self)->may_be_nacked.~MayBeNacked();
  Py_XDECREF(as_delivery(self)->item);
  Py_XDECREF(as_delivery(self)->receiver);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <Status (channel::Delivery::*how)(const platform::WaitContext&)>
PyObject* settle(PyObject* self, PyObject*) {
  const CriticalSection alone(self);
  EndHooks hooks;
  return none_or_raise(nullptr, hooks, (as_delivery(self)->delivery.*how)({Deadline::never(), &hooks}));
}

PyObject* ack(PyObject* self, PyObject*) {
  PyObject* done = settle<&channel::Delivery::ack>(self, nullptr);
  const MayBeNacked& may_be_nacked = as_delivery(self)->may_be_nacked;
  if (done && may_be_nacked) may_be_nacked->store(false, std::memory_order_release);
  return done;
}

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject* args) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  if (!PyArg_ParseTuple(args, "OOO:__exit__", &type, &value, &traceback)) return nullptr;
  if (as_delivery(self)->delivery.settled()) Py_RETURN_NONE;
  return type == Py_None ? ack(self, nullptr) : settle<&channel::Delivery::nack>(self, nullptr);
}

PyObject* decode_now(Delivery* self) {
  self->may_retry = false;
  if (!self->delivery.is_of_this_process()) {
    return PyErr_Format(PyExc_ValueError, "this delivery belongs to the process that took it, not to a forked child");
  }
  Ref receiver(Py_NewRef(self->receiver));
  const auto channel = any_channel(as_endpoint(receiver.get()));  // the receiver may be closed
  if (!channel) return nullptr;
  bool may_retry = false;
  channel::Incoming& message = self->delivery.message();
  PyObject* item = decode_incoming(as_endpoint(receiver.get()), *channel, message, self->copy, &may_retry,
                                   self->copy == CopyPolicy::kAll ? nullptr : &self->may_be_nacked);
  if (item) message.set_built();
  self->may_retry = may_retry && message.failed_builds() < channel::kMaxFailedBuilds;
  return item;
}

PyObject* get_item(PyObject* object, void*) {
  const CriticalSection alone(object);
  Delivery* self = as_delivery(object);
  if (!self->item && self->receiver) {
    Ref item(decode_now(self));
    if (!item) return nullptr;
    if (!self->item) self->item = item.release();  // otherwise another thread has decoded it first
    Py_CLEAR(self->receiver);
  }
  return Py_NewRef(self->item ? self->item : Py_None);
}

PyObject* get_ticket(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_delivery(self)->ticket);
}

PyObject* get_attempts(PyObject* self, void*) {
  return PyLong_FromUnsignedLong(as_delivery(self)->attempts);
}

PyObject* get_redelivered(PyObject* self, void*) {
  return PyBool_FromLong(as_delivery(self)->attempts > 1);
}

PyObject* get_settled(PyObject* self, void*) {
  return PyBool_FromLong(as_delivery(self)->delivery.settled());
}

PyObject* get_may_retry(PyObject* self, void*) {
  return PyBool_FromLong(as_delivery(self)->may_retry);
}

PyObject* repr(PyObject* self) {
  const auto* it = as_delivery(self);
  return PyUnicode_FromFormat("<Delivery of message %llu%s%s>", static_cast<unsigned long long>(it->ticket),
                              it->attempts > 1 ? ", redelivered" : "", it->delivery.settled() ? ", settled" : "");
}

// Makes the item of a message that was taken and may be nacked.
class TakenObjects : public Objects {
 public:
  TakenObjects(Endpoint* self, CopyPolicy copy) noexcept : Objects(self, copy, nullptr) {}
  Ref decode(channel::Channel& channel, channel::Incoming& message, bool* may_retry) {
    return Ref(decode_incoming(self_, channel, message, copy_, may_retry, &may_be_nacked));
  }
  MayBeNacked may_be_nacked{};
};

PyObject* make_delivery(channel::Delivery&& delivery) {
  PyObject* made = delivery_type->tp_alloc(delivery_type, 0);
  if (!made) return nullptr;
  as_delivery(made)->ticket = delivery.message().ticket();
  as_delivery(made)->attempts = delivery.message().attempts();
  new (&as_delivery(made)->delivery) channel::Delivery(std::move(delivery));
  new (&as_delivery(made)->may_be_nacked) MayBeNacked();
  return made;
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError,
                  "cannot create a Delivery by calling the class; use Receiver.take() or Receiver.dead_letters()");
  return nullptr;
}

PyMethodDef methods[] = {
    {"ack", as_method<ack>(), METH_NOARGS, nullptr},
    {"nack", as_method<settle<&channel::Delivery::nack>>(), METH_NOARGS, nullptr},
    {"requeue", as_method<settle<&channel::Delivery::requeue>>(), METH_NOARGS, nullptr},
    {"__enter__", as_method<enter>(), METH_NOARGS, nullptr},
    {"__exit__", as_method<leave>(), METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef getset[] = {
    {"item", guarded<get_item>, nullptr, nullptr, nullptr},
    {"ticket", guarded<get_ticket>, nullptr, nullptr, nullptr},
    {"attempts", guarded<get_attempts>, nullptr, nullptr, nullptr},
    {"redelivered", guarded<get_redelivered>, nullptr, nullptr, nullptr},
    {"settled", guarded<get_settled>, nullptr, nullptr, nullptr},
    {"_may_retry", guarded<get_may_retry>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

PyObject* new_delivery(Endpoint* self, channel::Delivery delivery, CopyPolicy copy) {
  TakenObjects objects(self, copy);
  Ref item = endpoint::decode_taken(objects, self->port.channel(), delivery);
  if (!item) return nullptr;
  PyObject* made = make_delivery(std::move(delivery));
  if (!made) return nullptr;
  as_delivery(made)->item = item.release();
  as_delivery(made)->may_be_nacked = std::move(objects.may_be_nacked);
  return made;
}

PyObject* new_delivery(channel::Delivery delivery) {
  return make_delivery(std::move(delivery));
}

PyObject* new_unloaded(Endpoint* self, channel::Delivery delivery, CopyPolicy copy) {
  PyObject* made = make_delivery(std::move(delivery));
  if (!made) return nullptr;
  as_delivery(made)->receiver = Py_NewRef(reinterpret_cast<PyObject*>(self));
  as_delivery(made)->copy = copy;
  return made;
}

std::span<const std::byte> frame_of_delivery(PyObject* delivery) {
  return as_delivery(delivery)->delivery.message().frame();
}

bool init_delivery(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_repr, reinterpret_cast<void*>(guarded<repr>)},
      {Py_tp_methods, methods},
      {Py_tp_getset, getset},
      {0, nullptr},
  };
  static PyType_Spec spec = {"shmtree.Delivery", sizeof(Delivery), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};
  delivery_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return delivery_type && PyModule_AddObjectRef(module, "Delivery", type_object(delivery_type)) == 0;
}

}  // namespace shmtree::python
