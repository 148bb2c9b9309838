// Adds arenas, channels and their ends, handles and names to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace shmtree::python {

// After bind_serialize(). Throws pybind11::error_already_set.
void bind_channel(pybind11::module_& module);

// One per file.
void bind_arena(pybind11::module_& module);
void bind_copy(pybind11::module_& module);
void bind_handles(pybind11::module_& module);
void bind_names(pybind11::module_& module);

}  // namespace shmtree::python
