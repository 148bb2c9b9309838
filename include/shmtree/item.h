/// @file
/// What C++ receives: a tree that refers to shared memory and keeps it.
///
///     shmtree::Item item = receiver.get(3s).value();
///     double reward = item["reward"].as<double>();
///     for (const shmtree::Item& step : item["steps"]) use(step["obs"].view());
///
/// Ownership: an Item, and every Item got from it, shares one hold on its message. Views of arrays, strings and bytes
/// are valid as long as any of them lives; the memory goes back to the sender's arena with the last. (The xtensor views
/// of array.h share the hold; `view()`, `span()` and string_views do not.) Arrays are writable (nobody else sees the
/// changes) unless their sender had made them read-only. Thread safety: values over a tree that never changes; several
/// threads may read copies of one Item. Errors: the calls that return plain values throw BadResult (result.h) with
/// Code::kInvalid for a node of another kind or a number that does not fit, kNotFound for a key or index that is not
/// there; the `try_` calls return them instead.
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

#include "shmtree/kind.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

/// Marks a class whose objects share ownership of the memory that they refer to. g++ 14 and later then do not assume
/// that a temporary object owns that memory: they check the expression from which the object was made.
#if __has_cpp_attribute(gnu::no_dangling)
#define SHMTREE_NO_DANGLING [[gnu::no_dangling]]
#else
#define SHMTREE_NO_DANGLING
#endif

// g++ 13 has the warning in -Wall, and no attribute against it.
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
  bool copy = false;  ///< reads a private copy, which no other process can change
  /// Traversal limit in words, shared by all readers of one CapnpItem. Repeated reads count again. 0 stands for 8 Mi
  /// words (64 MiB), or eight times the message if that is more.
  std::uint64_t traversal_words = 0;
  int nesting_levels = 64;  ///< maximum pointer depth
};

namespace value {
struct Tree;
}

namespace detail {
/// kInvalid: the array is another one than was asked for.
Error other_elements(DType found, DType wanted);
Error other_dimensions(std::size_t found, std::size_t wanted);
/// kInvalid: the Cap'n Proto message is of another type than was asked for, or not aligned.
Error other_schema(std::uint64_t found, std::uint64_t wanted);
Error unaligned_segment();
/// kCorrupt: Cap'n Proto finds no root of that type.
Error no_capnp_root(const char* why);
struct CapnpAccess;
}  // namespace detail

/// An array in a message: where it is and how it is laid out. Valid as long as an Item of its message lives.
struct ArrayView {
  DType dtype = DType::kOther;              ///< of its elements
  std::string_view description{};           ///< NumPy's description of the elements, with DType::kOther
  std::span<const std::int64_t> shape{};    ///< empty: one element, no dimension
  std::span<const std::int64_t> strides{};  ///< bytes per step of each index; may be negative
  std::byte* data = nullptr;                ///< the first element, maybe unaligned; do not write if `read_only`
  std::size_t item_bytes = 0;               ///< of one element
  std::size_t elements = 0;                 ///< how many
  bool read_only = false;                   ///< its sender had made it so
  bool c_order = false;                     ///< elements lie in C order without gaps

  /// Copies the elements to `out`, which has room for elements * item_bytes, in C order without gaps. Any array:
  /// strides may be negative, elements unaligned.
  void copy_to(void* out) const noexcept;
};

/// How an Item becomes another type: specialise it with `static Result<T> make(const Item&)`. containers.h does so for
/// those of the standard library, array.h for xtensor, fields.h for aggregates. It may throw std::bad_alloc.
template <class T>
struct ItemAs;

template <class T>
concept ConvertibleFromItem = requires(const Item& item) {
  ItemAs<T>::make(item);
};

/// A node of a received message, and a hold on all of it.
///
/// All Items of a message own the message together. What span(), ints(), floats(), view(), key() and the string_views
/// and spans of as() refer to is in the message, not in the Item: it is valid until the last Item of the message is
/// destroyed. So `for (float x : item["obs"].span<const float>())` is safe although `item["obs"]` is a temporary:
/// `item` must stay alive. `for (float x : receiver.get().value().span<const float>())` is not safe: no Item is left
/// after the temporary Result is destroyed. Keep the Item in a variable.
class SHMTREE_NO_DANGLING Item {
 public:
  /// Goes over items; see begin().
  class Iterator;
  /// Those of a dict; see entries().
  class Entries;

  /// An Item of nothing: kNone, no message.
  Item() noexcept = default;

  /// What the node is. Python's types that C++ has none for are containers of their parts (shmtree/kind.h says which).
  Kind kind() const noexcept;
  /// Whether it is None, or nothing.
  bool is_none() const noexcept { return kind() == Kind::kNone; }
  /// True for every kind of dict, dataclass fields included: items are found by key.
  bool is_dict() const noexcept;
  /// True for list, tuple, namedtuple, deque, set and frozenset.
  bool is_sequence() const noexcept;
  /// True for arrays, tensors and memoryviews: view() works, and array<T>() of array.h.
  bool is_array() const noexcept;

  /// Items of a container, entries of a dict; 0 for everything else.
  std::size_t size() const noexcept;

  /// The value under a str key. Time proportional to size().
  Item operator[](std::string_view key) const;
  /// Whether there is that str key; false for what is no dict.
  bool contains(std::string_view key) const noexcept { return find(key).has_value(); }
  /// The value under a str key, if there is one.
  std::optional<Item> find(std::string_view key) const noexcept;

  /// The item at a position: of a sequence, the values of a dict in order, the parts of anything else.
  Item at(std::size_t position) const;
  /// The same as at().
  Item operator[](std::size_t position) const { return at(position); }
  /// Over the items of a container, the values of a dict.
  Iterator begin() const noexcept;
  /// The end of these.
  Iterator end() const noexcept;

  /// The str keys of a dict, in order; a key of another type is an empty string here.
  std::vector<std::string_view> keys() const;
  /// The str key under which this Item stands in the dict it was got from; empty elsewhere.
  std::string_view key() const noexcept;
  /// The key at a position of a dict whose keys are not all str.
  Item key_at(std::size_t position) const;
  /// The entries of a dict as pairs, in order: `for (auto [key, value] : item.entries())`. Keys are string_views, as of
  /// keys(). kInvalid for what is no dict.
  Entries entries() const;

  /// What stands under a key, as T; `fallback` when there is no such key. A value that is there and is no T throws, as
  /// as<T>() does, and so does an item that is no dict (kInvalid).
  template <class T>
  T get_or(std::string_view key, T fallback) const;
  /// The same of a text.
  std::string get_or(std::string_view key, const char* fallback) const;

  /// The class of a namedtuple, dataclass, enum or registered object, or the object that a global names:
  /// "module:qualname". Empty elsewhere.
  std::string_view class_name() const noexcept;
  /// The member of an enum.
  std::string_view member() const;

  /// bool; integers (from int, checked for range); floating point (from float and int); std::complex<double>;
  /// std::string_view, std::string (from str: UTF-8, in which a lone surrogate is three bytes); `std::span<const
  /// std::byte>` (from bytes and bytearray). NumPy scalars and arrays without dimensions count as their element.
  template <class T>
  T as() const {
    return try_as<T>().value();
  }
  /// The same without exceptions: kInvalid, and kOutOfSharedMemory without memory. A BadResult that an ItemAs throws is
  /// the error it returns; what else one throws passes through, here and in as().
  template <class T>
  Result<T> try_as() const;

  /// The plain numbers that a node is made of: a date, a time, a range, a list of nothing but ints or floats
  /// (shmtree/kind.h). Empty for other nodes.
  std::span<const std::int64_t> ints() const noexcept;
  /// The same of floats.
  std::span<const double> floats() const noexcept;

  /// The array of a kArray or kTensor, or of the array inside a memoryview.
  ArrayView view() const { return try_view().value(); }
  /// The same without exceptions: kInvalid.
  Result<ArrayView> try_view() const;
  /// The elements as one run: for arrays in C order whose elements are T.
  template <ArrayElement T>
  std::span<T> span() const;
  /// An xtensor view: defined in array.h.
  template <class T>
  auto array() const;

  /// Returns a reader of a Cap'n Proto message with root type T, which reads in place. Defined in capnp.h. Throws
  /// BadResult with the errors of try_capnp().
  template <class T>
  CapnpItem<T> capnp(const CapnpOptions& options = {}) const;
  /// The same without exceptions: kInvalid for another kind or schema id, or memory that is not aligned; kCorrupt.
  template <class T>
  Result<CapnpItem<T>> try_capnp(const CapnpOptions& options = {}) const;
  /// Returns the schema id and segments, for use with another Cap'n Proto implementation; valid as long as an Item of
  /// the message lives. The segments do not overlap; they are aligned to 8 bytes if the frame is. kInvalid for another
  /// kind; kCorrupt.
  Result<CapnpRef> capnp_segments() const;

  /// The way from the message's root to here, as it is written to get here: `["obs"]["steps"][3]`. Empty at the root. A
  /// key that is no str and no int is shown by its place: `[key 2]`. Throws std::bad_alloc only.
  std::string way() const;
  /// For an ItemAs: kInvalid, `["obs"]["reward"]: expected float, found string`, `wanted` being "float". What else an
  /// ItemAs returns gets the way from as() and try_as().
  Error mismatch(std::string_view wanted) const;

 private:
  friend struct value::Tree;
  Item(std::shared_ptr<const value::Tree> tree, std::uint32_t node) noexcept;

  template <class T>
  Result<T> convert() const;
  /// The error with the way before it, unless it has one.
  Error on_the_way(Error error) const;
  Result<ArrayView> array_view() const;
  Result<bool> to_bool() const;
  Result<std::int64_t> to_int(std::size_t bytes) const;  // of what is asked for, for the error
  Result<std::uint64_t> to_uint(std::size_t bytes) const;
  Result<double> to_double() const;
  Result<std::complex<double>> to_complex() const;
  Result<std::string_view> to_text() const;
  Result<std::span<const std::byte>> to_bytes() const;
  /// `array` with elements of type `dtype`, aligned for it, and writable if that is asked for.
  Result<ArrayView> typed_view(DType dtype, std::size_t alignment, bool writable) const;
  static Error out_of_range(const std::string& number, std::size_t bytes, bool is_signed);
  Error not_in_c_order() const;
  std::string_view key_text(std::size_t position) const noexcept;

  std::shared_ptr<const value::Tree> tree_;
  std::uint32_t node_ = 0;
};

/// An Item in a message to send is forwarded as it is, whatever kind it has: `Dict{{"obs", item["obs"]}}`. It is
/// copied, but for arrays in a message whose arrays are all read-only, and for arrays of an Item that was moved into
/// the Value and is the last of its message when it is put: those go by reference, where they lie in the arena of the
/// channel. Then the Item is gone: another put of the Value, or of a copy of it, is kInvalid, also while the first
/// still waits.
template <>
struct ValueOf<Item> {
  static Value make(const Item& item) { return Forward{std::make_shared<const Item>(item), false}; }
  static Value make(Item&& item) { return Forward{std::make_shared<const Item>(std::move(item)), true}; }
};

/// Goes over the items of a container, or the values of a dict (their keys: Item::key()).
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

/// The entries of a dict. Keys are empty where they are no str (Item::key_at() has them), and valid as long as an Item
/// of the message lives.
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

  /// Pairs of key and value.
  Iterator begin() const noexcept { return {dict_, 0}; }
  /// The end of these.
  Iterator end() const noexcept { return {dict_, dict_.size()}; }
  /// How many.
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
    } catch (const BadResult& refused) {  // by an ItemAs
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
  } else {
    static_assert(std::is_same_v<T, std::span<const std::byte>>, "an Item has no conversion to this type");
    return to_bytes();
  }
}

template <ArrayElement T>
std::span<T> Item::span() const {
  const ArrayView array = typed_view(dtype_of<T>(), alignof(T), !std::is_const_v<T>).value();
  if (!array.c_order) throw BadResult(not_in_c_order());
  return {reinterpret_cast<T*>(array.data), array.elements};
}

}  // namespace shmtree

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ == 13
#pragma GCC diagnostic pop
#endif
