// Functions with which each file adds its part of the module, in the order in which module.cpp calls them. Later ones
// use the types of earlier ones. All throw pybind11::error_already_set.
#pragma once

#include "bindings/cpython/python_api.h"
// After python_api.h, which configures Python.h.
#include <pybind11/pybind11.h>

namespace shmtree::python {

void bind_checked_fd(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_array_versions(pybind11::module_& module);
void bind_copy(pybind11::module_& module);
void bind_pack(pybind11::module_& module);
void bind_mapped_list(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_replay_files(pybind11::module_& module);
void bind_wake_hub(pybind11::module_& module);
void bind_channel(pybind11::module_& module);
void bind_reply_line(pybind11::module_& module);
void bind_service_clients(pybind11::module_& module);
void bind_inherited(pybind11::module_& module);
void bind_tap(pybind11::module_& module);
void bind_handles(pybind11::module_& module);
void bind_names(pybind11::module_& module);
void bind_latest_store(pybind11::module_& module);
void bind_ring(pybind11::module_& module);
void bind_observer(pybind11::module_& module);
void bind_recording(pybind11::module_& module);

}  // namespace shmtree::python
