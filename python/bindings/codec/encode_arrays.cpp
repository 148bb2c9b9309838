// Encodes arrays and the segments of Cap'n Proto messages.
#include "bindings/codec/dtypes.h"
#include "bindings/codec/encoder.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/view_owner.h"

namespace shmtree::python {
namespace {

static_assert(sizeof(npy_intp) == sizeof(std::int64_t), "shapes and strides are passed without conversion");

const std::int64_t* as_int64(const npy_intp* values) noexcept {
  return reinterpret_cast<const std::int64_t*>(values);
}

// Returns the memory from the first to the last byte of the elements.
std::span<const std::byte> extent_of(PyArrayObject* array) noexcept {
  const auto* low = reinterpret_cast<const std::byte*>(PyArray_BYTES(array));
  const auto* high = low + PyArray_ITEMSIZE(array);
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    const npy_intp reach = (PyArray_DIM(array, i) - 1) * PyArray_STRIDE(array, i);
    (reach < 0 ? low : high) += reach;
  }
  return {low, static_cast<std::size_t>(high - low)};
}

// Sends the array by reference if it is in an arena and the options allow loans.
void lend_array(Encoder& encoder, PyArrayObject* array, format::ArraySource& source) {
  if (!encoder.options().loans || PyArray_SIZE(array) == 0 || !view_owner_of(array)) return;
  encoder.lend(array, extent_of(array), PyArray_DATA(array), source);
}

format::Order order_of(PyArrayObject* array) noexcept {
  if (PyArray_IS_C_CONTIGUOUS(array)) return format::Order::kC;
  return PyArray_IS_F_CONTIGUOUS(array) ? format::Order::kFortran : format::Order::kStrided;
}

}  // namespace

void Encoder::lend(PyArrayObject* array, std::span<const std::byte> extent, const void* first,
                   format::ArraySource& source) {
  Loan loan;
  if (!options_.loans->resolve(array, extent.data(), extent.size(), &loan)) return;
  source.external = out.add_external({loan.reference, loan.offset, extent.size()});
  source.external_offset = static_cast<const std::byte*>(first) - extent.data();
  source.read_only = loan.shown;
}

bool Encoder::dtype_text(PyObject* value, PyArray_Descr* descr, ObjectFields objects, std::string_view* text) {
  Ref owner;
  if (!describe_dtype(descr, objects, &owner, text)) return false;
  keep(std::move(owner));
  return (!text->empty() && text->size() <= kMaxNameBytes) || needs_pickle(value);
}

bool Encoder::array(PyArrayObject* array) {
  auto* object = reinterpret_cast<PyObject*>(array);
  if (Py_REFCNT(object) > 2) {  // as in once(), but a reference to an array is always kept
    const auto [number, fresh] = session_.seen().note(object, out.kinds());
    if (!fresh) return refer_to(object, number);
    session_.seen().close(number);
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
    if (!dtype_text(object, descr, ObjectFields::kRefused, &source.description)) return false;
    source.item_bytes = static_cast<std::uint64_t>(PyArray_ITEMSIZE(array));
  }
  source.data = PyArray_DATA(array);
  source.shape = as_int64(PyArray_SHAPE(array));
  source.ndim = static_cast<std::uint8_t>(PyArray_NDIM(array));
  source.order = order_of(array);
  source.strides = as_int64(PyArray_STRIDES(array));
  // One reference belongs to the container and one to the encoder.
  const bool is_only_reference = Py_REFCNT(object) <= 2;
  const bool independent = options_.independent;
  source.may_share = !independent && (PyArray_BASE(array) != nullptr || !is_only_reference);
  if (PyArray_BASE(array) != nullptr) lend_array(*this, array, source);
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
    PyErr_SetString(
        PyExc_ValueError,
        "A segment of a CapnpMessage must be a contiguous uint8 array, with a size that is a multiple of 8");
    return false;
  }
  format::ArraySource source{.data = PyArray_DATA(array),
                             .shape = &bytes,
                             .ndim = 1,
                             .dtype = DType::kUInt8,
                             .may_share = !options_.independent,
                             .whole_words = true};
  if (PyArray_BASE(array) != nullptr) lend_array(*this, array, source);
  source.read_only = true;
  out.add_array(source);
  keep(reinterpret_cast<PyObject*>(array));
  return true;
}

}  // namespace shmtree::python
