// _core.Versions and Write: reads and writes of an array that several processes share. Writes exclude each other.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/objects/arena_arrays.h"
#include "shared_array/versions.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using platform::WaitContext;

namespace {

// The versions of a shared array, with the owner that keeps its block.
struct ArrayVersions {
  py::object owner;
  shared_array::Versions versions;
};

WaitContext until(py::handle timeout, GilHooks& hooks) {
  platform::Deadline deadline;
  if (!parse_deadline(nullptr, timeout.ptr(), &deadline)) throw py::error_already_set();
  return {deadline, &hooks};
}

ArrayVersions versions_of(py::handle array) {
  ViewOwner* owner = PyArray_Check(array.ptr()) ? view_owner_of(as_array(array.ptr())) : nullptr;
  const HeldBlock* held = owner ? held_block(*owner) : nullptr;
  if (!held) throw py::value_error("this array is not in an arena");
  const auto bytes = static_cast<std::uint64_t>(PyArray_NBYTES(as_array(array.ptr())));
  auto versions = unwrap(shared_array::Versions::of(held->block, bytes));
  return {py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(owner)), versions};
}

// Copies the array to `out`, any writable buffer of its size.
std::uint64_t read(const ArrayVersions& self, py::handle out, py::handle timeout) {
  struct Output {
    Py_buffer buffer{};
    ~Output() { PyBuffer_Release(&buffer); }
  } output;
  if (PyObject_GetBuffer(out.ptr(), &output.buffer, PyBUF_WRITABLE) != 0) throw py::error_already_set();
  if (static_cast<std::uint64_t>(output.buffer.len) != self.versions.bytes())
    throw py::value_error("out has " + std::to_string(output.buffer.len) +
                          " bytes; it must have the size of the array, " + std::to_string(self.versions.bytes()));
  GilHooks hooks;
  return unwrap(self.versions.read(static_cast<std::byte*>(output.buffer.buf), until(timeout, hooks)));
}

std::uint64_t wait(const ArrayVersions& self, std::uint64_t newer_than, py::handle timeout) {
  GilHooks hooks;
  return unwrap(self.versions.wait_for_newer(newer_than, until(timeout, hooks)));
}

// The context manager of a write. It is in C++ so that no signal handler can run between the begin and the with block.
class Write {
 public:
  Write(ArrayVersions versions, py::object value, py::object timeout, bool whole)
      : of_(std::move(versions)),
        value_(std::move(value)),
        timeout_(std::move(timeout)),
        extent_(whole ? shared_array::Extent::kWhole : shared_array::Extent::kPart) {}

  py::object enter() {
    if (begun_) throw py::value_error("this write has already begun");
    GilHooks hooks;
    unwrap(of_.versions.begin_write(until(timeout_, hooks), extent_));
    begun_ = true;
    return value_;
  }
  void exit(const py::args& exception) {
    if (!std::exchange(begun_, false)) return;
    const bool whole = exception.empty() || exception[0].is_none();
    unwrap(of_.versions.end_write(whole));
  }

 private:
  ArrayVersions of_;
  py::object value_, timeout_;
  shared_array::Extent extent_;
  bool begun_ = false;
};

}  // namespace

void bind_array_versions(py::module_& module) {
  py::class_<ArrayVersions>(module, "Versions", plain_class())
      .def(py::init(&versions_of), "array"_a)
      .def_property_readonly("version", [](const ArrayVersions& self) { return self.versions.version(); })
      .def_property_readonly("is_torn", [](const ArrayVersions& self) { return self.versions.is_torn(); })
      .def("read", &read, "out"_a, "timeout"_a)
      .def("wait", &wait, "newer_than"_a, "timeout"_a);
  py::class_<Write>(module, "Write", plain_class())
      .def(py::init<ArrayVersions, py::object, py::object, bool>(), "versions"_a, "value"_a, "timeout"_a, "whole"_a)
      .def("__enter__", &Write::enter)
      .def("__exit__", &Write::exit);
}

}  // namespace shmtree::python
