#include "bindings/codec/standard_class.h"

namespace shmtree::python {

bool init_standard_classes() {
  for (StandardClass* each = StandardClass::first_; each; each = each->next_) {
    const Ref module(PyImport_ImportModule(each->module_));
    each->class_ = module ? PyObject_GetAttrString(module.get(), each->name_) : nullptr;
    if (!each->class_) return false;
  }
  return true;
}

}  // namespace shmtree::python
