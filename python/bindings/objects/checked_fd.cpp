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
  py::class_<CheckedFd>(module, "CheckedFd", "A descriptor that is compared with its file before each use.",
                        plain_class())
      .def(py::init([](int fd) { return CheckedFd(platform::UniqueFd(fd)); }), "fd"_a, "Takes the descriptor over.")
      .def(
          "number", [](const CheckedFd& self, const char* use) { return unwrap(self.get(use)); }, "use"_a,
          "The descriptor, for a use that follows at once; OSError if the program has closed it.")
      .def("close", &CheckedFd::reset);
  module.def(
      "descriptors", &platform::kept_descriptors,
      "Returns the numbers of the file descriptors that shmtree keeps open in this process, sorted.\n\n"
      "A daemon that closes all descriptors must keep these open. Objects that you make or open later add more.\n"
      "If the program closes one of them, calls that need it raise OSError with errno EBADF.\n\n"
      "Example:\n"
      "    >>> kept = shmtree.descriptors()\n"
      "    >>> for name in os.listdir(\"/proc/self/fd\"):\n"
      "    ...     if int(name) > 2 and int(name) not in kept:\n"
      "    ...         with contextlib.suppress(OSError):\n"
      "    ...             os.close(int(name))");
}

}  // namespace shmtree::python
