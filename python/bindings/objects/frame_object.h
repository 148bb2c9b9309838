// shmtree.Frame: what pack() returns.
#pragma once

#include <cstddef>
#include <span>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Read-only, aligned to 64 bytes, and never made from bytes of elsewhere: so pickles in it may be trusted.
struct Frame {
  PyObject_HEAD std::byte* data;
  std::size_t size_bytes;
  bool pickled;  // there is a pickle in it
  PyObject* weakrefs;
};

// Creates the type and adds it to the module. False with a Python error set.
bool init_frame(PyObject* module);

// A frame of so many bytes for the caller to fill. Null with MemoryError set.
Frame* new_frame(std::size_t size_bytes);

bool is_frame(PyObject* object) noexcept;
inline std::span<const std::byte> frame_bytes(PyObject* frame) noexcept {
  const auto* self = reinterpret_cast<const Frame*>(frame);
  return {self->data, self->size_bytes};
}

}  // namespace shmtree::python
