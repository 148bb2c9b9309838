// ReplaySpec: the structure and the options of a replay buffer.
#pragma once

#include <pybind11/pybind11.h>

#include "replay/buffer/spec.h"

namespace shmtree::python {

// Adds _core.ReplaySpec.
void bind_replay_spec(pybind11::module_& module);

}  // namespace shmtree::python
