// The functions of shmtree/_leaves.py, which take rare leaves apart and put them together.
#pragma once

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

struct LeafFunctions {
  PyObject* masked_parts;
  PyObject* masked_build;
  PyObject* tensor_parts;
  PyObject* tensor_build;
  PyObject* device_leaf;
};

// Valid after init_leaves().
const LeafFunctions& leaf_functions() noexcept;

// False with a Python error set.
bool init_leaves();

}  // namespace shmtree::python
