// The C API of datetime. Each file that includes this header has its own pointer to it.
#pragma once

#include "bindings/cpython/python_api.h"
// After python_api.h, which configures Python.h.
#include <datetime.h>

namespace shmtree::python {

// Sets this file's pointer on first use. Returns false with a Python error set.
[[maybe_unused]] static bool have_datetime() {
  if (!PyDateTimeAPI) PyDateTime_IMPORT;
  return PyDateTimeAPI != nullptr;
}

}  // namespace shmtree::python
