// Decodes arrays and the segments of Cap'n Proto messages.
#include <algorithm>

#include "bindings/codec/decoder.h"
#include "bindings/codec/dtypes.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/large_copy.h"
#include "bindings/cpython/package.h"
#include "bindings/objects/view_owner.h"

namespace shmtree::python {
namespace {

static_assert(sizeof(npy_intp) == sizeof(std::int64_t), "shapes and strides are handed on as they are");

const npy_intp* as_intp(const std::int64_t* values) noexcept {
  return reinterpret_cast<const npy_intp*>(values);
}

// The largest alignment that an element type needs. Buffers have this alignment, unless the caller passes a frame in
// unaligned memory.
constexpr std::uintptr_t kEnoughAlignment = 16;

}  // namespace

PyObject* Decoder::no_package(DType code) {
  if (PyErr_Occurred()) return nullptr;
  const std::string name(name_of(code));
  const char* needed = code == DType::kComplex32 ? "0.6 or later " : "";
  const char* how = allow_pickle() ? "install" : "with allow_pickle=False, first import";
  return incompatible(
      in.position(),
      Ref(PyUnicode_FromFormat("The message has elements of type %s, which NumPy lacks: %s ml_dtypes %sto get an "
                               "array, or torch to get a tensor",
                               name.c_str(), how, needed)));
}

Ref Decoder::dtype(DType code, const format::Name& description) {
  if (in.failed()) return Ref();
  if (code == DType::kOther) return dtype(description);
  PyArray_Descr* descr = descr_of(code);
  if (descr) return Ref::borrow(reinterpret_cast<PyObject*>(descr));
  Ref found = descr_of_other_package(code, allow_pickle());
  if (!found) no_package(code);
  return found;
}

PyObject* Decoder::array() {
  format::ArrayInfo info;
  if (!in.next_array(info)) return nullptr;
  if (info.dtype != DType::kOther) {
    PyArray_Descr* plain = descr_of(info.dtype);
    if (!plain) [[unlikely]]
      return array_of_other_package(info);
    return make(info, plain);
  }
  Ref parsed = dtype(info.description);
  if (!parsed) return nullptr;
  auto* descr = reinterpret_cast<PyArray_Descr*>(parsed.get());
  if (!is_plain(descr, info.item_bytes))
    return in.fail("the size of a dtype differs from the size of its elements"), nullptr;
  // For this dtype NumPy would make elements of one character, and leave their memory uninitialised.
  if (is_text_without_width(descr)) return in.fail("a string array has elements of width 0"), nullptr;
  return make(info, descr);
}

PyObject* Decoder::make(const format::ArrayInfo& info, PyArray_Descr* descr, Access access) {
  if (info.nbytes == 0) return empty(info, descr);
  Storage storage;
  std::uint32_t block = kOwnFrame;
  if (info.external()) {
    const format::External range = in.external(info.buffer);
    block = range.reference;
    if (block >= context_.externals.size())
      return in.fail("it refers to a block that the message does not have"), nullptr;
    const ExternalBlock& external = context_.externals[block];
    if (range.offset > external.bytes.size() || range.bytes > external.bytes.size() - range.offset) {
      return in.fail("it refers to bytes beyond the end of a block"), nullptr;
    }
    storage.buffer = external.bytes.data() + range.offset;
    storage.writable = external.writable;
  } else {
    storage.buffer = const_cast<std::byte*>(info.data) - info.offset;
    storage.writable = context_.writable;
  }
  const bool is_own = access == Access::kOwn || (access == Access::kWritten && !storage.writable);
  if (is_own || is_copied(info, storage.buffer)) return copy(info, descr, storage.buffer);
  storage.base = owner_of(block);
  return storage.base ? view(info, descr, storage) : nullptr;
}

bool Decoder::is_copied(const format::ArrayInfo& info, const std::byte* buffer) const noexcept {
  switch (context_.copy) {
    case CopyPolicy::kAll: return true;
    case CopyPolicy::kNone: return false;
    case CopyPolicy::kAuto: break;
  }
  // Decides per buffer, not per array: either all arrays on one buffer share memory, or none does.
  if (info.buffer_bytes < kSmallArrayBytes) return true;
  if (endpoint::is_copied(context_.copy, in.total_bytes(), info.external())) return true;
  return reinterpret_cast<std::uintptr_t>(buffer) % kEnoughAlignment != 0;
}

PyObject* Decoder::empty(const format::ArrayInfo& info, PyArray_Descr* descr) {
  const int order = info.flags & format::kFortran ? NPY_ARRAY_F_CONTIGUOUS : 0;
  Py_INCREF(reinterpret_cast<PyObject*>(descr));
  PyObject* array =
      PyArray_NewFromDescr(&PyArray_Type, descr, info.ndim, as_intp(info.shape), nullptr, nullptr, order, nullptr);
  if (!array) return corrupt_unless(nullptr, "the shape of an array is invalid");
  if (info.read_only()) PyArray_CLEARFLAGS(as_array(array), NPY_ARRAY_WRITEABLE);
  return array;
}

PyObject* Decoder::view(const format::ArrayInfo& info, PyArray_Descr* descr, const Storage& storage) {
  const int flags = storage.writable && !info.read_only() ? NPY_ARRAY_WRITEABLE : 0;
  Py_INCREF(reinterpret_cast<PyObject*>(descr));
  // NumPy skips the check of strides that it computes itself.
  const bool plain = info.contiguous() && (info.flags & format::kFortran) == 0;
  Ref array(PyArray_NewFromDescr(&PyArray_Type, descr, info.ndim, as_intp(info.shape),
                                 plain ? nullptr : as_intp(info.strides), storage.buffer + info.offset, flags,
                                 nullptr));
  if (!array) return corrupt_unless(nullptr, "the shape of an array is invalid");
  // Other processes read the block of a read-only array, too, so the program must not be able to make it writable
  // again.
  if (info.external() && info.read_only() && is_view_owner(storage.base)) as_view_owner(storage.base)->writable = false;
  Py_INCREF(storage.base);
  if (PyArray_SetBaseObject(as_array(array.get()), storage.base) != 0) return nullptr;
  return array.release();
}

PyObject* Decoder::copy(const format::ArrayInfo& info, PyArray_Descr* descr, const std::byte* buffer) {
  PyObject* first = copied_slot(info);
  if (!first && info.contiguous() && info.nbytes == info.buffer_bytes) {
    PyObject* array = empty(info, descr);
    if (!array) return nullptr;
    copy_large(PyArray_DATA(as_array(array)), buffer, info.nbytes);
    copied_slot(info) = Py_NewRef(array);
    return array;
  }
  if (!first) {
    const auto bytes = static_cast<npy_intp>(info.buffer_bytes);
    first = PyArray_SimpleNew(1, &bytes, NPY_UINT8);
    if (!first) return nullptr;
    copy_large(PyArray_DATA(as_array(first)), buffer, info.buffer_bytes);
    copied_slot(info) = first;
  }
  return view(info, descr, {static_cast<std::byte*>(PyArray_DATA(as_array(first))), first, true});
}

std::pair<std::int64_t, std::int64_t> Decoder::extent_of(const format::ArrayInfo& info) noexcept {
  std::int64_t low = info.offset;
  std::int64_t high = info.offset + static_cast<std::int64_t>(info.item_bytes);
  for (std::size_t i = 0; i < info.ndim; ++i) {
    const std::int64_t reach = (info.shape[i] - 1) * info.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

PyObject* Decoder::memory(const format::ArrayInfo& info, std::int64_t from, std::int64_t bytes, bool writable) {
  format::ArrayInfo plain;
  plain.dtype = DType::kUInt8;
  plain.flags = static_cast<std::uint8_t>(info.flags & (format::kReadOnly | format::kExternal));
  plain.ndim = 1;
  plain.item_bytes = 1;
  plain.elements = plain.nbytes = static_cast<std::uint64_t>(bytes);
  plain.data = info.data ? info.data - info.offset + from : nullptr;
  plain.buffer = info.buffer;
  plain.buffer_bytes = info.buffer_bytes;
  plain.offset = from;
  plain.shape[0] = bytes;
  plain.strides[0] = 1;
  if (!writable) return make(plain, descr_of(DType::kUInt8));
  plain.flags = static_cast<std::uint8_t>(plain.flags & ~unsigned{format::kReadOnly});
  return make(plain, descr_of(DType::kUInt8), info.read_only() ? Access::kOwn : Access::kWritten);
}

PyObject* Decoder::array_of_other_package(const format::ArrayInfo& info) {
  const Ref found = descr_of_other_package(info.dtype, allow_pickle());
  if (found) return make(info, reinterpret_cast<PyArray_Descr*>(found.get()));
  if (PyErr_Occurred()) return nullptr;
  const std::string_view name = name_of(info.dtype);
  const Ref text(PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  const Ref has_torch(text ? call_python(package().has_torch, text.get(), allow_pickle() ? Py_True : Py_False)
                           : nullptr);
  if (!has_torch || has_torch.get() != Py_True) return no_package(info.dtype);
  return tensor_of(*this, info, 0);
}

PyObject* Decoder::segment() {
  format::ArrayInfo info;
  if (!in.next_segment(info)) return nullptr;
  if (info.nbytes != 0) {
    const format::External block = info.external() ? in.external(info.buffer) : format::External{};
    const std::uint64_t memory = info.external() ? ~std::uint64_t{block.reference} : info.buffer;
    const std::uint64_t begin = block.offset + static_cast<std::uint64_t>(info.offset);
    segments_.push_back({memory, begin, begin + info.nbytes});
  }
  Ref array(make(info, descr_of(DType::kUInt8)));
  if (!array) return nullptr;
  // A frame in the caller's memory may be unaligned.
  if (reinterpret_cast<std::uintptr_t>(PyArray_DATA(as_array(array.get()))) % format::kWordBytes != 0) {
    array = Ref(may_copy(info.nbytes) ? PyArray_NewCopy(as_array(array.get()), NPY_CORDER) : nullptr);
  }
  if (array) PyArray_CLEARFLAGS(as_array(array.get()), NPY_ARRAY_WRITEABLE);
  return array.release();
}

void Decoder::end_segments() {
  std::sort(segments_.begin(), segments_.end());
  const auto overlap = std::adjacent_find(segments_.begin(), segments_.end(),
                                          [](const auto& a, const auto& b) { return a[0] == b[0] && b[1] < a[2]; });
  if (overlap != segments_.end()) in.fail("segments of a Cap'n Proto message overlap");
  segments_.clear();
}

}  // namespace shmtree::python
