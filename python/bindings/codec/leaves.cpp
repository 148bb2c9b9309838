#include "bindings/codec/leaves.h"

namespace shmtree::python {
namespace {

LeafFunctions functions{};

}  // namespace

const LeafFunctions& leaf_functions() noexcept {
  return functions;
}

bool init_leaves() {
  Ref module(PyImport_ImportModule("shmtree._leaves"));
  if (!module) return false;
  functions.masked_parts = PyObject_GetAttrString(module.get(), "masked_parts");
  functions.masked_build = PyObject_GetAttrString(module.get(), "masked_build");
  functions.tensor_parts = PyObject_GetAttrString(module.get(), "tensor_parts");
  functions.tensor_build = PyObject_GetAttrString(module.get(), "tensor_build");
  functions.device_leaf = PyObject_GetAttrString(module.get(), "device_leaf");
  return functions.masked_parts && functions.masked_build && functions.tensor_parts && functions.tensor_build &&
         functions.device_leaf;
}

}  // namespace shmtree::python
