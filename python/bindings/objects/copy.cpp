// _core.copy_in: copies the bytes of any buffer into a new array in an arena.
#include <pybind11/pybind11.h>

#include <utility>

#include "bindings/bind.h"
#include "bindings/cpython/large_copy.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/objects/arena_arrays.h"
#include "memory/arena.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using memory::Arena;

namespace {

// Exports an object's contiguous bytes. The export keeps the object alive and prevents a resize.
class Source {
 public:
  explicit Source(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() { PyBuffer_Release(&buffer_); }

  const void* data() const noexcept { return buffer_.buf; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

memory::Lease allocate(const std::shared_ptr<Arena>& arena, std::size_t bytes, const platform::Deadline& deadline) {
  GilHooks hooks;
  auto block = unwrap(arena->allocate(bytes, memory::BlockKind::kArray, {deadline, &hooks}));
  return unwrap(arena->hold_new(std::move(block)));
}

py::object copy_in(const std::shared_ptr<Arena>& arena, py::handle bytes, py::handle timeout) {
  platform::Deadline deadline = platform::Deadline::never();
  if (!parse_deadline(nullptr, timeout.ptr(), &deadline)) throw py::error_already_set();
  const Source source(bytes);
  npy_intp shape = static_cast<npy_intp>(source.bytes());
  if (shape == 0) return own(PyArray_SimpleNew(1, &shape, NPY_UINT8));
  memory::Lease block = allocate(arena, source.bytes(), deadline);
  std::byte* data = block.data();
  copy_large(data, source.data(), source.bytes());
  py::object owner = own(new_block_owner(std::move(block), false, source.bytes()));
  py::object array = own(PyArray_SimpleNewFromData(1, &shape, NPY_UINT8, data));
  if (PyArray_SetBaseObject(as_array(array.ptr()), owner.release().ptr()) != 0) {
    throw py::error_already_set();
  }
  return array;
}

}  // namespace

void bind_copy(py::module_& module) {
  module.def("copy_in", &copy_in, "arena"_a, "bytes"_a, "timeout"_a = py::none());
}

}  // namespace shmtree::python
