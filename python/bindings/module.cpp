// The module shmtree._core.
#define SHMTREE_OWNS_NUMPY_API
#include "bindings/bind_channel.h"
#include "bindings/bind_serialize.h"
#include "bindings/python_api.h"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The compiled part of shmtree.";
  module.attr("VERSION") = SHMTREE_VERSION;
  if (PyArray_ImportNumPyAPI() != 0) throw pybind11::error_already_set();
  shmtree::python::bind_serialize(module);
  shmtree::python::bind_channel(module);
}
