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
#define SHMTREE_NEXT_FIELD(Type, member, ...)           \
  , ::shmtree::detail::field_of(#member, &Type::member) \
        __VA_OPT__(SHMTREE_NEXT_FIELD_AGAIN SHMTREE_PARENS(Type, __VA_ARGS__))
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

template <class T, class Member>
struct Field {
  using Type = Member;
  const char* name;
  Member T::*member;
};
template <class T, class Member>
constexpr Field<T, Member> field_of(const char* name, Member T::*member) noexcept {
  return {name, member};
}

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

/// Reads one member. Returns false with `error` set if that fails.
template <class T, class Member>
bool read_field(const Item& item, T& aggregate, const char* type, const Field<T, Member>& field, Error& error) {
  const std::optional<Item> found = item.find(field.name);
  if (!found) {
    if constexpr (is_optional<Member>) return true;
    return error = missing_field(item, type, field.name), false;
  }
  Result<Member> value = found->template try_as<Member>();
  if (!value.ok()) return error = std::move(value).error(), false;
  aggregate.*field.member = std::move(*value);
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
    std::apply(
        [&](const auto&... field) {
          (dict.add(field.name, Value(detail::forward_part<Whole>(aggregate.*field.member))), ...);
        },
        fields.members);
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
