/// @file
/// Sends containers of the standard library as Values, and converts Items to such containers.
///
///     sender.put(std::map<std::string, std::vector<double>>{{"a", {1, 2}}, {"b", {}}});
///     auto back = item.as<std::map<std::string, std::vector<double>>>();
///
/// | C++                                                      | sent as, and received from                          |
/// |----------------------------------------------------------|-----------------------------------------------------|
/// | std::optional<T>, std::nullopt                           | None, or the form of T                              |
/// | std::vector<T>, std::array<T, n> and T[n]; T is an array | one-dimensional numpy.ndarray; also received from   |
/// | element                                                  | lists, tuples of numbers, and bytes if T is a byte  |
/// | the same; any other T                                    | list; received from any sequence                    |
/// | std::pair, std::tuple                                    | tuple; received from a sequence of the same length  |
/// | std::map, std::unordered_map with std::string or         | dict with str keys                                  |
/// | std::string_view keys                                    |                                                     |
/// | std::set, std::unordered_set                             | list; received from any sequence, also from a set   |
///
/// Ownership: as for all Values, arrays inside lvalues are *referred to* until put() returns; the Value owns the arrays
/// of temporaries. Received containers are copies, except string_views, spans and Items, which are valid as long as the
/// message. Errors: kInvalid with the path of the item that does not fit; kOutOfSharedMemory if this process has no
/// memory.
///
/// Thread safety: that of the containers.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree {

/// A type from which a Value can be made. Wrap a vector of Values in List or Tuple.
template <class T>
concept Sendable = !detail::Unsendable<T> && std::is_constructible_v<Value, T>;

namespace detail {

/// A range that put_many() accepts in addition to a range of Values: its elements convert to Values. A single-pass
/// range must yield its elements by value: a Value may refer to its source, which would be destroyed before the put.
template <class T>
concept RangeOfValues = std::ranges::input_range<T> && Sendable<std::ranges::range_reference_t<T>> &&
    (std::ranges::forward_range<T> ||
     !std::is_lvalue_reference_v<std::ranges::range_reference_t<T>>)&&!std::same_as<std::ranges::range_value_t<T>,
                                                                                    Value>;
template <RangeOfValues Range>
std::vector<Value> values_of(Range&& range) {
  std::vector<Value> values;
  for (auto&& each : range) values.push_back(Value(std::forward<decltype(each)>(each)));
  return values;
}

template <class T>
concept Element = ArrayElement<T> && std::is_same_v<T, std::remove_cv_t<T>>;
template <class T>
concept ByteElement = std::is_same_v<T, std::byte> || std::is_same_v<T, unsigned char>;
template <class T>
concept SendableItem = Sendable<const T&> && !std::is_same_v<T, Value>;

/// Forwards a part of a container: as an rvalue if the container is an rvalue.
template <class Whole, class Part>
constexpr decltype(auto) forward_part(Part& part) noexcept {
  if constexpr (std::is_lvalue_reference_v<Whole>) {
    return static_cast<const Part&>(part);
  } else {
    return std::move(part);
  }
}

template <class Container>
List list_of(Container&& items) {
  List list;
  list.reserve(items.size());
  for (auto& item : items) list.push_back(Value(forward_part<Container>(item)));
  return list;
}

template <class T>
concept TextKey = std::same_as<T, std::string> || std::same_as<T, std::string_view>;

template <class Map>
Dict dict_of(Map&& map) {
  Dict dict;
  dict.reserve(map.size());
  for (auto& [key, value] : map) dict.add(std::string(key), Value(forward_part<Map>(value)));
  return dict;
}

/// Returns kInvalid: `item` has `found` items or elements, where `wanted` are required.
Error other_size(const Item& item, std::size_t wanted, std::size_t found);
/// Returns kInvalid unless `item` is a sequence of `wanted` items.
Status check_size(const Item& item, std::size_t wanted);

/// Returns the one-dimensional array with elements of `dtype` in `item`; kInvalid if it is anything else.
Result<ArrayView> one_dimensional(const Item& item, DType dtype);

/// Returns the key at a position of a dict; kInvalid if the key is not a str.
Result<std::string_view> text_key(const Item& item, std::size_t position);

/// Calls add(T) for each item of a sequence.
template <class T, class Add>
Status each_of(const Item& item, Add add) {
  if (!item.is_sequence()) return item.mismatch("sequence");
  for (std::size_t i = 0; i < item.size(); ++i) {
    Result<T> part = item.at(i).template try_as<T>();
    if (!part.ok()) return std::move(part).error();
    add(std::move(*part));
  }
  return success();
}

/// Converts an array, bytes or a sequence of numbers. `make_space(count)` returns the memory for the elements.
template <class T, class MakeSpace>
Status elements_of(const Item& item, MakeSpace make_space) {
  if (item.is_array()) {
    const Result<ArrayView> array = one_dimensional(item, dtype_of<T>());
    if (!array.ok()) return array.error();
    Result<T*> space = make_space(array->elements);
    if (!space.ok()) return std::move(space).error();
    array->copy_to(*space);
    return success();
  }
  if constexpr (ByteElement<T>) {
    const bool is_number = item.kind() == Kind::kBigInt;  // A big int has bytes as well: its digits.
    if (const auto bytes = item.try_as<std::span<const std::byte>>(); bytes.ok() && !is_number) {
      Result<T*> space = make_space(bytes->size());
      if (!space.ok()) return std::move(space).error();
      if (!bytes->empty()) std::memcpy(*space, bytes->data(), bytes->size());
      return success();
    }
  }
  if (!item.is_sequence()) return item.mismatch("array or sequence");
  Result<T*> space = make_space(item.size());
  if (!space.ok()) return std::move(space).error();
  T* to = *space;
  if constexpr (std::is_same_v<T, std::byte>) {
    return each_of<std::uint8_t>(item, [&](std::uint8_t number) { *to++ = std::byte{number}; });
  } else if constexpr (std::is_same_v<T, std::complex<float>>) {
    return each_of<std::complex<double>>(item, [&](std::complex<double> number) { *to++ = T(number); });
  } else {
    return each_of<T>(item, [&](T number) { *to++ = number; });
  }
}

template <class Map>
Result<Map> map_of(const Item& item) {
  if (!item.is_dict()) return item.mismatch("dict");
  Map map;
  for (std::size_t i = 0; i < item.size(); ++i) {
    const Result<std::string_view> key = text_key(item, i);
    if (!key.ok()) return key.error();
    auto value = item.at(i).template try_as<typename Map::mapped_type>();
    if (!value.ok()) return std::move(value).error();
    map.insert_or_assign(typename Map::key_type(*key), std::move(*value));
  }
  return map;
}

template <class Set>
Result<Set> set_of(const Item& item) {
  Set set;
  Status filled = each_of<typename Set::value_type>(item, [&](auto part) { set.insert(std::move(part)); });
  if (!filled) return std::move(filled).error();
  return set;
}

template <class Tuple, std::size_t... i>
Result<Tuple> tuple_of(const Item& item, std::index_sequence<i...>) {
  if (Status size = check_size(item, sizeof...(i)); !size) return std::move(size).error();
  std::optional<Error> error;
  const auto part = [&]<std::size_t n>(std::integral_constant<std::size_t, n>) {
    using Part = std::tuple_element_t<n, Tuple>;
    std::optional<Part> found;
    if (error) return found;
    Result<Part> result = item.at(n).template try_as<Part>();
    if (result.ok()) {
      found.emplace(std::move(*result));
    } else {
      error = std::move(result).error();
    }
    return found;
  };
  std::tuple<std::optional<std::tuple_element_t<i, Tuple>>...> parts{part(std::integral_constant<std::size_t, i>())...};
  if (error) return *std::move(error);
  return Tuple(*std::move(std::get<i>(parts))...);
}

}  // namespace detail

// --- to Values -------------------------------------------------------------------------------------------------------

template <>
struct ValueOf<std::nullopt_t> {
  static Value make(std::nullopt_t) noexcept { return {}; }
};

template <class T>
requires detail::SendableItem<T>
struct ValueOf<std::optional<T>> {
  static Value make(const std::optional<T>& value) { return value ? Value(*value) : Value(); }
  static Value make(std::optional<T>&& value) { return value ? Value(*std::move(value)) : Value(); }
};

template <class T, class Allocator>
requires(detail::SendableItem<T> &&
         (!detail::Element<T> || std::is_same_v<T, bool>)) struct ValueOf<std::vector<T, Allocator>> {
  using Vector = std::vector<T, Allocator>;
  static Value make(const Vector& items) {
    if constexpr (std::is_same_v<T, bool>) {
      List list;
      list.reserve(items.size());
      for (const bool item : items) list.push_back(item);
      return list;
    } else {
      return detail::list_of(items);
    }
  }
  static Value make(Vector&& items) {
    if constexpr (std::is_same_v<T, bool>) {
      return make(static_cast<const Vector&>(items));
    } else {
      return detail::list_of(std::move(items));
    }
  }
};

template <class T, std::size_t count>
requires(detail::SendableItem<T> && !detail::Element<T>) struct ValueOf<std::array<T, count>> {
  static Value make(const std::array<T, count>& items) { return detail::list_of(items); }
  static Value make(std::array<T, count>&& items) { return detail::list_of(std::move(items)); }
};

template <detail::Element T, std::size_t count>
struct ValueOf<std::array<T, count>> {
  static ArrayRef refer(const std::array<T, count>& values) {
    return array_ref(values.data(), {static_cast<std::int64_t>(count)});
  }
  static Value make(const std::array<T, count>& values) { return refer(values); }
  static Value make(std::array<T, count>&& values) {
    auto kept = std::make_shared<const std::array<T, count>>(values);
    ArrayRef array = refer(*kept);
    array.owner = std::move(kept);
    return array;
  }
};

template <class T, std::size_t count>
requires(detail::SendableItem<T> && !std::same_as<T, char>) struct ValueOf<T[count]> {
  static Value make(const T (&values)[count]) {
    if constexpr (detail::Element<T>) {
      return array_ref(values, {static_cast<std::int64_t>(count)});
    } else {
      return detail::list_of(std::span(values));
    }
  }
  static Value make(T (&&values)[count]) {
    return Value(std::vector<T>(std::move_iterator(std::begin(values)), std::move_iterator(std::end(values))));
  }
};

template <class T, class Compare, class Allocator>
requires detail::SendableItem<T>
struct ValueOf<std::set<T, Compare, Allocator>> {
  static Value make(const std::set<T, Compare, Allocator>& items) { return detail::list_of(items); }
};

template <class T, class Hash, class Equal, class Allocator>
requires detail::SendableItem<T>
struct ValueOf<std::unordered_set<T, Hash, Equal, Allocator>> {
  static Value make(const std::unordered_set<T, Hash, Equal, Allocator>& items) { return detail::list_of(items); }
};

template <class... T>
requires(detail::SendableItem<T>&&...) struct ValueOf<std::tuple<T...>> {
  template <class Whole>
  static Value of(Whole&& parts) {
    return std::apply(
        [](auto&... part) {
          std::vector<Value> values;
          values.reserve(sizeof...(part));
          (values.push_back(Value(detail::forward_part<Whole>(part))), ...);
          return Tuple(std::move(values));
        },
        parts);
  }
  static Value make(const std::tuple<T...>& parts) { return of(parts); }
  static Value make(std::tuple<T...>&& parts) { return of(std::move(parts)); }
};

template <class A, class B>
requires(detail::SendableItem<A>&& detail::SendableItem<B>) struct ValueOf<std::pair<A, B>> {
  static Value make(const std::pair<A, B>& pair) { return Tuple{Value(pair.first), Value(pair.second)}; }
  static Value make(std::pair<A, B>&& pair) {
    return ValueOf<std::tuple<A, B>>::make(std::tuple<A, B>(std::move(pair)));
  }
};

template <detail::TextKey Key, class T, class Compare, class Allocator>
requires detail::SendableItem<T>
struct ValueOf<std::map<Key, T, Compare, Allocator>> {
  using Map = std::map<Key, T, Compare, Allocator>;
  static Value make(const Map& map) { return detail::dict_of(map); }
  static Value make(Map&& map) { return detail::dict_of(std::move(map)); }
};

template <detail::TextKey Key, class T, class Hash, class Equal, class Allocator>
requires detail::SendableItem<T>
struct ValueOf<std::unordered_map<Key, T, Hash, Equal, Allocator>> {
  using Map = std::unordered_map<Key, T, Hash, Equal, Allocator>;
  static Value make(const Map& map) { return detail::dict_of(map); }
  static Value make(Map&& map) { return detail::dict_of(std::move(map)); }
};

// --- from Items ------------------------------------------------------------------------------------------------------

template <>
struct ItemAs<Bytes> {
  static Result<Bytes> make(const Item& item);
};

template <class T>
struct ItemAs<std::optional<T>> {
  static Result<std::optional<T>> make(const Item& item) {
    if (item.is_none()) return std::optional<T>();
    Result<T> value = item.template try_as<T>();
    if (!value.ok()) return std::move(value).error();
    return std::optional<T>(std::move(*value));
  }
};

template <class T, class Allocator>
struct ItemAs<std::vector<T, Allocator>> {
  using Vector = std::vector<T, Allocator>;
  static Result<Vector> make(const Item& item) {
    Vector items;
    Status filled = success();
    if constexpr (detail::Element<T> && !std::is_same_v<T, bool>) {
      filled = detail::elements_of<T>(item, [&](std::size_t count) -> Result<T*> {
        items.resize(count);
        return items.data();
      });
    } else if constexpr (std::is_same_v<T, bool>) {
      if (item.is_array()) {
        std::vector<unsigned char> bytes;
        const Result<ArrayView> array = detail::one_dimensional(item, DType::kBool);
        if (!array.ok()) return array.error();
        bytes.resize(array->elements);
        array->copy_to(bytes.data());
        return Vector(bytes.begin(), bytes.end());
      }
      filled = detail::each_of<bool>(item, [&](bool part) { items.push_back(part); });
    } else {
      items.reserve(item.size());
      filled = detail::each_of<T>(item, [&](T part) { items.push_back(std::move(part)); });
    }
    if (!filled) return std::move(filled).error();
    return items;
  }
};

template <class T, std::size_t count>
struct ItemAs<std::array<T, count>> {
  static Result<std::array<T, count>> make(const Item& item) {
    if constexpr (detail::Element<T>) {
      std::array<T, count> items{};
      Status filled = detail::elements_of<T>(item, [&](std::size_t found) -> Result<T*> {
        if (found != count) return detail::other_size(item, count, found);
        return items.data();
      });
      if (!filled) return std::move(filled).error();
      return items;
    } else {
      if (Status size = detail::check_size(item, count); !size) return std::move(size).error();
      std::array<T, count> items{};
      auto* to = items.data();
      Status filled = detail::each_of<T>(item, [&](T part) { *to++ = std::move(part); });
      if (!filled) return std::move(filled).error();
      return items;
    }
  }
};

template <class T, class Compare, class Allocator>
struct ItemAs<std::set<T, Compare, Allocator>> {
  static auto make(const Item& item) { return detail::set_of<std::set<T, Compare, Allocator>>(item); }
};

template <class T, class Hash, class Equal, class Allocator>
struct ItemAs<std::unordered_set<T, Hash, Equal, Allocator>> {
  static auto make(const Item& item) { return detail::set_of<std::unordered_set<T, Hash, Equal, Allocator>>(item); }
};

template <class... T>
struct ItemAs<std::tuple<T...>> {
  static Result<std::tuple<T...>> make(const Item& item) {
    return detail::tuple_of<std::tuple<T...>>(item, std::index_sequence_for<T...>());
  }
};

template <class A, class B>
struct ItemAs<std::pair<A, B>> {
  static Result<std::pair<A, B>> make(const Item& item) {
    return detail::tuple_of<std::pair<A, B>>(item, std::index_sequence_for<A, B>());
  }
};

template <detail::TextKey Key, class T, class Compare, class Allocator>
struct ItemAs<std::map<Key, T, Compare, Allocator>> {
  static auto make(const Item& item) { return detail::map_of<std::map<Key, T, Compare, Allocator>>(item); }
};

template <detail::TextKey Key, class T, class Hash, class Equal, class Allocator>
struct ItemAs<std::unordered_map<Key, T, Hash, Equal, Allocator>> {
  static auto make(const Item& item) {
    return detail::map_of<std::unordered_map<Key, T, Hash, Equal, Allocator>>(item);
  }
};

}  // namespace shmtree
