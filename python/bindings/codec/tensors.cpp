// Codecs for tensors of torch and device memory.
#include <algorithm>

#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/package.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/view_owner.h"

namespace shmtree::python {
namespace {

// Lends the tensor's memory if the options allow it. Torch has no negative strides.
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
  if (elements * item > bytes) return;  // elements overlap, and readers refuse arrays larger than their memory
  encoder.lend(nullptr, {static_cast<const std::byte*>(source.data), bytes}, source.data, source);
}

// Encodes the object that _torch.leaves.device_leaf() returns for a sparse tensor or for device memory.
bool device_leaf(Encoder& encoder, PyObject* value) {
  Ref home(encoder.options().loans ? encoder.options().loans->home() : Ref::borrow(Py_None));
  PyObject* const portable = encoder.options().portable ? Py_True : Py_False;
  Ref leaf(home ? call_python(package().device_leaf, value, home.get(), portable) : nullptr);
  if (!leaf) return false;
  if (leaf.get() == Py_None) return encoder.needs_pickle(value);
  encoder.keep(Ref::borrow(leaf.get()));
  return encoder.node(leaf.get());
}

// Encodes the parts of a tensor that _torch.tensors.tensor_parts() returns.
template <std::uint64_t flags>
bool tensor_node(Encoder& encoder, PyObject* value, const ClassInfo&) {
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

}  // namespace

bool encode_device_array(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return device_leaf(encoder, value);
}

PyObject* tensor_of(Decoder& decoder, const format::ArrayInfo& info, std::uint64_t flags) {
  const bool is_strided = !info.contiguous() || (info.flags & format::kFortran) != 0;
  const bool is_backward = std::any_of(info.strides, info.strides + info.ndim, [](std::int64_t s) { return s < 0; });
  if (info.dtype == DType::kOther || (is_strided && is_backward)) {
    return decoder.in.fail("a tensor has an invalid memory layout"), nullptr;
  }
  const auto [low, high] = info.nbytes == 0 ? std::pair<std::int64_t, std::int64_t>{} : Decoder::extent_of(info);
  // Memory that several readers share stays shared, although torch cannot make a tensor read-only.
  const TensorViews views = decoder.context().tensor_views;
  const bool shown = views == TensorViews::kAll || (views == TensorViews::kExternal && info.external());
  // All tensors on a buffer share one copy.
  Ref memory(decoder.memory(info, low, high - low, !shown));
  if (memory && shown) PyArray_ENABLEFLAGS(as_array(memory.get()), NPY_ARRAY_WRITEABLE);
  Ref shape = tuple_of(std::span<const std::int64_t>(info.shape, info.ndim));
  Ref strides = is_strided ? tuple_of(std::span<const std::int64_t>(info.strides, info.ndim)) : Ref::borrow(Py_None);
  if (!memory || !shape || !strides) return nullptr;
  PyObject* tensor = decoder.corrupt_unless(
      PyObject_CallFunction(package().tensor_build, "OiiOOLO", memory.get(), static_cast<int>(info.dtype),
                            static_cast<int>(flags), shape.get(), strides.get(),
                            static_cast<long long>(info.nbytes == 0 ? 0 : info.offset - low),
                            decoder.allow_pickle() ? Py_True : Py_False),
      "the parts of a tensor contradict each other");
  if (!tensor) decoder.note_incompatible(decoder.in.position());  // torch lacks the dtype
  return tensor;
}

namespace {

PyObject* decode_tensor(Decoder& decoder) {
  const std::uint64_t flags = decoder.in.next_flags(3);
  format::ArrayInfo info;
  if (!decoder.in.next_array(info)) return nullptr;
  if (info.flags & format::kFortran) return decoder.in.fail("a tensor has an invalid memory layout"), nullptr;
  return tensor_of(decoder, info, flags);
}

const KindCodec tensor_codec({{Kind::kTensor, decode_tensor}},
                             {{"torch:Tensor", once<tensor_node<0>>},
                              {"torch.nn.parameter:Parameter", once<tensor_node<2>>}});

}  // namespace

}  // namespace shmtree::python
