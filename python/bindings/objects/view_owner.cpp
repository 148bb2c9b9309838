#include "bindings/objects/view_owner.h"

#include <structmember.h>

#include <new>

#include "bindings/cpython/guarded.h"

namespace shmtree::python {

PyTypeObject* view_owner_type = nullptr;

namespace {

void owner_dealloc(PyObject* self) {
  ViewOwner* owner = as_view_owner(self);
  if (owner->weakrefs) PyObject_ClearWeakRefs(self);
  owner->hold.~shared_ptr();
  if (owner->buffer.obj) PyBuffer_Release(&owner->buffer);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int owner_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  ViewOwner* owner = as_view_owner(self);
  const bool readonly = !owner->writable || owner->given;
  return PyBuffer_FillInfo(view, self, owner->data, static_cast<Py_ssize_t>(owner->size_bytes), readonly, flags);
}

PyObject* owner_repr(PyObject* self) {
  const ViewOwner* owner = as_view_owner(self);
  const char* state = owner->given ? "given away" : owner->writable ? "writable" : "read-only";
  return PyUnicode_FromFormat("<view owner of %zu bytes, %s>", owner->size_bytes, state);
}

PyMemberDef owner_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ViewOwner, weakrefs), READONLY, nullptr},
    {"nbytes", T_PYSSIZET, offsetof(ViewOwner, size_bytes), READONLY, nullptr},
    {"given", T_BOOL, offsetof(ViewOwner, given), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot owner_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(owner_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(guarded<owner_repr>)},
    {Py_tp_members, owner_members},
    {Py_bf_getbuffer, reinterpret_cast<void*>(guarded<owner_get_buffer>)},
    {0, nullptr},
};

PyType_Spec owner_spec = {"shmtree._core.ViewOwner", sizeof(ViewOwner), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
                          owner_slots};

ViewOwner* allocate() {
  PyObject* self = view_owner_type->tp_alloc(view_owner_type, 0);
  if (!self) return nullptr;
  new (&as_view_owner(self)->hold) std::shared_ptr<void>();
  return as_view_owner(self);
}

}  // namespace

bool init_view_owner(PyObject* module) {
  view_owner_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&owner_spec));
  return view_owner_type && PyModule_AddObjectRef(module, "ViewOwner", type_object(view_owner_type)) == 0;
}

PyObject* new_view_owner(std::shared_ptr<void> hold, std::byte* data, std::size_t size_bytes, bool writable) {
  ViewOwner* owner = allocate();
  if (!owner) return nullptr;
  owner->hold = std::move(hold);
  owner->data = data;
  owner->size_bytes = size_bytes;
  owner->writable = writable;
  return reinterpret_cast<PyObject*>(owner);
}

PyObject* new_buffer_owner(Py_buffer&& buffer) {
  ViewOwner* owner = allocate();
  if (!owner) {
    PyBuffer_Release(&buffer);
    return nullptr;
  }
  owner->buffer = buffer;
  owner->data = static_cast<std::byte*>(buffer.buf);
  owner->size_bytes = static_cast<std::size_t>(buffer.len);
  owner->writable = !buffer.readonly;
  buffer.obj = nullptr;
  return reinterpret_cast<PyObject*>(owner);
}

ViewOwner* view_owner_of(PyArrayObject* array) noexcept {
  PyObject* base = PyArray_BASE(array);
  while (base && PyArray_Check(base)) base = PyArray_BASE(as_array(base));
  return base && is_view_owner(base) ? as_view_owner(base) : nullptr;
}

}  // namespace shmtree::python
