// What each file adds to the module. In the order in which module.cpp calls them: later ones use the types of those
// before. All throw pybind11::error_already_set.
#pragma once

#include "bindings/cpython/python_api.h"
// After python_api.h, which sets Python.h up.
#include <pybind11/pybind11.h>

namespace shmtree::python {

void bind_descriptors(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_versions(pybind11::module_& module);
void bind_copy(pybind11::module_& module);
void bind_pack(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_replay_files(pybind11::module_& module);
void bind_wakes(pybind11::module_& module);
void bind_channel(pybind11::module_& module);
void bind_inherited(pybind11::module_& module);
void bind_tap(pybind11::module_& module);
void bind_handles(pybind11::module_& module);
void bind_names(pybind11::module_& module);
void bind_latest(pybind11::module_& module);
void bind_broadcast(pybind11::module_& module);
void bind_observe(pybind11::module_& module);
void bind_recording(pybind11::module_& module);

}  // namespace shmtree::python
