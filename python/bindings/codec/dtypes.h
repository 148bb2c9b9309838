// Converts NumPy's dtypes to and from their form in a frame: a number for plain types, a text for all others
// (docs/internals/frame.md).
//
// All calls need the GIL.
#pragma once

#include <string_view>

#include "bindings/cpython/python_api.h"
#include "shmtree/base/kind.h"

namespace shmtree::python {

// Fills the tables. Call it once, before all other functions.
void init_dtypes();

// Returns kOther for every dtype that is not a plain little-endian number.
DType dtype_code(PyArray_Descr* descr) noexcept;

// Returns a borrowed reference; null for kOther and for number types that NumPy lacks.
PyArray_Descr* descr_of(DType code) noexcept;
// Returns the dtype of ml_dtypes for a number type that NumPy lacks. Imports ml_dtypes if `may_import`. Returns null,
// without an error, if ml_dtypes is missing or has no such dtype.
Ref descr_of_other_package(DType code, bool may_import);

// Specifies if a dtype may contain Python objects.
enum class ObjectFields : bool { kRefused, kAllowed };

// Gets the text of a dtype with code kOther; `owner` keeps it valid. The text is empty if only pickle can send the
// dtype: objects inside if they are kRefused, metadata, or a class of its own. Returns false with a Python error
// set.
bool describe_dtype(PyArray_Descr* descr, ObjectFields objects, Ref* owner, std::string_view* text);

// Returns the dtype of a text, which may come from an untrusted sender and is checked. Returns null with CorruptMessage
// set.
Ref parse_dtype(std::string_view text);

// True for the dtype of zero-character texts. NumPy would make arrays of one-character texts from it.
inline bool is_text_without_width(const PyArray_Descr* descr) noexcept {
  return PyDataType_ISSTRING(descr) && PyDataType_ELSIZE(descr) == 0;
}

// Returns a copy if the dtype has fields, so that renaming the fields of one array changes no other array. Otherwise
// returns the dtype itself. Returns null with a Python error set.
Ref separate_dtype(PyObject* dtype);

// True if elements of this dtype are nothing but `bytes` bytes.
inline bool is_plain(const PyArray_Descr* descr, std::uint64_t bytes) noexcept {
  return !PyDataType_REFCHK(descr) && !PyDataType_HASSUBARRAY(descr) &&
         static_cast<std::uint64_t>(PyDataType_ELSIZE(descr)) == bytes;
}

}  // namespace shmtree::python
