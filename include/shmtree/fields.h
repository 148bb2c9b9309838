/// @file
/// Sends aggregates as dicts with the members as keys.
///
///     struct Sample {
///       xt::xtensor<float, 3> obs;
///       double reward = 0;
///       std::optional<std::string> episode;
///     };
///     SHMTREE_FIELDS(Sample, obs, reward, episode)
///
///     sender.put(sample);                            // Python receives {"obs": array, "reward": 1.0, "episode": None}
///     Sample back = receiver.get().value().as<Sample>();
///
/// A member may have any type that converts to a Value and from an Item (value.h, containers.h, array.h), including
/// another aggregate with fields. Members of type Item, string_view or span refer to the received message. The
/// aggregate needs a default constructor. It is read from a dict, or a Python dataclass, that has all keys. Members of
/// type std::optional may be missing; additional keys are ignored.
///
/// Ownership: as for containers. Arrays of an lvalue are referred to until put() returns; the Value keeps those of a
/// temporary.
///
/// Errors: kNotFound for a missing key, and kInvalid for a value of another type. The message has its path:
/// `["steps"][3]["reward"]: expected float, found string`.
///
/// Thread safety: that of the aggregate.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "shmtree/containers.h"
#include "shmtree/item.h"
#include "shmtree/value.h"

/// Declares which members of an aggregate are sent and received: at most 256, all public. Use it after the aggregate,
/// in the same namespace.
#define SHMTREE_FIELDS(Type, ...)                                                                      \
  [[maybe_unused]] constexpr auto shmtree_fields(const Type*) noexcept {                               \
    static_assert(std::is_default_constructible_v<Type>, "a constructor without arguments is needed"); \
    return ::shmtree::detail::fields_of(#Type SHMTREE_EACH_FIELD(Type, __VA_ARGS__));                  \
  }

/// @cond
#define SHMTREE_EACH_FIELD(Type, ...) __VA_OPT__(SHMTREE_EXPAND(SHMTREE_NEXT_FIELD(Type, __VA_ARGS__)))
#define SHMTREE_NEXT_FIELD(Type, member, ...)                    \
  , ::shmtree::detail::Field<&Type::member>{#member} __VA_OPT__( \
        SHMTREE_NEXT_FIELD_AGAIN SHMTREE_PARENS(Type, __VA_ARGS__))
#define SHMTREE_NEXT_FIELD_AGAIN() SHMTREE_NEXT_FIELD
#define SHMTREE_PARENS ()
#define SHMTREE_EXPAND(...) SHMTREE_EXPAND64(SHMTREE_EXPAND64(SHMTREE_EXPAND64(SHMTREE_EXPAND64(__VA_ARGS__))))
#define SHMTREE_EXPAND64(...) SHMTREE_EXPAND16(SHMTREE_EXPAND16(SHMTREE_EXPAND16(SHMTREE_EXPAND16(__VA_ARGS__))))
#define SHMTREE_EXPAND16(...) SHMTREE_EXPAND4(SHMTREE_EXPAND4(SHMTREE_EXPAND4(SHMTREE_EXPAND4(__VA_ARGS__))))
#define SHMTREE_EXPAND4(...) SHMTREE_EXPAND1(SHMTREE_EXPAND1(SHMTREE_EXPAND1(SHMTREE_EXPAND1(__VA_ARGS__))))
#define SHMTREE_EXPAND1(...) __VA_ARGS__
/// @endcond

namespace shmtree {

/// An aggregate that SHMTREE_FIELDS describes.
template <class T>
concept HasFields = requires(const T* aggregate) {
  shmtree_fields(aggregate).members;
};

namespace detail {

template <auto member>
struct Field;
template <class T, class M, M T::*member>
struct Field<member> {
  using Member = M;
  const char* name;
};

/// The form in which a member is received: std::array for an array.
template <class Member>
struct Received {
  using Type = Member;
};
template <class T, std::size_t count>
struct Received<T[count]> {
  using Type = std::array<T, count>;
};

/// Does not compile for a member that cannot be sent; the compiler's message has its name.
template <auto member>
struct ToSend {
  static constexpr bool kExists = Sendable<const typename Field<member>::Member&>;
  static_assert(kExists,
                "shmtree cannot send the member named above. Describe an aggregate with SHMTREE_FIELDS(Type, "
                "members...), or specialise shmtree::ValueOf");
};
/// The same for a member that cannot be received.
template <auto member>
struct ToReceive {
  using Type = typename Received<typename Field<member>::Member>::Type;
  static constexpr bool kExists = ReadableItem<Type>;
  static_assert(kExists,
                "shmtree cannot receive the member named above. Describe an aggregate with SHMTREE_FIELDS(Type, "
                "members...), or specialise shmtree::ItemAs");
};

template <class... Members>
struct Fields {
  const char* name;
  std::tuple<Members...> members;
};
template <class... Members>
constexpr Fields<Members...> fields_of(const char* name, Members... members) noexcept {
  return {name, {members...}};
}

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

Error missing_field(const Item& item, std::string_view type, std::string_view name);

/// Adds one member to a dict.
template <class Whole, auto member>
void add_field(Dict& dict, Whole& aggregate, const Field<member>& field) {
  if constexpr (ToSend<member>::kExists) {
    dict.add(field.name, Value(forward_part<Whole>(aggregate.*member)));
  }
}

/// Reads one member. Returns false with `error` set if that fails.
template <class T, auto member>
bool read_field(const Item& item, T& aggregate, const char* type, const Field<member>& field, Error& error) {
  using Wanted = typename ToReceive<member>::Type;
  if constexpr (ToReceive<member>::kExists) {
    const std::optional<Item> found = item.find(field.name);
    if (!found) {
      if constexpr (is_optional<Wanted>) return true;
      return error = missing_field(item, type, field.name), false;
    }
    Result<Wanted> value = found->template try_as<Wanted>();
    if (!value.ok()) return error = std::move(value).error(), false;
    if constexpr (std::is_array_v<typename Field<member>::Member>) {
      std::ranges::move(*value, aggregate.*member);
    } else {
      aggregate.*member = std::move(*value);
    }
  }
  return true;
}

}  // namespace detail

template <HasFields T>
struct ValueOf<T> {
  template <class Whole>
  static Value of(Whole&& aggregate) {
    const auto fields = shmtree_fields(static_cast<const T*>(nullptr));
    Dict dict;
    dict.reserve(std::tuple_size_v<decltype(fields.members)>);
    std::apply([&](const auto&... field) { (detail::add_field<Whole>(dict, aggregate, field), ...); }, fields.members);
    return dict;
  }
  static Value make(const T& aggregate) { return of(aggregate); }
  static Value make(T&& aggregate) { return of(std::move(aggregate)); }
};

template <HasFields T>
struct ItemAs<T> {
  static Result<T> make(const Item& item) {
    if (!item.is_dict()) return item.mismatch("dict");
    const auto fields = shmtree_fields(static_cast<const T*>(nullptr));
    T aggregate{};
    Error error;
    const bool complete = std::apply(
        [&](const auto&... field) { return (detail::read_field(item, aggregate, fields.name, field, error) && ...); },
        fields.members);
    if (!complete) return error;
    return aggregate;
  }
};

}  // namespace shmtree
