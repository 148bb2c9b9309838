/// @file
/// Sends the standard library's variants, smart pointers, times and paths as Values, and converts Items to them.
///
///     sender.put(shmtree::Dict{{"timeout", 250ms}, {"goal", std::variant<int, std::string>("dock")}});
///     auto timeout = item["timeout"].as<std::chrono::milliseconds>();
///
/// | C++                                     | sent as, and received from                                           |
/// |-----------------------------------------|----------------------------------------------------------------------|
/// | std::variant, std::monostate            | the form of its alternative, None for monostate; received as the     |
/// |                                         | first alternative that fits                                          |
/// | std::unique_ptr, std::shared_ptr        | None, or the form of the object                                      |
/// | std::chrono::duration                   | float in seconds; received from any real number, and from timedelta  |
/// | std::chrono::system_clock::time_point   | float in seconds since 1970-01-01 UTC, as of Python's time.time()    |
/// | std::filesystem::path                   | str; received from str and pathlib's paths                           |
///
/// A time is rounded to the nearest tick of the requested type. Errors: kInvalid with the path of an item that does not
/// fit, or of a time that is out of range.
///
/// Ownership: as for containers.h. Thread safety: that of the types.
#pragma once

#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <ratio>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "shmtree/containers.h"
#include "shmtree/item.h"
#include "shmtree/value.h"

namespace shmtree {

namespace detail {

/// std::filesystem::path, without its header, which takes long to compile.
template <class T>
concept Path = std::constructible_from<T, const std::string&> && requires(const T& path) {
  { path.native() } -> std::same_as<const std::string&>;
  path.lexically_normal();
};

/// Returns the seconds of a real number or a timedelta.
Result<double> seconds_of(const Item& item);

template <class T>
struct PointeeOf;
template <class T>
struct PointeeOf<std::unique_ptr<T>> {
  using Type = T;
};
template <class T>
struct PointeeOf<std::shared_ptr<T>> {
  using Type = T;
};
template <class T>
concept Pointer = requires {
  typename PointeeOf<T>::Type;
};

template <class Variant, std::size_t i = 0>
Result<Variant> first_that_fits(const Item& item) {
  using Alternative = std::variant_alternative_t<i, Variant>;
  Result<Alternative> found = item.template try_as<Alternative>();
  if (found.ok()) return Variant(std::in_place_index<i>, std::move(*found));
  if (found.code() != Code::kInvalid && found.code() != Code::kNotFound) return std::move(found).error();
  if constexpr (i + 1 < std::variant_size_v<Variant>) {
    return first_that_fits<Variant, i + 1>(item);
  } else {
    return item.mismatch("one of the alternatives of a variant");
  }
}

}  // namespace detail

template <>
struct ValueOf<std::monostate> {
  static Value make(std::monostate) noexcept { return {}; }
};
template <>
struct ItemAs<std::monostate> {
  static Result<std::monostate> make(const Item& item) {
    if (item.is_none()) return std::monostate();
    return item.mismatch("none");
  }
};

template <class... T>
requires(detail::SendableItem<T>&&...) struct ValueOf<std::variant<T...>> {
  template <class Whole>
  static Value of(Whole&& variant) {
    return std::visit([](auto& held) { return Value(detail::forward_part<Whole>(held)); }, variant);
  }
  static Value make(const std::variant<T...>& variant) { return of(variant); }
  static Value make(std::variant<T...>&& variant) { return of(std::move(variant)); }
};
template <class... T>
struct ItemAs<std::variant<T...>> {
  static Result<std::variant<T...>> make(const Item& item) { return detail::first_that_fits<std::variant<T...>>(item); }
};

template <detail::Pointer T>
requires detail::SendableItem<typename detail::PointeeOf<T>::Type>
struct ValueOf<T> {
  static Value make(const T& pointer) {
    const auto* const object = pointer.get();
    return object != nullptr ? Value(*object) : Value();
  }
};
template <detail::Pointer T>
struct ItemAs<T> {
  static Result<T> make(const Item& item) {
    using Pointee = typename detail::PointeeOf<T>::Type;
    if (item.is_none()) return T();
    Result<Pointee> object = item.template try_as<Pointee>();
    if (!object.ok()) return std::move(object).error();
    return T(new Pointee(std::move(*object)));
  }
};

template <class Rep, class Period>
struct ValueOf<std::chrono::duration<Rep, Period>> {
  static Value make(std::chrono::duration<Rep, Period> time) noexcept {
    return std::chrono::duration<double>(time).count();
  }
};
template <class Rep, class Period>
struct ItemAs<std::chrono::duration<Rep, Period>> {
  static Result<std::chrono::duration<Rep, Period>> make(const Item& item) {
    const Result<double> seconds = detail::seconds_of(item);
    if (!seconds.ok()) return seconds.error();
    const double ticks = *seconds * Period::den / Period::num;
    if constexpr (std::is_floating_point_v<Rep>) {
      return std::chrono::duration<Rep, Period>(static_cast<Rep>(ticks));
    } else {
      using Limits = std::numeric_limits<Rep>;
      constexpr double kEnd = 2 * static_cast<double>(Limits::max() / 2 + 1);  // exact, unlike the maximum of 64 bits
      const double whole = std::round(ticks);
      if (!(whole >= static_cast<double>(Limits::min()) && whole < kEnd)) {  // also for NaN
        return Error{.code = Code::kInvalid,
                     .message = std::to_string(*seconds) + " s do not fit into the requested std::chrono::duration"};
      }
      return std::chrono::duration<Rep, Period>(static_cast<Rep>(whole));
    }
  }
};

template <class Duration>
struct ValueOf<std::chrono::time_point<std::chrono::system_clock, Duration>> {
  static Value make(std::chrono::time_point<std::chrono::system_clock, Duration> time) noexcept {
    return time.time_since_epoch();
  }
};
template <class Duration>
struct ItemAs<std::chrono::time_point<std::chrono::system_clock, Duration>> {
  using Time = std::chrono::time_point<std::chrono::system_clock, Duration>;
  static Result<Time> make(const Item& item) {
    const Result<Duration> since = ItemAs<Duration>::make(item);
    if (!since.ok()) return since.error();
    return Time(*since);
  }
};

template <detail::Path T>
struct ValueOf<T> {
  static Value make(const T& path) { return path.native(); }
};
template <detail::Path T>
struct ItemAs<T> {
  static Result<T> make(const Item& item) {
    Result<std::string> text = item.try_as<std::string>();
    if (!text.ok()) return std::move(text).error();
    return T(std::move(*text));
  }
};

}  // namespace shmtree
