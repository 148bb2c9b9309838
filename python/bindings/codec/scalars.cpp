// Codecs for Python's own scalars that are not on the hot path.
#include <cstdlib>
#include <memory>
#include <vector>

#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/cpython/large_copy.h"
#include "bindings/cpython/python_ints.h"

namespace shmtree::python {

bool encode_big_int(Encoder& encoder, PyObject* value) {
  std::vector<unsigned char> bytes;
  if (!int_to_bytes(value, bytes)) return false;
  encoder.out.add_kind(Kind::kBigInt);
  encoder.out.add_string(bytes.data(), bytes.size());
  return true;
}

namespace {

bool encode_complex(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const Py_complex number = PyComplex_AsCComplex(value);
  encoder.out.add_kind(Kind::kComplex);
  encoder.out.add_float(number.real);
  encoder.out.add_float(number.imag);
  return true;
}

bool memoryview_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref array(PyArray_FromAny(value, nullptr, 0, 0, 0, nullptr));
  if (!array) return false;
  Ref round_trip(PyMemoryView_FromObject(array.get()));
  if (!round_trip) return false;
  const Py_buffer* want = PyMemoryView_GET_BUFFER(value);
  const std::string_view format = want->format ? want->format : "B";
  const std::string_view got = PyMemoryView_GET_BUFFER(round_trip.get())->format;
  // NumPy does not distinguish C types of the same size.
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
  if (!encoder.enter()) return false;
  encoder.out.add_kind(Kind::kSlice);
  if (!encoder.child(slice->start)) return encoder.at_attribute("start");
  if (!encoder.child(slice->stop)) return encoder.at_attribute("stop");
  if (!encoder.child(slice->step)) return encoder.at_attribute("step");
  return encoder.leave();
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

struct FreeBytes {
  void operator()(char* bytes) const noexcept { std::free(bytes); }
};

}  // namespace

PyObject* decode_str(Decoder& decoder, std::string_view text) {
  return decoder.corrupt_unless(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"), "a text is not UTF-8");
}

namespace {

template <Kind kind>
bool encode_constant(Encoder& encoder, PyObject*, const ClassInfo&) {
  encoder.out.add_kind(kind);
  return true;
}

PyObject* decode_complex(Decoder& decoder) {
  const double real = decoder.in.next_float();
  return PyComplex_FromDoubles(real, decoder.in.next_float());
}

PyObject* decode_long_str(Decoder& decoder) {
  const std::span<const std::byte> blob = decoder.blob();
  if (decoder.in.failed()) return nullptr;
  // Parses a copy, because other processes may still write to the frame.
  const std::unique_ptr<char, FreeBytes> bytes(static_cast<char*>(std::malloc(blob.size() + 1)));
  if (!bytes) return PyErr_NoMemory();
  copy_to_fresh(bytes.get(), blob.data(), blob.size());
  return decode_str(decoder, {bytes.get(), blob.size()});
}

PyObject* decode_big_int(Decoder& decoder) {
  const std::string_view bytes = decoder.in.next_string();
  if (bytes.empty()) return decoder.in.fail("a big int has no bytes"), nullptr;
  return int_from_bytes(bytes.data(), bytes.size());
}

}  // namespace

PyObject* new_bytes(std::span<const std::byte> run) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(run.size()));
  if (bytes) copy_to_fresh(PyBytes_AS_STRING(bytes), run.data(), run.size());
  return bytes;
}

PyObject* decode_long_bytes(Decoder& decoder) {
  const std::span<const std::byte> blob = decoder.blob();
  return decoder.in.failed() ? nullptr : new_bytes(blob);
}

namespace {

template <bool is_long>
PyObject* decode_bytearray(Decoder& decoder) {
  if constexpr (!is_long) {
    const std::string_view bytes = decoder.in.next_string();
    return PyByteArray_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  }
  const std::span<const std::byte> blob = decoder.blob();
  if (decoder.in.failed()) return nullptr;
  PyObject* bytes = PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(blob.size()));
  if (bytes) copy_to_fresh(PyByteArray_AS_STRING(bytes), blob.data(), blob.size());
  return bytes;
}

PyObject* decode_memoryview(Decoder& decoder) {
  if (decoder.in.next_kind() != Kind::kArray) return decoder.in.fail("a memoryview has no array"), nullptr;
  Ref array(decoder.array());
  return array ? decoder.corrupt_unless(PyMemoryView_FromObject(array.get()), "a memoryview cannot have such elements")
               : nullptr;
}

PyObject* decode_range(Decoder& decoder) {
  const std::int64_t start = decoder.in.next_int();
  const std::int64_t stop = decoder.in.next_int();
  const std::int64_t step = decoder.in.next_int();
  if (step == 0) decoder.in.fail("a range has no step");
  if (decoder.in.failed()) return nullptr;
  return PyObject_CallFunction(type_object(&PyRange_Type), "LLL", static_cast<long long>(start),
                               static_cast<long long>(stop), static_cast<long long>(step));
}

PyObject* decode_slice(Decoder& decoder) {
  Ref start(decoder.node());
  Ref stop(start ? decoder.node() : nullptr);
  Ref step(stop ? decoder.node() : nullptr);
  return step ? PySlice_New(start.get(), stop.get(), step.get()) : nullptr;
}

const KindCodec complex_codec({{Kind::kComplex, decode_complex}}, {{&PyComplex_Type, encode_complex}});
const KindCodec text_codec({{Kind::kBigInt, decode_big_int},
                            {Kind::kLongStr, decode_long_str},
                            {Kind::kLongBytes, decode_long_bytes},
                            {Kind::kByteArray, decode_bytearray<false>},
                            {Kind::kLongByteArray, decode_bytearray<true>}},
                           {});
const KindCodec memoryview_codec({{Kind::kMemoryView, decode_memoryview}},
                                 {{&PyMemoryView_Type, once<memoryview_node>}});
const KindCodec ellipsis_codec({{Kind::kEllipsis, [](Decoder&) { return Py_NewRef(Py_Ellipsis); }}},
                               {{&PyEllipsis_Type, encode_constant<Kind::kEllipsis>}});
const KindCodec not_implemented_codec({{Kind::kNotImplemented, [](Decoder&) { return Py_NewRef(Py_NotImplemented); }}},
                                      {{[] { return Py_TYPE(Py_NotImplemented); },
                                        encode_constant<Kind::kNotImplemented>}});
const KindCodec range_codec({{Kind::kRange, decode_range}}, {{&PyRange_Type, encode_range}});
const KindCodec slice_codec({{Kind::kSlice, decode_slice}}, {{&PySlice_Type, once<slice_node>}});

}  // namespace

}  // namespace shmtree::python
