// Adds pack, unpack and their types to the module.
#pragma once

#include "bindings/python_api.h"
// After python_api.h, which sets Python.h up.
#include <pybind11/pybind11.h>

namespace shmtree::python {

// Throws pybind11::error_already_set.
void bind_serialize(pybind11::module_& module);

}  // namespace shmtree::python
