// decimal, fractions, uuid, pathlib.
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/codec/standard_class.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

StandardClass decimal_class("decimal", "Decimal"), fraction_class("fractions", "Fraction"), uuid_class("uuid", "UUID");
StandardClass path_classes[] = {{"pathlib", "Path"}, {"pathlib", "PurePosixPath"}, {"pathlib", "PureWindowsPath"}};

Ref attribute(PyObject* object, const char* name) {
  return Ref(staying([=] { return PyObject_GetAttrString(object, name); }));
}

template <std::uint64_t flavour>
bool encode_path(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref text(staying([=] { return PyObject_Str(value); }));
  if (!text) return false;
  encoder.out.begin_node(Kind::kPath, flavour);
  return encoder.string(text.get());
}

bool encode_decimal(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref text(PyObject_Str(value));
  if (!text) return false;
  encoder.out.add_kind(Kind::kDecimal);
  return encoder.string(text.get());
}

bool encode_fraction(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref numerator = attribute(value, "numerator");
  Ref denominator = numerator ? attribute(value, "denominator") : Ref();
  if (!denominator) return false;
  if (!PyLong_CheckExact(numerator.get()) || !PyLong_CheckExact(denominator.get())) return encoder.needs_pickle(value);
  encoder.out.add_kind(Kind::kFraction);
  return encoder.node(numerator.get()) && encoder.node(denominator.get());
}

bool encode_uuid(Encoder& encoder, PyObject* value, const ClassInfo&) {
  constexpr Py_ssize_t kUuidBytes = 16;
  Ref safety(PyObject_GetAttrString(value, "is_safe"));
  Ref safety_value(safety ? PyObject_GetAttrString(safety.get(), "value") : nullptr);
  if (!safety_value) return false;
  // SafeUUID.unknown, the value of every UUID except a freshly generated uuid1.
  if (safety_value.get() != Py_None) return encoder.needs_pickle(value);
  Ref bytes = attribute(value, "bytes");
  if (!bytes) return false;
  if (!PyBytes_CheckExact(bytes.get()) || PyBytes_GET_SIZE(bytes.get()) != kUuidBytes) {
    return encoder.needs_pickle(value);
  }
  encoder.out.add_kind(Kind::kUuid);
  encoder.out.add_text(PyBytes_AS_STRING(bytes.get()), kUuidBytes);
  return true;
}

PyObject* call_with_text(Decoder& decoder, const StandardClass& which, std::string_view text, const char* what) {
  const Ref argument(decode_str(decoder, text));
  return argument ? decoder.corrupt_unless(call_python(which.get(), argument.get()), what) : nullptr;
}

// Maximum size of parts that are reduced: the time to find a common divisor grows with the square of their size.
constexpr std::uint64_t kReducedBits = 8192;

// 1, 0, or -1 with an error.
int is_reduced_here(PyObject* integer) {
  Ref bits(PyObject_CallMethod(integer, "bit_length", nullptr));
  if (!bits) return -1;
  return PyLong_AsUnsignedLongLong(bits.get()) <= kReducedBits;
}

// Returns the Fraction with these parts, not reduced. The denominator must be positive. Null on failure.
PyObject* fraction_of(Decoder& decoder, PyObject* cls, PyObject* numerator, PyObject* denominator) {
  Ref zero(PyLong_FromLong(0));
  const int positive = zero ? PyObject_RichCompareBool(denominator, zero.get(), Py_GT) : -1;
  if (positive < 0) return nullptr;
  if (positive == 0) return decoder.in.fail("a fraction has a denominator that is not positive"), nullptr;
  Ref nothing(PyTuple_New(0));
  Ref made(nothing ? PyBaseObject_Type.tp_new(reinterpret_cast<PyTypeObject*>(cls), nothing.get(), nullptr) : nullptr);
  if (!made || PyObject_SetAttrString(made.get(), "_numerator", numerator) != 0 ||
      PyObject_SetAttrString(made.get(), "_denominator", denominator) != 0) {
    return nullptr;
  }
  return made.release();
}

PyObject* next_integer(Decoder& decoder) {
  const Kind kind = decoder.in.peek_kind();
  if (kind != Kind::kInt && kind != Kind::kBigInt) return decoder.in.fail("a fraction is not made of ints"), nullptr;
  return decoder.node();
}

PyObject* decode_decimal(Decoder& decoder) {
  const std::string_view text = decoder.in.next_string();
  if (decoder.in.failed()) return nullptr;
  return call_with_text(decoder, decimal_class, text, "a decimal is not a number");
}

PyObject* decode_fraction(Decoder& decoder) {
  Ref numerator(next_integer(decoder));
  Ref denominator(numerator ? next_integer(decoder) : nullptr);
  if (!denominator) return nullptr;
  PyObject* cls = fraction_class.get();
  const int small = is_reduced_here(numerator.get()), also_small = is_reduced_here(denominator.get());
  if (small < 0 || also_small < 0) return nullptr;
  if (small == 0 || also_small == 0) return fraction_of(decoder, cls, numerator.get(), denominator.get());
  return decoder.corrupt_unless(call_python(cls, numerator.get(), denominator.get()), "a fraction has no denominator");
}

PyObject* decode_uuid(Decoder& decoder) {
  constexpr std::uint64_t kUuidBytes = 16;
  const std::string_view bytes = decoder.in.next_text(kUuidBytes);
  if (decoder.in.failed()) return nullptr;
  return PyObject_CallFunction(uuid_class.get(), "Oy#", Py_None, bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

PyObject* decode_path(Decoder& decoder) {
  const std::uint64_t flavour = decoder.in.next_length();
  const std::string_view text = decoder.in.next_string();
  if (flavour > 2) decoder.in.fail("a path has an unknown flavour");
  if (decoder.in.failed()) return nullptr;
  return call_with_text(decoder, path_classes[flavour], text, "a path is invalid");
}

}  // namespace

namespace {

const KindCodec decimal_codec({{Kind::kDecimal, decode_decimal}}, {{"decimal:Decimal", encode_decimal}});
const KindCodec fraction_codec({{Kind::kFraction, decode_fraction}}, {{"fractions:Fraction", encode_fraction}});
const KindCodec uuid_codec({{Kind::kUuid, decode_uuid}}, {{"uuid:UUID", encode_uuid}});
const KindCodec path_codec({{Kind::kPath, decode_path}}, {{"pathlib:PosixPath", encode_path<0>},
                                                          {"pathlib:PurePosixPath", encode_path<1>},
                                                          {"pathlib:PureWindowsPath", encode_path<2>},
                                                          {"pathlib._local:PosixPath", encode_path<0>},
                                                          {"pathlib._local:PurePosixPath", encode_path<1>},
                                                          {"pathlib._local:PureWindowsPath", encode_path<2>}});

}  // namespace

}  // namespace shmtree::python
