// Adds pack, unpack and their types to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace shmtree::python {

// Throws pybind11::error_already_set.
void bind_serialize(pybind11::module_& module);

}  // namespace shmtree::python
