// The Python object of a Subscriber, for broadcast.cpp, which makes it.
#pragma once

#include <memory>

#include "bindings/endpoint/ring_end.h"
#include "broadcast/subscriber.h"

namespace shmtree::python {

// Makes an object of a subclass of _core.SubscriberBase. Returns null with a Python error set.
PyObject* new_subscriber(PyTypeObject* type, std::unique_ptr<broadcast::Subscriber> subscriber, bool allow_pickle,
                         std::shared_ptr<endpoint::Name> name);

}  // namespace shmtree::python
