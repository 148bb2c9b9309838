// Pickle, for messages that hold something without a native kind. All calls need the GIL.
#pragma once

#include "bindings/codec/encode.h"
#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// False with a Python error set.
bool init_pickle();

// The whole object as one node: protocol 5, with its buffers as raw buffers of the frame. False with a Python error
// set: what the object's own code raised, or what pickle says of an object that it cannot send.
bool encode_pickle(EncodeSession& session, PyObject* object, const EncodeOptions& options);

// 1 if a table of pickle has a reducer for the class: copyreg's, or for a channel also that of multiprocessing. 0 if
// not; -1 with a Python error set.
int has_reducer(PyTypeObject* type, bool for_channel);

// What pickle.loads(data, buffers=buffers) gives, and raises.
Ref load_pickle(PyObject* data, PyObject* buffers);

}  // namespace shmtree::python
