// Codecs for decimal, uuid and pathlib.
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/codec/standard_class.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

StandardClass decimal_class("decimal", "Decimal"), uuid_class("uuid", "UUID");
StandardClass path_classes[] = {{"pathlib", "Path"}, {"pathlib", "PurePosixPath"}, {"pathlib", "PureWindowsPath"}};

template <std::uint64_t flavour>
bool encode_path(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref text(without_unwinding([=] { return PyObject_Str(value); }));
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

bool encode_uuid(Encoder& encoder, PyObject* value, const ClassInfo&) {
  constexpr Py_ssize_t kUuidBytes = 16;
  Ref safety(PyObject_GetAttrString(value, "is_safe"));
  Ref safety_value(safety ? PyObject_GetAttrString(safety.get(), "value") : nullptr);
  if (!safety_value) return false;
  // None stands for SafeUUID.unknown, the value of every UUID except a freshly generated uuid1.
  if (safety_value.get() != Py_None) return encoder.needs_pickle(value);
  Ref bytes(without_unwinding([=] { return PyObject_GetAttrString(value, "bytes"); }));
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

PyObject* decode_decimal(Decoder& decoder) {
  const std::string_view text = decoder.in.next_string();
  if (decoder.in.failed()) return nullptr;
  return call_with_text(decoder, decimal_class, text, "a decimal is not a number");
}

PyObject* decode_uuid(Decoder& decoder) {
  constexpr std::uint64_t kUuidBytes = 16;
  const std::string_view bytes = decoder.in.next_text(kUuidBytes);
  if (decoder.in.failed()) return nullptr;
  return PyObject_CallFunction(uuid_class.get(), "Oy#", Py_None, bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

PyObject* decode_path(Decoder& decoder) {
  const std::uint64_t flavour = decoder.in.next_flags(2);
  const std::string_view text = decoder.in.next_string();
  if (decoder.in.failed()) return nullptr;
  return call_with_text(decoder, path_classes[flavour], text, "a path is invalid");
}

const KindCodec decimal_codec({{Kind::kDecimal, decode_decimal}}, {{"decimal:Decimal", encode_decimal}});
const KindCodec uuid_codec({{Kind::kUuid, decode_uuid}}, {{"uuid:UUID", encode_uuid}});
const KindCodec path_codec({{Kind::kPath, decode_path}}, {{"pathlib:PosixPath", encode_path<0>},
                                                          {"pathlib:PurePosixPath", encode_path<1>},
                                                          {"pathlib:PureWindowsPath", encode_path<2>},
                                                          {"pathlib._local:PosixPath", encode_path<0>},
                                                          {"pathlib._local:PurePosixPath", encode_path<1>},
                                                          {"pathlib._local:PureWindowsPath", encode_path<2>}});

}  // namespace

}  // namespace shmtree::python
