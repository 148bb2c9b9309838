// Classes of the standard library that messages may have.
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

// Imports the modules of the classes, when the extension is loaded. An import during a decode would hold the lock of a
// module, and a child that is forked meanwhile would wait for it forever. False with a Python error set.
bool init_standard_classes();

// Returns a borrowed reference.
PyObject* standard_class(StandardClass which) noexcept;

}  // namespace shmtree::python
