// Arrays, NumPy scalars and dtypes, masked arrays, torch tensors, messages of Cap'n Proto.
#include <algorithm>

#include "bindings/codec/dtypes.h"
#include "bindings/codec/encoder.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"
#include "bindings/objects/lease.h"
#include "bindings/objects/loan.h"

namespace shmtree::python {
namespace {

static_assert(sizeof(npy_intp) == sizeof(std::int64_t), "shapes and strides are handed on as they are");

const std::int64_t* as_int64(const npy_intp* values) noexcept {
  return reinterpret_cast<const std::int64_t*>(values);
}

// The text of a dtype with code kOther, kept for the session; false where only pickle can say it, or on an error.
bool describe(Encoder& encoder, PyObject* value, PyArray_Descr* descr, bool with_objects, std::string_view* text) {
  Ref owner;
  if (!describe_dtype(descr, with_objects, &owner, text)) return false;
  encoder.keep(std::move(owner));
  return (!text->empty() && text->size() <= kMaxNameBytes) || encoder.needs_pickle(value);
}

// The memory from the first to the last byte of the elements.
struct Extent {
  const std::byte* begin;
  std::size_t bytes;
};

Extent extent_of(PyArrayObject* array) noexcept {
  const auto* low = reinterpret_cast<const std::byte*>(PyArray_BYTES(array));
  const auto* high = low + PyArray_ITEMSIZE(array);
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    const npy_intp reach = (PyArray_DIM(array, i) - 1) * PyArray_STRIDE(array, i);
    (reach < 0 ? low : high) += reach;
  }
  return {low, static_cast<std::size_t>(high - low)};
}

// Asks for one; `first` is the address of the first element.
void lend(Encoder& encoder, PyArrayObject* array, const Extent& extent, const void* first,
          format::ArraySource& source) {
  Loan loan;
  if (!encoder.options().loans->resolve(array, extent.begin, extent.bytes, &loan)) return;
  source.external = encoder.out.add_external({loan.reference, loan.offset, extent.bytes});
  source.external_offset = static_cast<const std::byte*>(first) - extent.begin;
  source.read_only = loan.shown;
}

// Sends the array by reference when it lies in an arena and whoever asked for this message says so.
void lend(Encoder& encoder, PyArrayObject* array, format::ArraySource& source) {
  if (!encoder.options().loans || PyArray_SIZE(array) == 0 || !lease_of(array)) return;
  lend(encoder, array, extent_of(array), PyArray_DATA(array), source);
}

format::Order order_of(PyArrayObject* array) noexcept {
  if (PyArray_IS_C_CONTIGUOUS(array)) return format::Order::kC;
  return PyArray_IS_F_CONTIGUOUS(array) ? format::Order::kFortran : format::Order::kStrided;
}

}  // namespace

bool Encoder::array(PyArrayObject* array) {
  auto* object = reinterpret_cast<PyObject*>(array);
  if (Py_REFCNT(object) > 2) {  // as in once(), but that arrays are kept anyway
    const auto [number, fresh] = session_.met().note(object, out.kinds());
    if (!fresh) return refer_to(object, number);
    session_.met().close(number);
  }
  return array_node(array);
}

bool Encoder::array_node(PyArrayObject* array) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  auto* object = reinterpret_cast<PyObject*>(array);
  format::ArraySource source;
  source.dtype = dtype_code(descr);
  if (source.dtype == DType::kOther) {
    if (is_text_without_width(descr)) return needs_pickle(object);
    if (!describe(*this, object, descr, false, &source.description)) return false;
    source.item_bytes = static_cast<std::uint64_t>(PyArray_ITEMSIZE(array));
  }
  source.data = PyArray_DATA(array);
  source.shape = as_int64(PyArray_SHAPE(array));
  source.ndim = static_cast<std::uint8_t>(PyArray_NDIM(array));
  source.order = order_of(array);
  source.strides = as_int64(PyArray_STRIDES(array));
  // One reference is the container's and one the walk's.
  const bool is_lone = Py_REFCNT(object) <= 2;
  const bool independent = options_.independent;
  source.may_share = !independent && (PyArray_BASE(array) != nullptr || !is_lone);
  if (PyArray_BASE(array) != nullptr) lend(*this, array, source);
  if (!PyArray_ISWRITEABLE(array)) source.read_only = !independent || source.external != format::kNoIndex;
  out.add_kind(Kind::kArray);
  out.add_array(source);
  keep(object);
  return true;
}

bool Encoder::segment(PyArrayObject* array) {
  const std::int64_t bytes = PyArray_NBYTES(array);
  if (PyArray_TYPE(array) != NPY_UINT8 || PyArray_NDIM(array) != 1 || !PyArray_IS_C_CONTIGUOUS(array) ||
      bytes % std::int64_t{format::kWordBytes} != 0) {
    PyErr_SetString(PyExc_ValueError,
                    "A segment of a CapnpMessage must be a contiguous uint8 array whose size is a multiple of 8");
    return false;
  }
  format::ArraySource source{.data = PyArray_DATA(array),
                             .shape = &bytes,
                             .ndim = 1,
                             .dtype = DType::kUInt8,
                             .may_share = !options_.independent,
                             .whole_words = true};
  if (PyArray_BASE(array) != nullptr) lend(*this, array, source);
  source.read_only = true;
  out.add_array(source);
  keep(reinterpret_cast<PyObject*>(array));
  return true;
}

bool encode_numpy_scalar(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  Ref boxed(PyArray_FromScalar(value, nullptr));
  if (!boxed) return false;
  auto* array = as_array(boxed.get());
  PyArray_Descr* descr = PyArray_DESCR(array);
  if (descr->typeobj != info.type) return encoder.needs_pickle(value);
  const DType code = dtype_code(descr);
  std::string_view description;
  if (code == DType::kOther && !describe(encoder, value, descr, false, &description)) return false;
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
  if (code == DType::kOther && !describe(encoder, value, descr, true, &description)) return false;
  encoder.out.begin_node(Kind::kDType, code);
  if (code == DType::kOther) encoder.out.add_name(description);
  return true;
}

namespace {

bool masked_array_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref parts(call_python(package().masked_parts, value));
  if (!parts) return false;
  if (parts.get() == Py_None) return encoder.needs_pickle(value);
  PyObject *data = nullptr, *mask = nullptr, *fill = nullptr;
  int hard = 0;
  if (!PyArg_ParseTuple(parts.get(), "OOOp", &data, &mask, &fill, &hard)) return false;
  encoder.keep(Ref::borrow(parts.get()));
  encoder.out.add_kind(Kind::kMaskedArray);
  // Data and mask are arrays of this node alone, as its readers expect.
  const auto part = [&](PyObject* array) {
    return Py_TYPE(array) == &PyArray_Type ? encoder.array_node(as_array(array)) : encoder.node(array);
  };
  if (!encoder.deeper() || !part(data) || !part(mask) || !encoder.node(fill)) return false;
  encoder.leave();
  encoder.out.add_length(static_cast<std::uint64_t>(hard));
  return true;
}

}  // namespace

bool encode_masked_array(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<masked_array_node>(encoder, value, info);
}

namespace {

// Torch has no negative strides.
void lend_tensor(Encoder& encoder, format::ArraySource& source) {
  std::size_t elements = 1, reach = 0;
  for (std::size_t i = 0; i < source.ndim; ++i) {
    const auto count = static_cast<std::size_t>(source.shape[i]);
    if (count == 0) return;
    elements *= count;
    if (source.order == format::Order::kStrided) reach += (count - 1) * static_cast<std::size_t>(source.strides[i]);
  }
  const std::size_t item = item_bytes(source.dtype);
  const std::size_t bytes = source.order == format::Order::kStrided ? reach + item : elements * item;
  if (elements * item > bytes) return;  // they overlap: a reader takes no array for more than its bytes
  lend(encoder, nullptr, {static_cast<const std::byte*>(source.data), bytes}, source.data, source);
}

// What leaves.device_leaf() says is to be sent in place of memory of a device.
bool device_leaf(Encoder& encoder, PyObject* value) {
  Ref home(encoder.options().loans ? encoder.options().loans->home() : Ref::borrow(Py_None));
  PyObject* const portable = encoder.options().portable ? Py_True : Py_False;
  Ref leaf(home ? call_python(package().device_leaf, value, home.get(), portable) : nullptr);
  if (!leaf) return false;
  if (leaf.get() == Py_None) return encoder.needs_pickle(value);
  encoder.keep(Ref::borrow(leaf.get()));
  return encoder.node(leaf.get());
}

// A tensor as leaves.tensor_parts() takes it apart.
bool tensor(Encoder& encoder, PyObject* value, std::uint64_t flags) {
  Ref parts(call_python(package().tensor_parts, value));
  if (!parts) return false;
  if (parts.get() == Py_None) return device_leaf(encoder, value);
  PyObject *owner = nullptr, *shape = nullptr, *strides = nullptr;
  int code = 0, requires_grad = 0;
  unsigned long long address = 0;
  if (!PyArg_ParseTuple(parts.get(), "OipKO!O", &owner, &code, &requires_grad, &address, &PyTuple_Type, &shape,
                        &strides)) {
    return false;
  }
  const Py_ssize_t ndim = PyTuple_GET_SIZE(shape);
  if (ndim > Py_ssize_t{kMaxDims}) return encoder.needs_pickle(value);
  std::int64_t shape_values[kMaxDims], stride_values[kMaxDims];
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    shape_values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
    if (strides != Py_None) stride_values[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
    if (PyErr_Occurred()) return false;
  }
  format::ArraySource source;
  source.dtype = static_cast<DType>(code);
  source.data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
  source.shape = shape_values;
  source.strides = stride_values;
  source.ndim = static_cast<std::uint8_t>(ndim);
  source.order = strides == Py_None ? format::Order::kC : format::Order::kStrided;
  source.may_share = true;
  if (encoder.options().loans) lend_tensor(encoder, source);
  encoder.out.begin_node(Kind::kTensor, flags | static_cast<std::uint64_t>(requires_grad));
  encoder.out.add_array(source);
  encoder.keep(Ref::borrow(owner));
  return true;
}

bool tensor_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return tensor(encoder, value, 0);
}

bool parameter_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return tensor(encoder, value, 2);
}

bool device_array_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return device_leaf(encoder, value);
}

}  // namespace

namespace {

bool capnp_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
  const Ref id(PyObject_GetAttrString(value, "_schema_id"));
  const Ref segments(id ? PyObject_GetAttrString(value, "_segments") : nullptr);
  if (!segments) return false;
  const unsigned long long schema_id = PyLong_AsUnsignedLongLong(id.get());
  if (PyErr_Occurred()) return false;
  const Py_ssize_t count = PyTuple_CheckExact(segments.get()) ? PyTuple_GET_SIZE(segments.get()) : 0;
  if (count == 0 || count > Py_ssize_t{kMaxSegments}) {
    PyErr_Format(PyExc_ValueError, "A CapnpMessage needs 1 to 512 segments; this one has %zd", count);
    return false;
  }
  encoder.out.add_kind(Kind::kCapnp);
  encoder.out.add_int(static_cast<std::int64_t>(schema_id));
  encoder.out.add_length(static_cast<std::uint64_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const segment = PyTuple_GET_ITEM(segments.get(), i);
    if (Py_TYPE(segment) != &PyArray_Type) {
      PyErr_SetString(PyExc_TypeError, "A segment of a CapnpMessage is not an array");
      return false;
    }
    if (!encoder.segment(as_array(segment))) return false;
  }
  return true;
}

}  // namespace

bool encode_capnp(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<capnp_node>(encoder, value, info);
}

bool encode_tensor(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<tensor_node>(encoder, value, info);
}

bool encode_parameter(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<parameter_node>(encoder, value, info);
}

bool encode_device_array(Encoder& encoder, PyObject* value, const ClassInfo& info) {
  return once<device_array_node>(encoder, value, info);
}

}  // namespace shmtree::python
