// The module shmtree._core.
#define SHMTREE_OWNS_NUMPY_API
#include "bindings/bind.h"
#include "bindings/codec/class_registry.h"
#include "bindings/codec/dtypes.h"
#include "bindings/codec/pickle_support.h"
#include "bindings/codec/standard_class.h"
#include "bindings/cpython/docstrings.h"
#include "bindings/cpython/package.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/objects/frame.h"
#include "bindings/objects/view_owner.h"

namespace shmtree::python {
namespace {

bool init(PyObject* module) {
  if (PyArray_ImportNumPyAPI() != 0) return false;
  init_dtypes();
  return init_view_owner(module) && init_frame(module) && init_class_registry() && init_standard_classes() &&
         init_pickle() && init_sender(module) && init_receiver(module) && init_queue(module) &&
         init_broadcast(module) && init_subscriber(module) && init_latest(module) && init_delivery(module);
}

}  // namespace
}  // namespace shmtree::python

PYBIND11_MODULE(_core_of_main, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The compiled part of shmtree.";
  module.attr("VERSION") = SHMTREE_VERSION;
  if (!shmtree::python::init(module.ptr())) throw pybind11::error_already_set();
  module.def("set_package", [](pybind11::dict given) {
    if (!shmtree::python::set_package(given.ptr())) throw pybind11::error_already_set();
  });
  pybind11::tuple dtypes(shmtree::kMaxDType + 1);
  for (std::size_t i = 0; i < dtypes.size(); ++i) dtypes[i] = pybind11::str(name_of(static_cast<shmtree::DType>(i)));
  module.attr("DTYPES") = dtypes;
  shmtree::python::bind_checked_fd(module);
  shmtree::python::bind_arena(module);
  shmtree::python::bind_array_versions(module);
  shmtree::python::bind_copy(module);
  shmtree::python::bind_pack(module);
  shmtree::python::bind_mapped_list(module);
  shmtree::python::bind_replay(module);
  shmtree::python::bind_replay_files(module);
  shmtree::python::bind_wake_hub(module);
  shmtree::python::bind_channel(module);
  shmtree::python::bind_reply_line(module);
  shmtree::python::bind_service_clients(module);
  shmtree::python::bind_inherited(module);
  shmtree::python::bind_tap(module);
  shmtree::python::bind_handles(module);
  shmtree::python::bind_names(module);
  shmtree::python::bind_latest_store(module);
  shmtree::python::bind_ring(module);
  shmtree::python::bind_observer(module);
  shmtree::python::bind_recording(module);
  if (!shmtree::python::set_docstrings(module.ptr())) throw pybind11::error_already_set();
}

// The interpreter calls the function with this name. Our tables, and those of NumPy and pybind11, belong to the main
// interpreter. In a subinterpreter, pybind11 would block on a lock that this thread holds.
PyMODINIT_FUNC PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "shmtree cannot be imported by a subinterpreter, only by the main one. Use a thread or a process");
  return nullptr;
}
