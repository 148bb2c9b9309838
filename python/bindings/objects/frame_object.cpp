#include "bindings/objects/frame_object.h"

#include <structmember.h>

#include <cstdlib>

#include "bindings/cpython/guarded.h"

namespace shmtree::python {
namespace {

PyTypeObject* frame_type = nullptr;

constexpr std::size_t kAlignment = 64;

Frame* as_frame(PyObject* object) noexcept {
  return reinterpret_cast<Frame*>(object);
}

void dealloc(PyObject* self) {
  Frame* frame = as_frame(self);
  if (frame->weakrefs) PyObject_ClearWeakRefs(self);
  std::free(frame->data);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  return PyBuffer_FillInfo(view, self, as_frame(self)->data, static_cast<Py_ssize_t>(as_frame(self)->size_bytes), 1,
                           flags);
}

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(as_frame(self)->size_bytes);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<shmtree.Frame of %zu bytes>", as_frame(self)->size_bytes);
}

PyObject* refuse_pickle(PyObject*, PyObject*) {
  return PyErr_Format(PyExc_TypeError, "A Frame is not pickled: send it by itself, or the object, or bytes(frame)");
}

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Frame, weakrefs), READONLY, nullptr},
    {"nbytes", T_PYSSIZET, offsetof(Frame, size_bytes), READONLY, "Size of the frame in bytes."},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef methods[] = {
    {"__reduce__", as_method<refuse_pickle>(), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

constexpr const char* kDoc =
    "An encoded value, as pack() returns it: read-only bytes with the buffer protocol.\n\n"
    "put(frame) sends the value without walking it again: what is received is the value. "
    "len(frame) and frame.nbytes are its size in bytes; bytes(frame) copies it.";

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(guarded<repr>)},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(guarded<get_buffer>)},
    {0, nullptr},
};

PyType_Spec spec = {"shmtree.Frame", sizeof(Frame), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool init_frame(PyObject* module) {
  frame_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return frame_type && PyModule_AddObjectRef(module, "Frame", type_object(frame_type)) == 0;
}

Frame* new_frame(std::size_t size_bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, size_bytes) != 0) {
    PyErr_NoMemory();
    return nullptr;
  }
  PyObject* self = frame_type->tp_alloc(frame_type, 0);
  if (!self) {
    std::free(data);
    return nullptr;
  }
  as_frame(self)->data = static_cast<std::byte*>(data);
  as_frame(self)->size_bytes = size_bytes;
  return as_frame(self);
}

bool is_frame(PyObject* object) noexcept {
  return Py_IS_TYPE(object, frame_type);
}

}  // namespace shmtree::python
