// Decides from a class itself how its instances are sent. Used by the class registry only.
#pragma once

#include "bindings/codec/class_registry.h"

namespace shmtree::python {

// Looks up what the decisions compare with. False with a Python error set.
bool init_class_shapes();

// Fills in all but type, guard and name, which are given. False with a Python error set.
bool classify(ClassInfo& info);

// Whether the class is one of those that are sent natively, and so cannot be registered.
bool has_native_kind(PyTypeObject* type);

}  // namespace shmtree::python
