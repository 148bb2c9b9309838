/// @file
/// Errors and results of every call that can fail.
///
/// Thread safety: values; share them as you would any other value.
/// Timeout, full and closed are ordinary outcomes here, and so is want of memory: no call that returns a Result throws,
/// unless `value()` is asked of a failed one.
#pragma once

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
  kFull,               ///< no room in the channel before the deadline
  kEmpty,              ///< no message before the deadline
  kTimeout,            ///< an acknowledgement, or a lock, did not come before the deadline
  kClosed,             ///< this end was closed here, or the stream has ended
  kShutDown,           ///< the queue was shut down; for who receives, and nothing is left of it
  kPeerDied,           ///< nobody is left who could serve this call and one of them was killed: `pids`
  kMessageTooLarge,    ///< the message is over the budget; waiting would not help
  kOutOfSharedMemory,  ///< held views, the machine or this process leave no memory
  kCorrupt,            ///< bytes that no sender of this version writes
  kPickleRefused,      ///< the message needs pickle, or a class, that is not allowed
  kIncompatible,       ///< not an arena; another version of an arena, handle, name, message or saved buffer
  kNotFound,           ///< no such name
  kExists,             ///< the name is in use
  kInvalid,            ///< an argument out of range
  kInterrupted,        ///< the caller's interrupt hook asked to stop
  kUnavailable,        ///< the arena's process cannot be reached (not dumpable, other PID namespace), or is full
  kOs,                 ///< an operating system call failed: `os_errno`
  kOverrun,            ///< a subscriber that is told has missed messages: `missed`
};

/// The name of a code, as it is written.
std::string_view name_of(Code code) noexcept;

/// Why a call failed, for programs and for people.
struct Error {
  Code code = Code::kOs;     ///< what programs look at
  std::string message{};     ///< complete sentence that names the numbers
  int os_errno = 0;          ///< errno of the failed call, 0 when there was none
  std::vector<int> pids{};   ///< the killed processes, for kPeerDied
  std::uint64_t ticket = 0;  ///< the message concerned, for kCorrupt, and for kOutOfSharedMemory of one to be received
  std::uint64_t completed = 0;  ///< how many of several went through before this
  std::uint64_t missed = 0;     ///< messages that were overwritten since this was last told, for kOverrun
};

/// What `Result::value()` throws when there is no value.
class BadResult : public std::exception {
 public:
  /// Of that error.
  explicit BadResult(Error error) : error_(std::move(error)) {}
  /// The error's message.
  const char* what() const noexcept override { return error_.message.c_str(); }
  /// All of it.
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
  Error take() noexcept;  // leaves a code behind

 private:
  static Error copy_of(const Error& error) noexcept;
  bool has_details() const noexcept { return word_ % 2 == 0; }
  void destroy() noexcept;
  std::uintptr_t word_;
};

}  // namespace detail

/// The value of calls that return none.
struct Unit {};

/// A value or an Error. `[[nodiscard]]`: an ignored failure is a bug. The Error is stored in one word.
template <class T>
class [[nodiscard]] Result {
 public:
  /// A value.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  /// An error.
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  /// An error that is only a code.
  Result(Code code) : state_(std::in_place_index<1>, code) {}

  /// Whether there is a value.
  bool ok() const noexcept { return state_.index() == 0; }
  /// The same.
  explicit operator bool() const noexcept { return ok(); }

  /// The value, which is this object's own. Throws BadResult with the error when there is none.
  T& value() & { return check(), std::get<0>(state_); }
  /// The same.
  const T& value() const& { return check(), std::get<0>(state_); }
  /// The same, of a temporary.
  T&& value() && { return check(), std::get<0>(std::move(state_)); }

  /// Unchecked access: undefined unless ok().
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  /// The same.
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  /// The same, of a temporary.
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  /// The same.
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  /// The same.
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }

  /// Undefined unless !ok().
  const Error& error() const& noexcept { return **std::get_if<1>(&state_); }
  /// The same, of a temporary.
  Error error() && noexcept { return std::get_if<1>(&state_)->take(); }
  /// The error's code; undefined unless !ok().
  Code code() const noexcept { return std::get_if<1>(&state_)->code(); }

 private:
  void check() const {
    if (!ok()) throw BadResult(error());
  }
  std::variant<T, detail::ErrorPointer> state_;
};

/// Of a call that returns nothing but whether it went well.
using Status = Result<Unit>;
/// The Status of one that did.
inline Status success() {
  return Unit{};
}

/// What a call returns for which this process has no memory: kOutOfSharedMemory.
Error out_of_memory() noexcept;

/// The result of `act`, or that one where it throws std::bad_alloc.
template <class Act>
auto or_out_of_memory(Act act) -> decltype(act()) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

}  // namespace shmtree
