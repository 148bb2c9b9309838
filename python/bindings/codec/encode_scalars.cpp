// Scalars of Python itself that are not in the hot path.
#include <vector>

#include "bindings/codec/encoder.h"
#include "bindings/cpython/python_ints.h"

namespace shmtree::python {

bool encode_big_int(Encoder& encoder, PyObject* value) {
  std::vector<unsigned char> bytes;
  if (!int_to_bytes(value, bytes)) return false;
  encoder.out.add_kind(Kind::kBigInt);
  encoder.out.add_string(bytes.data(), bytes.size());
  return true;
}

bool encode_complex(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const Py_complex number = PyComplex_AsCComplex(value);
  encoder.out.add_kind(Kind::kComplex);
  encoder.out.add_float(number.real);
  encoder.out.add_float(number.imag);
  return true;
}

namespace {

bool memoryview_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref array(PyArray_FromAny(value, nullptr, 0, 0, 0, nullptr));
  if (!array) return false;
  Ref round_trip(PyMemoryView_FromObject(array.get()));
  if (!round_trip) return false;
  const Py_buffer* want = PyMemoryView_GET_BUFFER(value);
  const std::string_view format = want->format ? want->format : "B";
  const std::string_view got = PyMemoryView_GET_BUFFER(round_trip.get())->format;
  // An array knows no difference between the C types of the same size.
  const bool same = format == got || (format == "q" && got == "l") || (format == "Q" && got == "L");
  if (!same || PyArray_DESCR(as_array(array.get()))->type_num == NPY_OBJECT) {
    PyErr_Format(PyExc_TypeError, "A memoryview of format '%s' cannot be sent", want->format);
    return false;
  }
  encoder.out.add_kind(Kind::kMemoryView);
  encoder.keep(Ref::borrow(array.get()));
  return encoder.array_node(as_array(array.get()));
}

bool slice_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  auto* slice = reinterpret_cast<PySliceObject*>(value);
  if (!encoder.deeper()) return false;
  encoder.out.add_kind(Kind::kSlice);
  return encoder.child(slice->start) && encoder.child(slice->stop) && encoder.child(slice->step) && encoder.leave();
}

}  // namespace

bool encode_memoryview(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<memoryview_node>(encoder, value, info);
}

bool encode_slice(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<slice_node>(encoder, value, info);
}

bool encode_ellipsis(Encoder& encoder, PyObject*, const ClassInfo&) {
  encoder.out.add_kind(Kind::kEllipsis);
  return true;
}

bool encode_not_implemented(Encoder& encoder, PyObject*, const ClassInfo&) {
  encoder.out.add_kind(Kind::kNotImplemented);
  return true;
}

bool encode_range(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const char* const names[] = {"start", "stop", "step"};
  long long numbers[3];
  for (int i = 0; i < 3; ++i) {
    Ref number(PyObject_GetAttrString(value, names[i]));
    if (!number) return false;
    int overflow = 0;
    numbers[i] = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
    if (overflow) return encoder.needs_pickle(value);
  }
  encoder.out.add_kind(Kind::kRange);
  for (long long number : numbers) encoder.out.add_int(number);
  return true;
}

}  // namespace shmtree::python
