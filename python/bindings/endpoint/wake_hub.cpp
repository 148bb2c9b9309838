// _core.WakeHub: notifies coroutines that an end is ready.
#include "channel/wake_hub.h"

#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/cpython/unwrap.h"

namespace shmtree::python {

namespace py = pybind11;
using channel::WakeHub;

namespace {

// Returns None if notifications were lost.
py::object take_wakes(WakeHub& hub) {
  bool lost = false;
  const std::vector<channel::EndName> told = hub.take(lost);
  if (lost) return py::none();
  py::list names;
  for (const channel::EndName& name : told) names.append(py::bytes(name.data(), name.size()));
  return names;
}

}  // namespace

void bind_wake_hub(py::module_& module) {
  py::class_<WakeHub, std::shared_ptr<WakeHub>>(module, "WakeHub", plain_class())
      .def_static("of_this_process", [] { return unwrap(WakeHub::of_this_process()); })
      .def("fileno", &WakeHub::fd)
      .def("take", &take_wakes);
}

}  // namespace shmtree::python
