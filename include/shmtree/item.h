/// @file
/// Received values: a tree that refers to shared memory and keeps it alive.
///
///     shmtree::Item item = receiver.get(3s).value();
///     double reward = item["reward"].as<double>();
///     for (const shmtree::Item& step : item["steps"]) use(step["obs"].view());
///
/// Ownership: an Item, and every Item obtained from it, shares ownership of the message. Views of arrays, strings and
/// bytes are valid while any of these Items exists. The last one returns the memory to the sender's arena. The xtensor
/// views of array.h share ownership, and so does Held, which a temporary Item returns. Arrays are writable unless the
/// sender made them read-only, and no other process sees the changes.
///
/// Thread safety: Items are values over an immutable tree. Several threads may read copies of one Item.
///
/// Errors: calls that return plain values throw BadResult (result.h). It has Code::kInvalid for a node of another kind
/// or a number out of range, and kNotFound for a missing key or index. The `try_` calls return the error instead.
#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shmtree/base/held.h"
#include "shmtree/base/kind.h"
#include "shmtree/base/result.h"
#include "shmtree/value.h"

// -Wall of g++ 13 enables this warning, but g++ 13 has no attribute that suppresses it.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ == 13
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdangling-reference"
#endif

namespace shmtree {

class Item;
template <class T>
class CapnpItem;

/// Options for Item::capnp().
struct CapnpOptions {
  bool copy = false;  ///< Copies the message first, so that no other process can change it while it is read.
  /// Traversal limit in words, shared by all readers of one CapnpItem. Repeated reads count again. 0 means 8 Mi words
  /// (64 MiB), or eight times the size of the message if that is more.
  std::uint64_t traversal_words = 0;
  int nesting_levels = 64;  ///< Maximum depth of pointers.
};

namespace value {
struct Tree;
}

namespace detail {
/// kInvalid: the array has another number of dimensions than requested.
Error other_dimensions(std::size_t found, std::size_t wanted);
/// kInvalid: the Cap'n Proto message has another type than requested, or is not aligned.
Error other_schema(std::uint64_t found, std::uint64_t wanted);
Error unaligned_segment();
/// kCorrupt: Cap'n Proto finds no root of that type.
Error no_capnp_root(const char* why);
struct CapnpAccess;
}  // namespace detail

/// The address and layout of an array in a message. Valid while an Item of the message exists.
struct ArrayView {
  DType dtype = DType::kOther;              ///< Type of the elements.
  std::string_view description{};           ///< NumPy's description of the elements if `dtype` is kOther.
  std::span<const std::int64_t> shape{};    ///< Empty: one element, no dimensions.
  std::span<const std::int64_t> strides{};  ///< Step of each index in bytes; may be negative.
  const std::byte* data = nullptr;          ///< The first element, maybe unaligned. See mutable_data().
  std::size_t item_bytes = 0;               ///< Size of one element in bytes.
  std::size_t elements = 0;                 ///< Number of elements.
  bool read_only = false;                   ///< Other readers see the same memory, or the sender made it read-only.
  bool c_order = false;                     ///< Elements are in C order without gaps.

  /// Returns `data` for writing. Throws BadResult (kInvalid) if the array is read-only.
  std::byte* mutable_data() const;
  /// Copies the elements to `out` in C order without gaps. `out` must have space for elements * item_bytes. Works for
  /// every array, also with negative strides and unaligned elements.
  void copy_to(void* out) const noexcept;
};

namespace detail {
/// Returns the address of the first element. T must be const if the array is read-only.
template <class T>
T* first_element(const ArrayView& array) {
  if constexpr (std::is_const_v<T>) {
    return reinterpret_cast<T*>(array.data);
  } else {
    return reinterpret_cast<T*>(array.mutable_data());
  }
}
/// The result of as<T>() of a temporary.
template <class T>
struct FromTemporary {
  using Type = T;
};
template <>
struct FromTemporary<std::string_view> {
  using Type = Held<std::string_view>;
};
template <>
struct FromTemporary<std::span<const std::byte>> {
  using Type = Held<std::span<const std::byte>>;
};
}  // namespace detail

/// Converts an Item to another type. Specialise it with `static Result<T> make(const Item&)`, which may throw
/// std::bad_alloc. containers.h does so for the standard library, array.h for xtensor, and fields.h for aggregates.
template <class T>
struct ItemAs;

template <class T>
concept ConvertibleFromItem = requires(const Item& item) {
  ItemAs<T>::make(item);
};

namespace detail {
/// A type that Item::as() accepts.
template <class T>
concept ReadableItem = std::is_arithmetic_v<T> || std::is_enum_v<T> || ConvertibleFromItem<T> ||
    std::same_as<T, Item> || std::same_as<T, std::complex<double>> || std::same_as<T, std::string_view> ||
    std::same_as<T, std::string> || std::same_as<T, std::span<const std::byte>>;
}  // namespace detail

/// A node of a received message, which keeps the whole message alive.
///
/// All Items of a message own the message together. The results of span(), ints(), floats(), view() and key(), and the
/// string_views and spans of as(), refer to the message and not to the Item. They are valid until the last Item of the
/// message is destroyed. A temporary Item returns them as Held, which keeps the message as an Item does. So
/// `for (float x : item["obs"].span<const float>())` is safe, and so is
/// `for (float x : receiver.get().value().span<const float>())`. But a variable of type std::span or std::string_view
/// keeps nothing alive, so keep the Item in a variable, too. This also applies to try_as() and try_view(), and to
/// string_views and spans inside the containers and aggregates of as().
class SHMTREE_NO_DANGLING Item {
 public:
  /// Iterates over items; see begin().
  class Iterator;
  /// The entries of a dict; see entries().
  class Entries;

  /// Makes an Item without a message, of kind kNone.
  Item() noexcept = default;

  /// Returns the kind of the node. Python types without an equivalent in C++ are containers of their parts, see
  /// shmtree/base/kind.h.
  Kind kind() const noexcept;
  /// True for None, and for an Item without a message.
  bool is_none() const noexcept { return kind() == Kind::kNone; }
  /// True for every kind of dict, including the fields of a dataclass. Their items are found by key.
  bool is_dict() const noexcept;
  /// True for list, tuple, namedtuple, deque, set and frozenset.
  bool is_sequence() const noexcept;
  /// True for arrays, tensors and memoryviews: view() works, and array<T>() of array.h.
  bool is_array() const noexcept;

  /// Returns the number of items of a container, or of entries of a dict; 0 for everything else.
  std::size_t size() const noexcept;

  /// Returns the value of a str key. Takes time proportional to size().
  Item operator[](std::string_view key) const;
  /// True if the dict has that str key; false if the node is not a dict.
  bool contains(std::string_view key) const noexcept { return find(key).has_value(); }
  /// Returns the value of a str key, or nullopt.
  std::optional<Item> find(std::string_view key) const noexcept;

  /// Returns the item at a position: of a sequence, of a dict's values in order, or of the parts of any other node.
  Item at(std::size_t position) const;
  /// The same as at().
  Item operator[](std::size_t position) const { return at(position); }
  /// Iterates over the items of a container, or the values of a dict.
  Iterator begin() const noexcept;
  /// Returns the end of the iteration.
  Iterator end() const noexcept;

  /// Returns the str keys of a dict, in order. A key of another type is an empty string here.
  std::vector<std::string_view> keys() const&;
  /// The same for a temporary.
  Held<std::vector<std::string_view>> keys() && {
    std::vector<std::string_view> found = keys();
    return hold(std::move(found));
  }
  /// Returns the str key of this Item in the dict that it was obtained from; otherwise empty.
  std::string_view key() const& noexcept;
  /// The same for a temporary.
  Held<std::string_view> key() && noexcept { return hold(key()); }
  /// Returns the key at a position of a dict. Use it for dicts with keys that are not str.
  Item key_at(std::size_t position) const;
  /// Returns the entries of a dict as pairs, in order: `for (auto [key, value] : item.entries())`. Keys are
  /// string_views as in keys(). kInvalid: the node is not a dict.
  Entries entries() const;

  /// Returns the value of a key as T, or `fallback` if there is no such key. Throws like as<T>() if the value is not a
  /// T. Also throws if this node is not a dict (kInvalid).
  template <class T>
  T get_or(std::string_view key, T fallback) const;
  /// Does the same for text.
  std::string get_or(std::string_view key, const char* fallback) const;

  /// Returns the class of a namedtuple, dataclass, enum or registered object, or the object that a global names:
  /// "module:qualname". Otherwise empty.
  std::string_view class_name() const& noexcept;
  /// The same for a temporary.
  Held<std::string_view> class_name() && noexcept { return hold(class_name()); }
  /// Returns the name of an enum's member.
  std::string_view member() const&;
  /// The same for a temporary.
  Held<std::string_view> member() && { return hold(member()); }

  /// Converts the node to T. These types are built in; ItemAs adds others.
  /// - bool
  /// - Integers, from int. Their range is checked.
  /// - Enums and std::byte, from int. Any number of the underlying type is accepted.
  /// - Floating point, from float and int.
  /// - std::complex<double>
  /// - std::string_view and std::string, from str, Decimal, and pathlib's paths. They are UTF-8, in which a lone
  ///   surrogate takes three bytes.
  /// - `std::span<const std::byte>`, from bytes and bytearray.
  ///
  /// NumPy scalars and arrays without dimensions count as their element.
  template <class T>
  T as() const& {
    return try_as<T>().value();
  }
  /// The same for a temporary: T, or Held<T> for a string_view or span.
  template <class T>
  typename detail::FromTemporary<T>::Type as() && {
    if constexpr (std::is_same_v<typename detail::FromTemporary<T>::Type, T>) {
      return try_as<T>().value();
    } else {
      return hold(try_as<T>().value());
    }
  }
  /// Does the same without exceptions: kInvalid, or kOutOfSharedMemory if this process has no memory. Returns the error
  /// of a BadResult that an ItemAs throws. All other exceptions of an ItemAs pass through, here and in as().
  template <class T>
  Result<T> try_as() const;

  /// Returns the plain numbers of a node: a date, a time, a range, or a list that has only ints or only floats
  /// (shmtree/base/kind.h). Empty for other nodes.
  std::span<const std::int64_t> ints() const& noexcept;
  /// The same for a temporary.
  Held<std::span<const std::int64_t>> ints() && noexcept { return hold(ints()); }
  /// Does the same for floats.
  std::span<const double> floats() const& noexcept;
  /// The same for a temporary.
  Held<std::span<const double>> floats() && noexcept { return hold(floats()); }

  /// Returns the array of a kArray or kTensor, or of the array inside a memoryview.
  ArrayView view() const& { return try_view().value(); }
  /// The same for a temporary.
  Held<ArrayView> view() && { return hold(try_view().value()); }
  /// Does the same without exceptions: kInvalid.
  Result<ArrayView> try_view() const;
  /// Returns the elements of an array in C order with elements of type T. Only `const T` reads a read-only array: any
  /// other T throws BadResult (kInvalid).
  template <ArrayElement T>
  std::span<T> span() const&;
  /// The same for a temporary.
  template <ArrayElement T>
  Held<std::span<T>> span() && {
    return hold(span<T>());
  }
  /// Returns an xtensor view. Include array.h, which defines it.
  template <class T>
  auto array() const;

  /// Returns a reader of a Cap'n Proto message with root type T, which reads in place. Defined in capnp.h. Throws
  /// BadResult with the errors of try_capnp().
  template <class T>
  CapnpItem<T> capnp(const CapnpOptions& options = {}) const;
  /// Does the same without exceptions. Returns kInvalid for another kind or schema id, or if the memory is not aligned.
  /// Returns kCorrupt if the segments overlap, or if the root is not a struct of that type.
  template <class T>
  Result<CapnpItem<T>> try_capnp(const CapnpOptions& options = {}) const;
  /// Returns the schema id and segments, for use with another Cap'n Proto implementation. The result's `owner` keeps
  /// the message. Segments do not overlap, and are aligned to 8 bytes if the frame is. Returns kInvalid for a node of
  /// another kind, and kCorrupt if the segments overlap.
  Result<CapnpRef> capnp_segments() const;

  /// Returns the path from the message's root to this node, as a chain of subscripts: `["obs"]["steps"][3]`. Empty at
  /// the root. A key that is neither str nor int is shown by its position: `[key 2]`. Throws only std::bad_alloc.
  std::string way() const;
  /// Returns kInvalid for use in an ItemAs: `["obs"]["reward"]: expected float, found string`, where `wanted` is
  /// "float". as() and try_as() add the path to all other errors of an ItemAs.
  Error mismatch(std::string_view wanted) const;

 private:
  friend struct value::Tree;
  Item(std::shared_ptr<const value::Tree> tree, std::uint32_t node) noexcept;

  /// Moves this Item's ownership of the message into the view.
  template <class View>
  Held<View> hold(View view) noexcept {
    return {std::move(view), std::move(tree_)};
  }
  template <class T>
  Result<T> convert() const;
  /// Puts the path in front of the error, unless it has one.
  Error on_the_way(Error error) const;
  Result<ArrayView> array_view() const;
  Result<bool> to_bool() const;
  Result<std::int64_t> to_int(std::size_t bytes) const;  // `bytes` is the size of the requested type, for the error.
  Result<std::uint64_t> to_uint(std::size_t bytes) const;
  Result<double> to_double() const;
  Result<std::complex<double>> to_complex() const;
  Result<std::string_view> to_text() const;
  Result<std::span<const std::byte>> to_bytes() const;
  /// Returns `array` if its elements have type `dtype` and the alignment, and if it is writable where that is required.
  Result<ArrayView> typed_view(DType dtype, std::size_t alignment, bool writable) const;
  static Error out_of_range(const std::string& number, std::size_t bytes, bool is_signed);
  Error not_in_c_order() const;
  std::string_view key_text(std::size_t position) const noexcept;

  std::shared_ptr<const value::Tree> tree_;
  std::uint32_t node_ = 0;
};

/// Forwards an Item of any kind as part of a value to send: `Dict{{"obs", item["obs"]}}`. Arrays are copied, with two
/// exceptions for arrays that are in the arena of the channel. They are sent by reference if all arrays of their
/// message are read-only. They are also sent by reference if the Item was moved into the Value and is the last Item of
/// its message at the time of the put. Such a put uses up the Item: another put of the Value, or of a copy of it,
/// returns kInvalid, even while the first put still waits.
template <>
struct ValueOf<Item> {
  static Value make(const Item& item) { return Forward{std::make_shared<const Item>(item), false}; }
  static Value make(Item&& item) { return Forward{std::make_shared<const Item>(std::move(item)), true}; }
};

/// Iterates over the items of a container, or the values of a dict (their keys: Item::key()).
class Item::Iterator {
 public:
  using value_type = Item;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const Item*;
  using reference = Item;

  Iterator() noexcept = default;
  Item operator*() const { return parent_.at(position_); }
  Iterator& operator++() noexcept { return ++position_, *this; }
  Iterator operator++(int) noexcept {
    Iterator before = *this;
    ++position_;
    return before;
  }
  bool operator==(const Iterator& other) const noexcept { return position_ == other.position_; }

 private:
  friend class Item;
  Iterator(Item parent, std::size_t position) noexcept : parent_(std::move(parent)), position_(position) {}
  Item parent_;
  std::size_t position_ = 0;
};

/// The entries of a dict. A key that is not a str is empty here; Item::key_at() returns it. Keys are valid while an
/// Item of the message exists.
class Item::Entries {
 public:
  class Iterator {
   public:
    using value_type = std::pair<std::string_view, Item>;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    using pointer = const value_type*;
    using reference = value_type;

    Iterator() noexcept = default;
    value_type operator*() const { return {dict_.key_text(position_), dict_.at(position_)}; }
    Iterator& operator++() noexcept { return ++position_, *this; }
    Iterator operator++(int) noexcept {
      Iterator before = *this;
      ++position_;
      return before;
    }
    bool operator==(const Iterator& other) const noexcept { return position_ == other.position_; }

   private:
    friend class Entries;
    Iterator(Item dict, std::size_t position) noexcept : dict_(std::move(dict)), position_(position) {}
    Item dict_;
    std::size_t position_ = 0;
  };

  /// Iterates over pairs of key and value.
  Iterator begin() const noexcept { return {dict_, 0}; }
  /// Returns the end of the iteration.
  Iterator end() const noexcept { return {dict_, dict_.size()}; }
  /// Returns the number of entries.
  std::size_t size() const noexcept { return dict_.size(); }

 private:
  friend class Item;
  explicit Entries(Item dict) noexcept : dict_(std::move(dict)) {}
  Item dict_;
};

inline Item::Entries Item::entries() const {
  if (!is_dict()) throw BadResult(mismatch("dict"));
  return Entries(*this);
}

template <class T>
T Item::get_or(std::string_view key, T fallback) const {
  if (!is_dict()) throw BadResult(mismatch("dict"));
  const std::optional<Item> found = find(key);
  return found ? found->as<T>() : std::move(fallback);
}
inline std::string Item::get_or(std::string_view key, const char* fallback) const {
  return get_or(key, std::string(fallback));
}

template <class T>
Result<T> Item::try_as() const {
  return or_out_of_memory([this]() -> Result<T> {
    try {
      Result<T> converted = convert<T>();
      if (!converted.ok()) return on_the_way(std::move(converted).error());
      return converted;
    } catch (const BadResult& refused) {  // Thrown by an ItemAs.
      return on_the_way(refused.error());
    }
  });
}

template <class T>
Result<T> Item::convert() const {
  if constexpr (std::is_same_v<T, bool>) {
    return to_bool();
  } else if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    Result<Wide> wide = [this] {
      if constexpr (std::is_signed_v<T>) {
        return to_int(sizeof(T));
      } else {
        return to_uint(sizeof(T));
      }
    }();
    if (!wide.ok()) return std::move(wide).error();
    if (*wide < Wide{std::numeric_limits<T>::min()} || *wide > Wide{std::numeric_limits<T>::max()}) {
      return out_of_range(std::to_string(*wide), sizeof(T), std::is_signed_v<T>);
    }
    return static_cast<T>(*wide);
  } else if constexpr (std::is_floating_point_v<T>) {
    Result<double> value = to_double();
    if (!value.ok()) return std::move(value).error();
    return static_cast<T>(*value);
  } else if constexpr (std::is_same_v<T, std::complex<double>>) {
    return to_complex();
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return to_text();
  } else if constexpr (std::is_same_v<T, std::string>) {
    Result<std::string_view> text = to_text();
    if (!text.ok()) return std::move(text).error();
    return std::string(*text);
  } else if constexpr (std::is_same_v<T, Item>) {
    return *this;
  } else if constexpr (ConvertibleFromItem<T>) {
    return ItemAs<T>::make(*this);
  } else if constexpr (std::is_enum_v<T>) {
    auto number = convert<std::underlying_type_t<T>>();
    if (!number.ok()) return std::move(number).error();
    return static_cast<T>(*number);
  } else {
    static_assert(
        detail::ReadableItem<T>,
        "an Item has no conversion to this type. Describe an aggregate with SHMTREE_FIELDS(Type, members...), "
        "or specialise shmtree::ItemAs");
    if constexpr (detail::ReadableItem<T>) {
      return to_bytes();
    } else {
      return Code::kInvalid;
    }
  }
}

/// The elements of a C-contiguous array.
template <ArrayElement T>
std::span<T> Item::span() const& {
  const ArrayView array = typed_view(dtype_of<T>(), alignof(T), !std::is_const_v<T>).value();
  if (!array.c_order) throw BadResult(not_in_c_order());
  return {detail::first_element<T>(array), array.elements};
}

}  // namespace shmtree

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ == 13
#pragma GCC diagnostic pop
#endif
