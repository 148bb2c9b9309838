// Messages that are put and taken as frames, without encoding or decoding them.
#pragma once

#include <span>

#include "bindings/endpoint/endpoint.h"
#include "bindings/objects/frame.h"

namespace shmtree::python {

// True if an end with these terms may put the Frame. Returns false with a Python error set: ValueError or
// PickleRefused.
bool may_go(EndObject* self, PyObject* frame, const endpoint::Terms& terms);
// Does the same for an end of a channel, within a Call.
bool may_go(Endpoint* self, PyObject* frame);

// Methods of senders and queues, and of receivers and queues.
std::span<const PyMethodDef> frame_putting_methods();
std::span<const PyMethodDef> frame_taking_methods();

}  // namespace shmtree::python
