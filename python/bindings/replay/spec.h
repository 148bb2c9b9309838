// ReplaySpec: the structure and the options of a replay buffer.
#pragma once

#include <pybind11/pybind11.h>

#include "replay/buffer/spec.h"

namespace shmtree::python {

// Converts a dict key, or a path: a str, or bytes that contain the frame of a key of another type.
replay::SpecPart::Key key_of(pybind11::handle key);

// Adds _core.ReplaySpec.
void bind_replay_spec(pybind11::module_& module);

}  // namespace shmtree::python
