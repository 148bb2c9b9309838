#include "bindings/codec/portable.h"

#include "bindings/cpython/errors.h"

namespace shmtree::python {

PyObject* refuse_local(const char* what) {
  return PyErr_Format(error_types().not_portable,
                      "a %.200s is valid on this machine only, but what is sent here must be portable", what);
}

}  // namespace shmtree::python
