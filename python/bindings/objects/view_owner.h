// The object at the end of the `base` chain of every array that is a view of memory from shmtree.
//
// It keeps that memory alive: a block of an arena (through `hold`), or the buffer passed to unpack() (through
// `buffer`). Its destructor only drops `hold` and `buffer`, so it may run at any point at which garbage collection
// runs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

struct ViewOwner {
  PyObject_HEAD std::shared_ptr<void> hold;  // dropping the last copy releases the memory; empty if `buffer` is used
  Py_buffer buffer;                          // `buffer.obj` is null if `hold` is used
  std::byte* data;
  std::size_t size_bytes;
  bool writable;
  bool given;  // put() has given the memory away, so this process may only read it
  PyObject* weakrefs;
};

extern PyTypeObject* view_owner_type;

// Creates the type and adds it to the module. Returns false with a Python error set.
bool init_view_owner(PyObject* module);

inline bool is_view_owner(PyObject* object) noexcept {
  return Py_TYPE(object) == view_owner_type;
}
inline ViewOwner* as_view_owner(PyObject* object) noexcept {
  return reinterpret_cast<ViewOwner*>(object);
}

// Makes an owner of [data, data + size_bytes), which lasts until `hold` is dropped. Returns null with a Python error
// set.
PyObject* new_view_owner(std::shared_ptr<void> hold, std::byte* data, std::size_t size_bytes, bool writable);

// Makes an owner of a contiguous buffer. Takes the buffer over from the caller, also on failure.
PyObject* new_buffer_owner(Py_buffer&& buffer);

// Returns the owner at the end of the array's `base` chain, borrowed. Returns null if the chain ends in another object.
ViewOwner* view_owner_of(PyArrayObject* array) noexcept;

}  // namespace shmtree::python
