/// @file
/// Support for xtensor: sends containers and expressions as Values, and views received arrays in shared memory.
///
///     xt::xarray<float> obs = xt::zeros<float>({84, 84});
///     sender.put(shmtree::Dict{{"obs", obs}});           // referred to until put returns
///     auto view = item["obs"].array<float>();            // no copy; the view keeps the message
///
/// The only header of shmtree that includes xtensor; shmtree.h does not include it. A program that uses it needs
/// xtensor's include path (CMake: find_package(xtensor), and link xtensor). Thread safety and errors are those of
/// value.h and item.h.
#pragma once

// xtensor 0.26 moved its headers into folders.
#if __has_include(<xtensor/containers/xadapt.hpp>)
#include <xtensor/containers/xadapt.hpp>
#include <xtensor/containers/xarray.hpp>
#else
#include <xtensor/xadapt.hpp>
#include <xtensor/xarray.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree {

/// Converts any xtensor expression to a Value. An lvalue that owns or adapts strided memory is referred to. Anything
/// else (temporaries, lazy expressions, views without strides of their own) is evaluated into an array that the Value
/// keeps.
template <class E>
requires(std::is_base_of_v<xt::xexpression<E>, E>&& ArrayElement<typename E::value_type>) struct ValueOf<E> {
  using Element = typename E::value_type;

  template <class Array>
  static ArrayRef refer(const Array& array) {
    ArrayRef ref{.data = array.data() + array.data_offset(), .dtype = dtype_of<Element>()};
    const std::size_t dimensions = array.dimension();
    for (std::size_t i = 0; i < dimensions; ++i) {
      ref.shape.push_back(static_cast<std::int64_t>(array.shape()[i]));
      // xtensor writes 0 as the stride of a dimension with one element. Any stride is valid there.
      ref.strides.push_back(static_cast<std::int64_t>(array.strides()[i]) * std::int64_t{sizeof(Element)});
    }
    return ref;
  }

  static Value keep(xt::xarray<Element>&& array) {
    auto kept = std::make_shared<const xt::xarray<Element>>(std::move(array));
    ArrayRef ref = refer(*kept);
    ref.owner = std::move(kept);
    return ref;
  }

  static Value make(const E& expression) {
    if constexpr (xt::has_data_interface<E>::value && xt::has_strides<E>::value) {
      return refer(expression);
    } else {
      return keep(xt::xarray<Element>(expression));
    }
  }

  static Value make(E&& expression) { return keep(xt::xarray<Element>(std::move(expression))); }
};

/// Copies a received array to an xtensor container: an xarray, or an xtensor with the same number of dimensions.
/// kInvalid: the element type or the number of dimensions differs.
template <class E>
requires(std::is_base_of_v<xt::xexpression<E>, E>&& ArrayElement<typename E::value_type>&& requires(
    E array, typename E::shape_type shape) { array.resize(shape); }) struct ItemAs<E> {
  using Element = typename E::value_type;

  static Result<E> make(const Item& item) {
    const Result<ArrayView> view = item.try_view();
    if (!view.ok()) return view.error();
    if (view->dtype != dtype_of<Element>()) return detail::other_elements(view->dtype, dtype_of<Element>());
    if constexpr (requires { std::tuple_size<typename E::shape_type>::value; }) {
      constexpr std::size_t kDimensions = std::tuple_size_v<typename E::shape_type>;
      if (view->shape.size() != kDimensions) return detail::other_dimensions(view->shape.size(), kDimensions);
    }
    xt::xarray<Element, xt::layout_type::row_major> array(
        std::vector<std::size_t>(view->shape.begin(), view->shape.end()));
    view->copy_to(array.data());
    return E(std::move(array));
  }
};

/// Returns a dynamic-layout xtensor adaptor of the elements in place. You may read, write and slice it; it keeps the
/// message alive. T is the sender's element type, or `const T` for a read-only array. Throws BadResult (kInvalid) if
/// the element type differs, if the array is read-only and T is not const, or if the elements cannot be addressed as T.
/// That is the case for unaligned elements, negative strides, and strides that are not multiples of sizeof(T).
template <class T>
auto Item::array() const {
  static_assert(ArrayElement<T>, "no array has elements of this type");
  using Hold = std::shared_ptr<const void>;
  using Buffer = xt::xbuffer_adaptor<T*, xt::smart_ownership, Hold>;
  using Shape = std::vector<std::size_t>;
  using Adaptor = xt::xarray_adaptor<Buffer, xt::layout_type::dynamic, Shape>;
  const ArrayView found = typed_view(dtype_of<T>(), alignof(T), !std::is_const_v<T>).value();
  Shape shape(found.shape.begin(), found.shape.end());
  typename Adaptor::strides_type strides(found.strides.size());
  std::size_t reach = found.elements == 0 ? 0 : 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    // xtensor requires the stride 0 for a dimension with one element, which it broadcasts.
    strides[i] = shape[i] == 1 ? 0 : static_cast<std::ptrdiff_t>(found.strides[i]) / std::ptrdiff_t{sizeof(T)};
    if (reach != 0 && strides[i] > 0) reach += (shape[i] - 1) * static_cast<std::size_t>(strides[i]);
  }
  return Adaptor(Buffer(detail::first_element<T>(found), reach, Hold(tree_)), shape, strides);
}

}  // namespace shmtree
