#include "bindings/objects/frame.h"

#include <structmember.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/objects/view_owner.h"

namespace shmtree::python {
namespace {

PyTypeObject* frame_type = nullptr;
PyObject* load_function = nullptr;  // the function that a pickled frame calls to build itself again

void frame_dealloc(PyObject* self) {
  Frame* frame = as_frame(self);
  if (frame->weakrefs) PyObject_ClearWeakRefs(self);
  if (!frame->owner) std::free(frame->data);
  Py_XDECREF(frame->owner);
  Py_XDECREF(frame->delivery);  // nacks the message if it is still unacked
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int frame_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  return PyBuffer_FillInfo(view, self, as_frame(self)->data, static_cast<Py_ssize_t>(as_frame(self)->size_bytes), 1,
                           flags);
}

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(as_frame(self)->size_bytes);
}

PyObject* frame_repr(PyObject* self) {
  const Frame* frame = as_frame(self);
  if (!frame->delivery) return PyUnicode_FromFormat("<Frame of %zu bytes>", frame->size_bytes);
  return PyUnicode_FromFormat("<Frame of %zu bytes: %R>", frame->size_bytes, frame->delivery);
}

PyObject* get_portable(PyObject* self, void*) {
  return PyBool_FromLong(endpoint::is_portable(as_frame(self)->contents, as_frame(self)->known_portable));
}

// --- The delivery of a frame that was taken --------------------------------------------------------------------------

PyObject* from_delivery(PyObject* self, void* name) {
  PyObject* delivery = as_frame(self)->delivery;
  return delivery ? PyObject_GetAttrString(delivery, static_cast<const char*>(name)) : Py_NewRef(Py_None);
}

PyObject* settle(PyObject* self, const char* how) {
  PyObject* delivery = as_frame(self)->delivery;
  if (delivery) return PyObject_CallMethod(delivery, how, nullptr);
  return PyErr_Format(PyExc_ValueError, "this frame was not taken from a channel: there is no message to %s", how);
}
PyObject* ack(PyObject* self, PyObject*) {
  return settle(self, "ack");
}
PyObject* nack(PyObject* self, PyObject*) {
  return settle(self, "nack");
}
PyObject* requeue(PyObject* self, PyObject*) {
  return settle(self, "requeue");
}

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}
PyObject* leave(PyObject* self, PyObject* args) {
  PyObject* delivery = as_frame(self)->delivery;
  if (!delivery) Py_RETURN_NONE;
  Ref exit(PyObject_GetAttrString(delivery, "__exit__"));
  return exit ? PyObject_CallObject(exit.get(), args) : nullptr;
}

// --- Pickling --------------------------------------------------------------------------------------------------------

// From protocol 5 on, the bytes are a separate buffer, which the caller may send out of band.
PyObject* reduce(PyObject* self, PyObject* protocol) {
  constexpr long kOutOfBand = 5;
  const long number = PyLong_AsLong(protocol);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  const Frame* frame = as_frame(self);
  Ref bytes(number >= kOutOfBand ? PyPickleBuffer_FromObject(self) : PyBytes_FromObject(self));
  if (!bytes) return nullptr;
  return Py_BuildValue("O(NOO)", load_function, bytes.release(), frame->known_portable ? Py_True : Py_False,
                       frame->trusted ? Py_True : Py_False);
}

// Makes a frame of [data, data + size) and takes over `owner`, which keeps that memory. If `owner` is null, the frame
// owns the memory, which came from malloc. On failure the memory is released.
Frame* make_frame(PyObject* owner, std::byte* data, std::size_t size_bytes) {
  PyObject* self = frame_type->tp_alloc(frame_type, 0);
  if (!self) {
    if (!owner) std::free(data);
    Py_XDECREF(owner);
    return nullptr;
  }
  Frame* frame = as_frame(self);
  new (&frame->contents) format::FrameContents();
  frame->data = data;
  frame->size_bytes = size_bytes;
  frame->owner = owner;
  return frame;
}

// Makes a frame on the memory of a buffer, without a copy.
PyObject* load(PyObject*, PyObject* args) {
  PyObject* buffer = nullptr;
  int portable = 0, trusted = 0;
  if (!PyArg_ParseTuple(args, "Opp:_load_frame", &buffer, &portable, &trusted)) return nullptr;
  Py_buffer view{};
  if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) != 0) return nullptr;
  Ref owner(new_buffer_owner(std::move(view)));
  if (!owner) return nullptr;
  const ViewOwner* view_owner = as_view_owner(owner.get());
  format::CheckedFrame checked;
  const Status sound = checked.load({view_owner->data, view_owner->size_bytes});
  if (!sound.ok()) return raise_from_frame(sound.error());
  std::byte* const data = view_owner->data;
  Frame* frame = make_frame(owner.release(), data, static_cast<std::size_t>(checked.contents().bytes));
  if (!frame) return nullptr;
  frame->contents = checked.contents();
  frame->known_portable = portable != 0;
  frame->trusted = trusted != 0;
  return reinterpret_cast<PyObject*>(frame);
}

PyMethodDef functions[] = {
    {"_load_frame", as_method<load>(), METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef frame_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Frame, weakrefs), READONLY, nullptr},
    {"nbytes", T_PYSSIZET, offsetof(Frame, size_bytes), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef getset[] = {
    {"portable", guarded<get_portable>, nullptr, nullptr, nullptr},
    {"ticket", guarded<from_delivery>, nullptr, nullptr, const_cast<char*>("ticket")},
    {"attempts", guarded<from_delivery>, nullptr, nullptr, const_cast<char*>("attempts")},
    {"redelivered", guarded<from_delivery>, nullptr, nullptr, const_cast<char*>("redelivered")},
    {"settled", guarded<from_delivery>, nullptr, nullptr, const_cast<char*>("settled")},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"ack", as_method<ack>(), METH_NOARGS, nullptr},
    {"nack", as_method<nack>(), METH_NOARGS, nullptr},
    {"requeue", as_method<requeue>(), METH_NOARGS, nullptr},
    {"__enter__", as_method<enter>(), METH_NOARGS, nullptr},
    {"__exit__", as_method<leave>(), METH_VARARGS, nullptr},
    {"__reduce_ex__", as_method<reduce>(), METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "cannot create a Frame by calling the class; use pack() or Receiver.take_frames()");
  return nullptr;
}

PyType_Slot frame_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(frame_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(guarded<frame_repr>)},
    {Py_tp_members, frame_members},
    {Py_tp_getset, getset},
    {Py_tp_methods, methods},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(guarded<frame_get_buffer>)},
    {0, nullptr},
};

PyType_Spec frame_spec = {"shmtree.Frame", sizeof(Frame), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                          frame_slots};

}  // namespace

bool init_frame(PyObject* module) {
  frame_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&frame_spec));
  if (!frame_type || PyModule_AddObjectRef(module, "Frame", type_object(frame_type)) != 0) return false;
  if (PyModule_AddFunctions(module, functions) != 0) return false;
  load_function = PyObject_GetAttrString(module, "_load_frame");
  return load_function != nullptr;
}

Frame* new_frame(std::size_t size_bytes) {
  auto memory = endpoint::frame_memory(size_bytes);
  if (!memory) return PyErr_NoMemory(), nullptr;
  Frame* frame = make_frame(nullptr, memory->release(), size_bytes);
  if (!frame) return nullptr;
  frame->contents.bytes = size_bytes;
  frame->trusted = true;
  return frame;
}

Frame* new_frame(endpoint::RawFrame&& raw) {
  // The const_cast is safe: this process never writes to the bytes of a received frame.
  auto* const data = const_cast<std::byte*>(raw.bytes.data());
  const std::size_t size_bytes = raw.bytes.size();
  const format::FrameContents contents = raw.contents;
  Ref owner;
  if (raw.block.valid()) {
    owner = Ref(new_view_owner(std::make_shared<endpoint::RawFrame>(std::move(raw)), data, size_bytes, false));
    if (!owner) return nullptr;
  } else {
    static_cast<void>(raw.copy.release());
  }
  Frame* frame = make_frame(owner.release(), data, size_bytes);
  if (!frame) return nullptr;
  frame->contents = contents;
  frame->from_channel = true;
  return frame;
}

bool is_frame(PyObject* object) noexcept {
  return Py_IS_TYPE(object, frame_type);
}

}  // namespace shmtree::python
