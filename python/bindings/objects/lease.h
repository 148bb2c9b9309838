// The object at the end of the `base` chain of every array that is a view of somebody else's memory.
//
// It keeps that memory in place: a block of an arena (through `hold`) or the buffer given to unpack() (through
// `buffer`). Its destructor only drops these, so it may run anywhere garbage collection does.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

struct Lease {
  PyObject_HEAD std::shared_ptr<void>
      hold;          // dropping the last copy gives the memory back; empty when `buffer` is used
  Py_buffer buffer;  // `buffer.obj` is null when `hold` is used
  std::byte* data;
  std::size_t size_bytes;
  bool writable;
  bool given;  // put() gave the memory away: what is here is only read from now on
  PyObject* weakrefs;
};

extern PyTypeObject* lease_type;

// Creates the type and adds it to the module. False with a Python error set.
bool init_lease(PyObject* module);

inline bool is_lease(PyObject* object) noexcept {
  return Py_TYPE(object) == lease_type;
}
inline Lease* as_lease(PyObject* object) noexcept {
  return reinterpret_cast<Lease*>(object);
}

// A lease on [data, data + size_bytes) that lasts until `hold` is dropped. Null with a Python error set.
PyObject* new_lease(std::shared_ptr<void> hold, std::byte* data, std::size_t size_bytes, bool writable);

// A lease on a contiguous buffer, which is taken over from the caller (also on failure).
PyObject* new_buffer_lease(Py_buffer&& buffer);

// The lease that an array's memory belongs to, or null when it ends in something else. Borrowed.
Lease* lease_of(PyArrayObject* array) noexcept;

}  // namespace shmtree::python
