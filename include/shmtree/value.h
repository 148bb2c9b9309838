/// @file
/// Values to send: a tree of scalars, strings, arrays, lists and dicts, put together for one message.
///
///     shmtree::Dict{{"obs", obs}, {"reward", 1.0}, {"info", shmtree::Dict{{"episode", "ep-12"}}}}
///
/// Ownership: a Value owns its scalars, strings and containers. It *refers to* arrays that are lvalues (xtensor
/// containers, std::vector, std::span). Their memory must stay alive and unchanged until `put` returns. The Value owns
/// arrays that are temporaries, and the results of xtensor expressions. Python receives None, bool, int, float,
/// complex, str, bytes, numpy.ndarray, list, tuple, and dict with str keys.
///
/// Thread safety: values. Several threads may read a Value; a thread that changes it needs exclusive access.
///
/// Errors: making a Value fails only for lack of memory (std::bad_alloc). `put` refuses a tree deeper than kMaxDepth,
/// and an impossible array, with Code::kInvalid.
#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "shmtree/base/kind.h"
#include "shmtree/base/result.h"

namespace shmtree {

class Value;
class Item;
struct Entry;

/// Returns the DType of a C++ type; kOther for types that no array can have.
template <class T>
constexpr DType dtype_of() noexcept {
  using U = std::remove_cv_t<T>;
  constexpr bool kSigned = std::is_signed_v<U>;
  if constexpr (std::is_same_v<U, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_same_v<U, float>) {
    return DType::kFloat32;
  } else if constexpr (std::is_same_v<U, double>) {
    return DType::kFloat64;
  } else if constexpr (std::is_same_v<U, std::complex<float>>) {
    return DType::kComplex64;
  } else if constexpr (std::is_same_v<U, std::complex<double>>) {
    return DType::kComplex128;
  } else if constexpr (std::is_same_v<U, std::byte>) {
    return DType::kUInt8;
  } else if constexpr (!std::is_integral_v<U> || sizeof(U) > 8) {
    return DType::kOther;
  } else if constexpr (sizeof(U) == 1) {
    return kSigned ? DType::kInt8 : DType::kUInt8;
  } else if constexpr (sizeof(U) == 2) {
    return kSigned ? DType::kInt16 : DType::kUInt16;
  } else if constexpr (sizeof(U) == 4) {
    return kSigned ? DType::kInt32 : DType::kUInt32;
  } else {
    return kSigned ? DType::kInt64 : DType::kUInt64;
  }
}

template <class T>
concept ArrayElement = dtype_of<T>()
!= DType::kOther;

namespace detail {
/// kInvalid: the array has another element type than requested.
Error other_elements(DType found, DType wanted);
/// Makes a CapnpRef from a builder with root type T. Specialised in capnp.h.
template <class T, class Builder>
struct CapnpOf;
template <class Builder, class T>
concept CapnpBuilder = requires(Builder& builder) {
  CapnpOf<T, Builder>::refer(builder);
};
/// A number type specific to the compiler, which may or may not satisfy the concepts of the standard library.
template <class T>
concept OtherNumber =
    !std::is_class_v<T> && !std::is_union_v<T> && !std::is_enum_v<T> && !std::is_pointer_v<T> && !std::is_array_v<T> &&
    !std::is_null_pointer_v<T> && !std::is_member_pointer_v<T> && !std::is_reference_v<T> && !std::same_as<T, bool> &&
    !std::floating_point<T> && std::is_convertible_v<T, double>;
template <class T>
concept WideNumber = OtherNumber<T> && sizeof(T) > 8;
template <class T>
concept ExtendedFloat = OtherNumber<T> && !std::integral<T> && sizeof(T) <= 8;
}  // namespace detail

/// An array in memory of the program.
struct ArrayRef {
  const void* data = nullptr;           ///< The first element. Not read if there are none.
  DType dtype = DType::kUInt8;          ///< Type of the elements, never kOther.
  std::vector<std::int64_t> shape{};    ///< Empty: one element, no dimensions.
  std::vector<std::int64_t> strides{};  ///< In bytes. Empty: C order without gaps.
  bool read_only = false;               ///< The receiver gets a read-only array.
  std::shared_ptr<const void> owner{};  ///< Keeps the memory at `data` alive while the Value exists. May be empty.
};

/// The array was allocated by new_array(), and may be filled in place before the put. Any other array is read-only
/// through its ArrayRef.
struct NewArray : ArrayRef {
  /// Returns the elements, in C order, for writing. Throws BadResult (kInvalid) for another element type.
  template <ArrayElement T>
  std::span<T> span() const {
    if (dtype != dtype_of<T>()) throw BadResult(detail::other_elements(dtype, dtype_of<T>()));
    return {static_cast<T*>(mutable_data()), elements()};
  }
  /// Returns the first element, for writing.
  void* mutable_data() const noexcept { return const_cast<void*>(data); }
  /// Returns the number of elements.
  std::size_t elements() const noexcept {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return static_cast<std::size_t>(count);
  }
};

/// Refers to an array in C order at `data`.
template <ArrayElement T>
ArrayRef array_ref(const T* data,
                   std::vector<std::int64_t> shape) {  // NOLINT(performance-unnecessary-value-param): moved
  return {.data = data, .dtype = dtype_of<T>(), .shape = std::move(shape)};
}

/// Refers to a Cap'n Proto message: its segments and root type. <shmtree/capnp.h> converts builders to it.
struct CapnpRef {
  std::uint64_t schema_id = 0;  ///< The 64-bit id of the root's type.
  std::vector<std::span<const std::byte>>
      segments{};                       ///< 1 to kMaxSegments; each aligned to 8, and a multiple of 8 bytes
  std::shared_ptr<const void> owner{};  ///< Keeps the segments alive while the Value exists. May be empty.
  /// For each segment: the size of its new_array() block if the segment begins at the block's start and is alone in it;
  /// otherwise 0. Such a segment is sent without a copy. Empty if no segment is in such a block.
  std::vector<std::size_t> lent_bytes{};
};

/// Bytes that arrive as Python's `bytes`, as opposed to an array of uint8.
struct Bytes {
  std::string data{};  ///< Any bytes.
};

/// A received Item to be forwarded, inside a Value (item.h).
struct Forward {
  std::shared_ptr<const Item> item{};  ///< Never null.
  bool moved = false;                  ///< The Item was moved into the Value.
};

/// Converts another type to a Value. Specialise it with `static Value make(const T&)` or `make(T&&)`, as array.h does
/// for xtensor.
template <class T>
struct ValueOf;

template <class T>
concept ConvertibleToValue = requires(T&& value) {
  ValueOf<std::remove_cvref_t<T>>::make(std::forward<T>(value));
};

class List;
class Tuple;
class Dict;

namespace detail {
template <class T, class... Others>
concept ConvertibleToOneOf = (std::is_convertible_v<T, Others> || ...);
/// A type from which no constructor makes a Value. (std::is_constructible would ask the constructor that reports it.)
/// Not a vector of Values, so that `List{std::move(values)}` makes a list of these.
template <class T>
concept Unsendable =
    !std::is_arithmetic_v<std::remove_cvref_t<T>> && !std::is_enum_v<std::remove_cvref_t<T>> &&
    !OtherNumber<std::remove_cvref_t<T>> && !std::is_null_pointer_v<std::remove_cvref_t<T>> && !ConvertibleToValue<T> &&
    !std::same_as<std::remove_cvref_t<T>, Value> && !std::same_as<std::remove_cvref_t<T>, std::vector<Value>> &&
    !ConvertibleToOneOf<T, std::complex<double>, const char*, std::string_view, std::string, Bytes, ArrayRef, List,
                        Tuple, Dict, CapnpRef, Forward> &&
    !requires(T && value) {
  static_cast<T&&>(value).operator Value();
};
}  // namespace detail

/// A sequence that arrives as a Python list.
class List {
 public:
  /// Makes an empty list.
  List() = default;
  /// Makes a list of these items.
  List(std::initializer_list<Value> items);
  /// The same.
  explicit List(std::vector<Value> items) noexcept;

  /// Appends an item.
  void push_back(Value item);
  /// Reserves memory for `count` items in total.
  void reserve(std::size_t count);
  /// Returns the number of items.
  std::size_t size() const noexcept;
  /// Returns the items in order. Valid until the list changes or is destroyed.
  const std::vector<Value>& items() const& noexcept { return items_; }
  /// Moves the items out of a temporary.
  std::vector<Value> items() &&;

 private:
  std::vector<Value> items_;
};

/// A sequence that arrives as a Python tuple.
class Tuple {
 public:
  /// Makes an empty tuple.
  Tuple() = default;
  /// Makes a tuple of these items.
  Tuple(std::initializer_list<Value> items);
  /// The same.
  explicit Tuple(std::vector<Value> items) noexcept;

  /// Returns the number of items.
  std::size_t size() const noexcept;
  /// Returns the items in order. Valid while the tuple exists.
  const std::vector<Value>& items() const& noexcept { return items_; }
  /// Moves the items out of a temporary.
  std::vector<Value> items() &&;

 private:
  std::vector<Value> items_;
};

/// Values with str keys, in the order of insertion. Keys must be UTF-8, like every std::string here. `put` refuses
/// others with Code::kInvalid, because a Python str cannot hold them. Use Bytes for bytes.
class Dict {
 public:
  /// Makes an empty dict. Defined where Entry is complete, like the functions below.
  Dict() noexcept;
  /// Copies the entries.
  Dict(const Dict& other);
  /// A moved-from dict is empty.
  Dict(Dict&& other) noexcept;
  /// Copies the entries.
  Dict& operator=(const Dict& other);
  /// A moved-from dict is empty.
  Dict& operator=(Dict&& other) noexcept;
  /// Destroys the entries.
  ~Dict();
  /// Makes a dict of these entries. For a key that occurs twice, the last value is used at the first position.
  Dict(std::initializer_list<Entry> entries);

  /// Sets the value of a key. Looks for the key first, in time proportional to size().
  void set(std::string key, Value value);
  /// Adds a key that the dict does not have, as the caller ensures, in constant time.
  void add(std::string key, Value value);
  /// Reserves memory for `count` entries in total.
  void reserve(std::size_t count);
  /// Returns the number of entries.
  std::size_t size() const noexcept;
  /// Returns the entries in order. Valid until the dict changes or is destroyed.
  const std::vector<Entry>& entries() const& noexcept { return entries_; }
  /// Moves the entries out of a temporary.
  std::vector<Entry> entries() &&;

 private:
  Value* find(const std::string& key) noexcept;

  std::vector<Entry> entries_;
};

/// Any value that can be sent. Most types convert implicitly; see the table in docs/cpp.md.
class Value {
 public:
  /// The types that a Value can hold.
  using Variant = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::complex<double>,
                               std::string, Bytes, ArrayRef, List, Tuple, Dict, Forward, CapnpRef>;

  /// None.
  Value() noexcept = default;
  /// The same.
  Value(std::nullptr_t) noexcept {}

  /// A bool.
  template <class T>
  requires std::same_as<T, bool> Value(T value)
  noexcept : variant_(value) {}
  /// An int of up to 64 bits.
  template <class T>
  requires(std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8) Value(T value)
  noexcept : variant_(widen(value)) {}
  /// A float of 64 bits.
  template <std::floating_point T>
  Value(T value) noexcept : variant_(static_cast<double>(value)) {}
  /// A float of 64 bits, from the compiler's own floating-point types of at most 64 bits, such as _Float16.
  template <detail::ExtendedFloat T>
  Value(T value) noexcept : variant_(static_cast<double>(value)) {}
  /// An int: the number of an enumerator, or of a std::byte. A ValueOf has precedence.
  template <class T>
  requires(std::is_enum_v<T> && !ConvertibleToValue<T>) Value(T value)
  noexcept : Value(static_cast<std::underlying_type_t<T>>(value)) {}
  /// Does not compile: shmtree sends no Python number for these types.
  template <detail::WideNumber T>
  Value(T) noexcept {
    static_assert(sizeof(T) <= 8, "shmtree sends integers of at most 64 bits, and standard floats: convert the value");
  }
  /// A complex.
  template <class T>
  requires(std::same_as<T, std::complex<double>> || std::same_as<T, std::complex<float>>) Value(T value)
  noexcept : variant_(std::complex<double>(value)) {}

  /// A str in UTF-8, like all texts below. A null pointer is None.
  Value(const char* text) : variant_(text != nullptr ? Variant(std::string(text)) : Variant()) {}
  /// The same.
  Value(std::string_view text) : variant_(std::string(text)) {}
  /// The same.
  Value(std::string text) noexcept : variant_(std::move(text)) {}
  /// Bytes.
  Value(Bytes bytes) noexcept : variant_(std::move(bytes)) {}
  /// An array. Its memory belongs to the caller until put() has returned, unless it has an owner.
  Value(ArrayRef array) noexcept : variant_(std::move(array)) {}
  /// A list.
  Value(List list) noexcept : variant_(std::move(list)) {}
  /// A tuple.
  Value(Tuple tuple) noexcept : variant_(std::move(tuple)) {}
  /// A dict.
  Value(Dict dict) noexcept : variant_(std::move(dict)) {}
  /// A Cap'n Proto message. Its memory belongs to the caller until put() has returned, unless it has an owner.
  Value(CapnpRef message) noexcept : variant_(std::move(message)) {}
  /// A received Item to be forwarded.
  Value(Forward forward) noexcept : variant_(std::move(forward)) {}

  /// The result of a ValueOf.
  template <class T>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): the constraint excludes Value
  requires(!std::same_as<std::remove_cvref_t<T>, Value> && ConvertibleToValue<T>) Value(T&& other)
      : Value(ValueOf<std::remove_cvref_t<T>>::make(std::forward<T>(other))) {}

  /// Does not compile: shmtree has no conversion for this type.
  template <class T>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): the constraint excludes Value
  requires detail::Unsendable<T> Value(T&&) {
    static_assert(!detail::Unsendable<T>,
                  "shmtree cannot send a value of this type. Describe an aggregate with SHMTREE_FIELDS(Type, "
                  "members...), or specialise shmtree::ValueOf; a Result needs .value()");
  }

  /// Returns the content.
  const Variant& variant() const& noexcept { return variant_; }
  /// Moves the content out of a temporary.
  Variant variant() && noexcept { return std::move(variant_); }

 private:
  template <class T>
  static constexpr auto widen(T value) noexcept {
    if constexpr (std::is_signed_v<T>) {
      return static_cast<std::int64_t>(value);
    } else {
      return static_cast<std::uint64_t>(value);
    }
  }

  Variant variant_;
};

namespace detail {
/// Body of put<T>() and publish<T>(): calls `put` with the Value of a builder's message.
template <class T, class Builder, class Put>
auto put_capnp(Builder& builder, Put put) {
  return or_out_of_memory([&] { return put(Value(CapnpOf<T, Builder>::refer(builder))); });
}
}  // namespace detail

/// An entry of a Dict.
struct Entry {
  std::string key;  ///< UTF-8
  Value value;      ///< The value of the key.
};

inline std::vector<Value> List::items() && {
  return std::move(items_);
}
inline std::vector<Value> Tuple::items() && {
  return std::move(items_);
}
inline std::vector<Entry> Dict::entries() && {
  return std::move(entries_);
}

/// Converts one-dimensional arrays of the standard library. An lvalue is referred to, a temporary is kept.
template <ArrayElement T, class Allocator>
requires(!std::same_as<T, bool>) struct ValueOf<std::vector<T, Allocator>> {
  using Vector = std::vector<T, Allocator>;
  static ArrayRef refer(const Vector& values) {
    return array_ref(values.data(), {static_cast<std::int64_t>(values.size())});
  }
  static Value make(const Vector& values) { return refer(values); }
  static Value make(Vector&& values) {
    auto kept = std::make_shared<const Vector>(std::move(values));
    ArrayRef array = refer(*kept);
    array.owner = std::move(kept);
    return array;
  }
};

template <class T, std::size_t extent>
requires ArrayElement<T>
struct ValueOf<std::span<T, extent>> {
  static Value make(std::span<const T, extent> values) {
    return array_ref(values.data(), {static_cast<std::int64_t>(values.size())});
  }
};

}  // namespace shmtree
