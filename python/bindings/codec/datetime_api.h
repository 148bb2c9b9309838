// The C API of datetime, which is one pointer per file.
#pragma once

#include "bindings/cpython/python_api.h"
// After python_api.h, which sets Python.h up.
#include <datetime.h>

namespace shmtree::python {

// Fills in the pointer of this file on first use. False with a Python error set.
[[maybe_unused]] static bool have_datetime() {
  if (!PyDateTimeAPI) PyDateTime_IMPORT;
  return PyDateTimeAPI != nullptr;
}

}  // namespace shmtree::python
