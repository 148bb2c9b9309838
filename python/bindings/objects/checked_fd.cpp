// _core.CheckedFd and _core.descriptors: file descriptors that the package keeps open.
#include "platform/checked_fd.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/cpython/unwrap.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using platform::CheckedFd;

void bind_checked_fd(py::module_& module) {
  py::class_<CheckedFd>(module, "CheckedFd", plain_class())
      .def(py::init([](int fd) { return CheckedFd(platform::UniqueFd(fd)); }), "fd"_a)
      .def(
          "number", [](const CheckedFd& self, const char* use) { return unwrap(self.get(use)); }, "use"_a)
      .def("close", &CheckedFd::reset);
  module.def("descriptors", &platform::kept_descriptors);
}

}  // namespace shmtree::python
