// Objects that the package shmtree passes to this module (_codec/core_functions.py). The module does not import them
// itself.
#pragma once

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

struct Package {
  PyObject *error, *channel_closed, *shut_down, *peer_died, *worker_failed, *message_too_large, *out_of_shared_memory,
      *corrupt_message, *incompatible_message, *pickle_refused, *not_portable, *incompatible_arena, *overrun,
      *unused_end_warning, *queue_full, *queue_empty;
  PyObject *describe_dtype, *parse_dtype, *dtype_of_other_package, *has_torch;
  PyObject *tensor_parts, *tensor_build, *device_leaf;
  PyObject *reducers, *attrs_fields, *is_model, *model_state, *model_build;
  PyObject *stand_in, *explain_unsendable, *key_text, *remedy_for;
};

// All members are null before set_package(), which runs before any other use of the module.
const Package& package() noexcept;

// Returns the same objects, for callers that need only the error classes.
inline const Package& error_types() noexcept {
  return package();
}

// Takes the objects from a dict, by name. Returns false with a Python error set.
bool set_package(PyObject* given);

}  // namespace shmtree::python
