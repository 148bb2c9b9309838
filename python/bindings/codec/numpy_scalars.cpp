// Codecs for NumPy scalars and dtypes.
#include "bindings/codec/decoder.h"
#include "bindings/codec/dtypes.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"

namespace shmtree::python {
namespace {

bool encode_numpy_scalar(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  Ref boxed(PyArray_FromScalar(value, nullptr));
  if (!boxed) return false;
  auto* array = as_array(boxed.get());
  PyArray_Descr* descr = PyArray_DESCR(array);
  if (descr->typeobj != info.type) return encoder.needs_pickle(value);
  const DType code = dtype_code(descr);
  std::string_view description;
  if (code == DType::kOther && !encoder.dtype_text(value, descr, ObjectFields::kRefused, &description)) return false;
  const auto bytes = static_cast<std::size_t>(PyArray_ITEMSIZE(array));
  encoder.out.begin_node(Kind::kNumpyScalar, code);
  if (code == DType::kOther) {
    encoder.out.add_name(description);
    encoder.out.add_length(bytes);
  }
  encoder.out.add_text(PyArray_DATA(array), bytes);
  return true;
}

bool encode_dtype(Encoder& encoder, PyObject* value, const ClassInfo&) {
  auto* descr = reinterpret_cast<PyArray_Descr*>(value);
  const DType code = dtype_code(descr);
  std::string_view description;
  if (code == DType::kOther && !encoder.dtype_text(value, descr, ObjectFields::kAllowed, &description)) return false;
  encoder.out.begin_node(Kind::kDType, code);
  if (code == DType::kOther) encoder.out.add_name(description);
  return true;
}

}  // namespace

PyObject* decode_numpy_scalar(Decoder& decoder) {
  format::Name description;
  const DType code = decoder.in.next_dtype(description);
  Ref parsed = decoder.dtype(code, description);
  if (!parsed) return nullptr;
  auto* descr = reinterpret_cast<PyArray_Descr*>(parsed.get());
  const std::uint64_t bytes = code == DType::kOther ? decoder.in.next_length() : item_bytes(code);
  const std::string_view data = decoder.in.next_text(bytes);
  if (!is_plain(descr, bytes)) decoder.in.fail("the size of a dtype differs from the size of its elements");
  if (decoder.in.failed()) return nullptr;
  if (code != DType::kOther) {
    alignas(16) char value[16];
    std::memcpy(value, data.data(), data.size());
    return PyArray_Scalar(value, descr, nullptr);
  }
  // A scalar with fields is a view of its own array.
  Ref box(PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(parsed.release()), 0, nullptr, nullptr,
                               nullptr, 0, nullptr));
  if (!box) return nullptr;
  if (!data.empty()) std::memcpy(PyArray_DATA(as_array(box.get())), data.data(), data.size());
  return decoder.corrupt_unless(PyArray_ToScalar(PyArray_DATA(as_array(box.get())), as_array(box.get())),
                                "a NumPy scalar has invalid contents");
}

namespace {

PyObject* decode_dtype(Decoder& decoder) {
  format::Name description;
  const DType code = decoder.in.next_dtype(description);
  return decoder.dtype(code, description).release();
}

const KindCodec dtype_codec({{Kind::kDType, decode_dtype}},
                            {{[] { return &PyArrayDescr_Type; }, encode_dtype, Subclasses::kIncluded}});
const KindCodec numpy_scalar_codec({{Kind::kNumpyScalar, decode_numpy_scalar}},
                                   {{[] { return &PyGenericArrType_Type; }, encode_numpy_scalar,
                                     Subclasses::kIncluded}});

}  // namespace

}  // namespace shmtree::python
