// NumPy's dtypes as the frame's: a number for the plain ones, a text for all others (docs/frame.md).
//
// All calls need the GIL.
#pragma once

#include <string_view>

#include "bindings/cpython/python_api.h"
#include "shmtree/kind.h"

namespace shmtree::python {

// Once, before the rest.
void init_dtypes();

// kOther for everything that is not a plain little-endian number.
DType dtype_code(PyArray_Descr* descr) noexcept;

// Borrowed; null for kOther and for what NumPy does not have.
PyArray_Descr* descr_of(DType code) noexcept;
// Returns the dtype that ml_dtypes has for a number type that NumPy lacks. Imports ml_dtypes if `may_import`. Null,
// without an error, if ml_dtypes is not there or has no such dtype.
Ref descr_of_other_package(DType code, bool may_import);

// The text of a dtype with code kOther, valid for as long as `owner` is kept. False with a Python error set; an empty
// text for what only pickle can send: objects inside (unless `with_objects`), metadata, classes of their own.
bool describe_dtype(PyArray_Descr* descr, bool with_objects, Ref* owner, std::string_view* text);

// The dtype of such a text, from anywhere: checked. Null with CorruptMessage set.
Ref parse_dtype(std::string_view text);

// True for the dtype of texts of zero characters, from which NumPy makes arrays of texts of one character.
inline bool is_text_without_width(const PyArray_Descr* descr) noexcept {
  return PyDataType_ISSTRING(descr) && PyDataType_ELSIZE(descr) == 0;
}

// Returns a copy if the dtype has fields, so that renaming the fields of one array changes no other array. Otherwise
// returns the dtype itself. Null with a Python error set.
Ref separate_dtype(PyObject* dtype);

// True if elements of this dtype are nothing but `bytes` bytes.
inline bool is_plain(const PyArray_Descr* descr, std::uint64_t bytes) noexcept {
  return !PyDataType_REFCHK(descr) && !PyDataType_HASSUBARRAY(descr) &&
         static_cast<std::uint64_t>(PyDataType_ELSIZE(descr)) == bytes;
}

}  // namespace shmtree::python
