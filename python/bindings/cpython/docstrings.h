// Gives the classes, methods and attributes of the module their docstrings. The stub, python/shmtree/_core.pyi, is the
// only source of these texts; cmake/docstring_table.py makes a table of it at build.
#pragma once

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Call it once, after all names were added. Returns false, with a Python error set, if the stub has a name that the
// module lacks.
bool set_docstrings(PyObject* module);

}  // namespace shmtree::python
