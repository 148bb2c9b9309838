// Pickles messages that contain an object without a native kind. All calls need the GIL.
#pragma once

#include "bindings/codec/encode.h"
#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Returns false with a Python error set.
bool init_pickle();

// Encodes the whole object as one node: pickle protocol 5, with its out-of-band buffers as raw buffers of the frame.
// Returns false with a Python error set, which comes from the object's own code or from pickle.
bool encode_pickle(EncodeSession& session, PyObject* object, const EncodeOptions& options);

// Returns 1 if a reducer for the class is registered: with copyreg or, for a channel, with multiprocessing. Returns 0
// if not, and -1 with a Python error set.
int has_reducer(PyTypeObject* type, bool for_channel);

// Returns a dict of the reducers that the program has registered with copyreg or, for a channel, with multiprocessing.
// It has only classes with a native kind, and those of register_class(). Reducers of the class's own package and of
// torch are left out, since they do what the native kind does. Returns null, without an error, if there are none, as
// nearly always. That costs a comparison, because the tables are searched only after they have changed.
Ref program_reducers(const EncodeOptions& options);

// Returns the result of pickle.loads(data, buffers=buffers), or null with the Python error that it raised.
Ref load_pickle(PyObject* data, PyObject* buffers);

}  // namespace shmtree::python
