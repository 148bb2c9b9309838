// Messages that are not decoded: put as frames, and taken as frames.
#pragma once

#include <span>

#include "bindings/endpoint/endpoint.h"
#include "bindings/objects/frame_object.h"

namespace shmtree::python {

// Whether a Frame may be put there. False with a Python error set: ValueError, or PickleRefused.
bool may_go(Endpoint* self, PyObject* frame);

// What senders and queues have of it, and receivers and queues.
std::span<const PyMethodDef> frame_putting_methods();
std::span<const PyMethodDef> frame_taking_methods();

}  // namespace shmtree::python
