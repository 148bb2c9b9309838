// Implements Item: the arrays of a message.
#include <bit>
#include <cstring>

#include "shmtree/item.h"
#include "value/tree.h"

namespace shmtree {

using value::Node;
using value::node_of;

Result<ArrayView> Item::try_view() const {
  return or_out_of_memory([this]() -> Result<ArrayView> {
    Result<ArrayView> view = array_view();
    if (!view.ok()) return on_the_way(std::move(view).error());
    return view;
  });
}

Result<ArrayView> Item::array_view() const {
  const Node& node = node_of(tree_, node_);
  if (node.kind == Kind::kMemoryView) return at(0).try_view();
  if (!format::has_trait(node.kind, format::kIsArray)) return mismatch("array");
  const value::Array& array = tree_->arrays[node.array];
  const std::int64_t* dims = tree_->dims.data() + array.dims;
  ArrayView view{.dtype = array.dtype,
                 .description = array.description,
                 .shape = {dims, array.ndim},
                 .strides = {dims + array.ndim, array.ndim},
                 .data = array.data,
                 .item_bytes = array.item_bytes,
                 .elements = array.elements,
                 .read_only = array.read_only,
                 .c_order = true};
  auto stride = static_cast<std::int64_t>(array.item_bytes);
  for (std::size_t i = array.ndim; i-- > 0 && array.elements != 0;) {
    if (view.shape[i] != 1 && view.strides[i] != stride) view.c_order = false;
    stride *= view.shape[i];
  }
  return view;
}

Result<ArrayView> Item::typed_view(DType dtype, std::size_t alignment, bool writable) const {
  Result<ArrayView> view = try_view();
  if (!view.ok()) return view;
  const auto refused = [this](const char* why) { return on_the_way({.code = Code::kInvalid, .message = why}); };
  if (view->dtype != dtype) return on_the_way(detail::other_elements(view->dtype, dtype));
  if (writable && view->read_only) return refused("the array is read-only: request const elements");
  bool aligned = std::bit_cast<std::uintptr_t>(view->data) % alignment == 0;
  for (const std::int64_t stride : view->strides) {
    if (stride < 0) return refused("the array has a negative stride: read it through view()");
    aligned = aligned && stride % static_cast<std::int64_t>(view->item_bytes) == 0;
  }
  if (!aligned) return refused("the elements of the array are not aligned: read them through view()");
  return view;
}

Error Item::out_of_range(const std::string& number, std::size_t bytes, bool is_signed) {
  return Error{.code = Code::kInvalid,
               .message = std::string(is_signed ? "expected int of " : "expected unsigned int of ") +
                          std::to_string(8 * bytes) + " bits, found " + number + ", which does not fit"};
}

Error Item::not_in_c_order() const {
  return on_the_way({.code = Code::kInvalid, .message = "the array is not contiguous in C order: use view()"});
}

std::byte* ArrayView::mutable_data() const {
  if (read_only) throw BadResult({.code = Code::kInvalid, .message = "the array is read-only: copy it to change it"});
  return const_cast<std::byte*>(data);
}

// Copies in C order. Copies the last dimension row by row, and counts the other indices like an odometer.
void ArrayView::copy_to(void* out) const noexcept {
  if (elements == 0) return;
  if (c_order) {
    std::memcpy(out, data, elements * item_bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(out);
  const std::byte* row = data;
  const std::size_t last = shape.size() - 1;
  std::int64_t at[kMaxDims] = {};
  for (;;) {
    for (std::int64_t i = 0; i < shape[last]; ++i, to += item_bytes)
      std::memcpy(to, row + i * strides[last], item_bytes);
    std::size_t dim = last;
    for (;;) {
      if (dim == 0) return;
      --dim;
      if (++at[dim] < shape[dim]) {
        row += strides[dim];
        break;
      }
      row -= strides[dim] * (shape[dim] - 1);
      at[dim] = 0;
    }
  }
}

}  // namespace shmtree
