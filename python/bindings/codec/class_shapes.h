// Decides how to send the instances of a class, from the class itself. Only the class registry uses it.
#pragma once

#include "bindings/codec/class_registry.h"

namespace shmtree::python {

// Looks up the objects that classes are compared with. Returns false with a Python error set.
bool init_class_shapes();

// Fills in all members of `info` except type, guard and name, which the caller has set. Returns false with a Python
// error set.
bool classify(ClassInfo& info);

// True if instances of the class are sent natively, so that the class cannot be registered.
bool has_native_kind(PyTypeObject* type);

}  // namespace shmtree::python
