/// @file
/// Results and errors: the return types of all calls that can fail.
///
/// Thread safety: values; share them as you would any other value. Timeout, full, closed and lack of memory are
/// ordinary outcomes. A call that returns a Result does not throw. Only `value()` of a failed Result does.
#pragma once

/// @cond
#if __cplusplus < 202002L
#error "shmtree needs C++20: compile with -std=c++20, or set CMAKE_CXX_STANDARD to 20"
#define SHMTREE_NEEDS "C++20"
#include SHMTREE_NEEDS  // A failed include stops the compilation at once; #error lets the compiler continue.
#endif
/// @endcond

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shmtree {

namespace detail {
// The containers of a program that defines _GLIBCXX_DEBUG have another layout than those of a library built without it.
// Each program refers to the symbol for its own setting, and the library defines only the symbol for its setting. So a
// program with the other setting does not link, and the linker's message names the macro.
// NOLINTBEGIN(readability-identifier-naming): the linker prints them
#ifdef _GLIBCXX_DEBUG
extern const char library_compiled_with_GLIBCXX_DEBUG;
[[gnu::used]] inline const char* const kFittingLibrary = &library_compiled_with_GLIBCXX_DEBUG;
#else
extern const char library_compiled_without_GLIBCXX_DEBUG;
[[gnu::used]] inline const char* const kFittingLibrary = &library_compiled_without_GLIBCXX_DEBUG;
#endif
// NOLINTEND(readability-identifier-naming)
}  // namespace detail

/// Why a call failed.
enum class Code : std::uint8_t {
  kFull,               ///< No space in the channel before the deadline.
  kEmpty,              ///< No message before the deadline.
  kTimeout,            ///< No ack, or no lock, before the deadline.
  kClosed,             ///< This end was closed here, or the stream has ended.
  kShutDown,           ///< The queue was shut down. Receivers get this error once the queue is empty.
  kPeerDied,           ///< No process is left that could complete this call, and `pids` were killed or failed.
  kMessageTooLarge,    ///< The message exceeds the budget. Waiting would not help.
  kOutOfSharedMemory,  ///< No memory: views hold the arena's memory, or the machine or this process has no free memory.
  kCorrupt,            ///< The bytes are not those that a sender of this version writes.
  kPickleRefused,      ///< The message needs pickle, or a class, that is not allowed.
  kIncompatible,       ///< Not an arena, or an arena, handle, name, message or saved buffer of another version.
  kNotFound,           ///< No such name.
  kExists,             ///< The name is in use.
  kInvalid,            ///< An argument is out of range.
  kInterrupted,        ///< The caller's stop_token or interrupt hook asked to stop.
  kUnavailable,        ///< A process cannot be reached (not dumpable, other PID namespace), or a table is full.
  kOs,                 ///< A system call failed: `os_errno`.
  kOverrun,            ///< A subscriber with OnLag::kRaise has missed messages: `missed`.
  kRemoteError,        ///< A server failed the request: `kind`, `dropped`.
};

/// Returns the name of a code, as in the source.
std::string_view name_of(Code code) noexcept;

/// Describes why a call failed, for programs and for people.
struct Error {
  Code code = Code::kOs;  ///< The reason, for programs.
  std::string message{};  ///< A complete sentence with the numbers.
  int os_errno = 0;       ///< errno of the failed system call. 0: none.
  /// For kPeerDied: 0 if all of `pids` were killed. Otherwise the exit code of one that failed; -1: it has none.
  int exit_code = 0;
  /// The killed or failed processes, for kPeerDied, except those killed before they stored their pid.
  std::vector<int> pids{};
  /// Ticket of the message that could not be received, for kCorrupt and kOutOfSharedMemory.
  std::uint64_t ticket = 0;
  std::uint64_t completed = 0;  ///< For calls with several items: number that succeeded before the error.
  std::uint64_t missed = 0;     ///< Messages overwritten since the last report, for kOverrun.
  std::string kind{};           ///< Class of the server's exception, for kRemoteError; empty if there was none.
  bool dropped = false;         ///< For kRemoteError: the server dropped the request without an answer, or exited.
};

/// Thrown by `Result::value()` of a failed result.
class BadResult : public std::exception {
 public:
  /// Wraps an error.
  explicit BadResult(Error error) : error_(std::move(error)) {}
  /// Returns the error's message.
  const char* what() const noexcept override { return error_.message.c_str(); }
  /// Returns the error.
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

namespace detail {

// An Error in one word, which keeps a Result small: a code, or the address of an Error on the heap if it has more than
// a code. Addresses are even; a code is stored as an odd number. If there is no memory for the details, the code is
// kOutOfSharedMemory instead.
class ErrorPointer {
 public:
  ErrorPointer(Code code) noexcept : word_(2 * static_cast<std::uintptr_t>(code) + 1) {}
  ErrorPointer(Error error) noexcept;
  ErrorPointer(const ErrorPointer& other) noexcept : ErrorPointer(other.code()) {
    if (other.has_details()) *this = ErrorPointer(copy_of(*other));
  }
  ErrorPointer(ErrorPointer&& other) noexcept : word_(other.word_) { other.word_ = ErrorPointer(Code::kOs).word_; }
  ErrorPointer& operator=(ErrorPointer other) noexcept { return std::swap(word_, other.word_), *this; }
  ~ErrorPointer() {
    if (has_details()) destroy();
  }

  Code code() const noexcept { return has_details() ? (**this).code : static_cast<Code>(word_ / 2); }
  const Error& operator*() const noexcept;
  Error take() noexcept;  // Leaves only a code in the moved-from object.

 private:
  static Error copy_of(const Error& error) noexcept;
  bool has_details() const noexcept { return word_ % 2 == 0; }
  void destroy() noexcept;
  std::uintptr_t word_;
};

}  // namespace detail

/// The value of calls that return nothing.
struct Unit {};

/// A value or an Error. `[[nodiscard]]`: an ignored failure is a bug. The Error is stored in one word.
template <class T>
class [[nodiscard]] Result {
 public:
  /// Makes a successful result.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  /// Makes a failed result.
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  /// Makes a failed result with only a code.
  Result(Code code) : state_(std::in_place_index<1>, code) {}

  /// True if there is a value.
  bool ok() const noexcept { return state_.index() == 0; }
  /// The same.
  explicit operator bool() const noexcept { return ok(); }

  /// Returns the value. Throws BadResult with the error if there is none.
  T& value() & { return check(), std::get<0>(state_); }
  /// The same.
  const T& value() const& { return check(), std::get<0>(state_); }
  /// Moves the value out of a temporary. Returns it by value and not by reference, so that a range-for may loop over
  /// it.
  T value() && { return check(), std::get<0>(std::move(state_)); }

  /// Returns the value, or `other` if there is none.
  template <class Other>
  T value_or(Other&& other) const& {
    return ok() ? std::get<0>(state_) : static_cast<T>(std::forward<Other>(other));
  }
  /// Moves the value out of a temporary.
  template <class Other>
  T value_or(Other&& other) && {
    return ok() ? std::get<0>(std::move(state_)) : static_cast<T>(std::forward<Other>(other));
  }
  /// Returns the Result of next(value), or this error: `receiver.get().and_then(parse)`.
  template <class Next>
  auto and_then(Next next) && -> decltype(next(std::declval<T>())) {
    if (!ok()) return std::move(*this).error();
    return next(std::get<0>(std::move(state_)));
  }
  /// True if there is a value, and it equals `value`.
  friend bool operator==(const Result& result, const T& value) requires requires { value == value; }
  { return result.ok() && *result == value; }

  /// Unchecked access. Undefined unless ok().
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  /// The same.
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  /// Moves the value out of a temporary.
  T operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  /// Unchecked access, like operator*.
  T* operator->() & noexcept { return std::get_if<0>(&state_); }
  /// The same.
  const T* operator->() const& noexcept { return std::get_if<0>(&state_); }
  /// Does not compile, because nothing has checked the temporary, and a range-for would use it after its destruction.
  /// Use value().
  const T* operator->() const&& = delete;

  /// Returns the error. Undefined unless !ok().
  const Error& error() const& noexcept { return **std::get_if<1>(&state_); }
  /// The same for a temporary.
  Error error() && noexcept { return std::get_if<1>(&state_)->take(); }
  /// Returns the error's code. Undefined unless !ok().
  Code code() const noexcept { return std::get_if<1>(&state_)->code(); }

 private:
  void check() const {
    if (!ok()) throw BadResult(error());
  }
  std::variant<T, detail::ErrorPointer> state_;
};

/// The result of a call that returns nothing.
using Status = Result<Unit>;
/// Returns a successful Status.
inline Status success() {
  return Unit{};
}

/// Returns the error kOutOfSharedMemory for a call that had no memory in this process.
Error out_of_memory() noexcept;

/// Returns the result of `act`, or out_of_memory() if it throws std::bad_alloc.
template <class Act>
auto or_out_of_memory(Act act) -> decltype(act()) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

}  // namespace shmtree
