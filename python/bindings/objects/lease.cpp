#include "bindings/objects/lease.h"

#include <structmember.h>

#include <new>

#include "bindings/cpython/guarded.h"

namespace shmtree::python {

PyTypeObject* lease_type = nullptr;

namespace {

void lease_dealloc(PyObject* self) {
  Lease* lease = as_lease(self);
  if (lease->weakrefs) PyObject_ClearWeakRefs(self);
  lease->hold.~shared_ptr();
  if (lease->buffer.obj) PyBuffer_Release(&lease->buffer);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int lease_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  Lease* lease = as_lease(self);
  const bool readonly = !lease->writable || lease->given;
  return PyBuffer_FillInfo(view, self, lease->data, static_cast<Py_ssize_t>(lease->size_bytes), readonly, flags);
}

PyObject* lease_repr(PyObject* self) {
  const Lease* lease = as_lease(self);
  const char* state = lease->given ? "given away" : lease->writable ? "writable" : "read-only";
  return PyUnicode_FromFormat("<shmtree lease of %zu bytes, %s>", lease->size_bytes, state);
}

PyMemberDef lease_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Lease, weakrefs), READONLY, nullptr},
    {"nbytes", T_PYSSIZET, offsetof(Lease, size_bytes), READONLY, "Size of the memory in bytes."},
    {"given", T_BOOL, offsetof(Lease, given), READONLY, "Whether put() gave the memory away."},
    {nullptr, 0, 0, 0, nullptr},
};

constexpr const char* kLeaseDoc =
    "Owns the memory that arrays are views of; the last view to die releases it.\n\n"
    "It is the `base` of such arrays; programs do not create one.";

PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(lease_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(guarded<lease_repr>)},
    {Py_tp_members, lease_members},
    {Py_tp_doc, const_cast<char*>(kLeaseDoc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(guarded<lease_get_buffer>)},
    {0, nullptr},
};

PyType_Spec lease_spec = {"shmtree._core.Lease", sizeof(Lease), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
                          lease_slots};

Lease* allocate() {
  PyObject* self = lease_type->tp_alloc(lease_type, 0);
  if (!self) return nullptr;
  new (&as_lease(self)->hold) std::shared_ptr<void>();
  return as_lease(self);
}

}  // namespace

bool init_lease(PyObject* module) {
  lease_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&lease_spec));
  return lease_type && PyModule_AddObjectRef(module, "Lease", type_object(lease_type)) == 0;
}

PyObject* new_lease(std::shared_ptr<void> hold, std::byte* data, std::size_t size_bytes, bool writable) {
  Lease* lease = allocate();
  if (!lease) return nullptr;
  lease->hold = std::move(hold);
  lease->data = data;
  lease->size_bytes = size_bytes;
  lease->writable = writable;
  return reinterpret_cast<PyObject*>(lease);
}

PyObject* new_buffer_lease(Py_buffer&& buffer) {
  Lease* lease = allocate();
  if (!lease) {
    PyBuffer_Release(&buffer);
    return nullptr;
  }
  lease->buffer = buffer;
  lease->data = static_cast<std::byte*>(buffer.buf);
  lease->size_bytes = static_cast<std::size_t>(buffer.len);
  lease->writable = !buffer.readonly;
  buffer.obj = nullptr;
  return reinterpret_cast<PyObject*>(lease);
}

Lease* lease_of(PyArrayObject* array) noexcept {
  PyObject* base = PyArray_BASE(array);
  while (base && PyArray_Check(base)) base = PyArray_BASE(as_array(base));
  return base && is_lease(base) ? as_lease(base) : nullptr;
}

}  // namespace shmtree::python
