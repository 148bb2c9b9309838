// Classes of the standard library, imported when the first value of them is decoded.
#pragma once

#include <cstdint>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

enum class StandardClass : std::uint8_t {
  kDefaultDict,
  kCounter,
  kDeque,
  kDecimal,
  kFraction,
  kUuid,
  kPath,
  kPurePosixPath,
  kPureWindowsPath,
  kZoneInfo,
  kCount
};

// Borrowed; null with a Python error set.
PyObject* standard_class(StandardClass which);

}  // namespace shmtree::python
