// Errors and results of every call that can fail.
//
// Thread safety: values; share them as you would any other value.
// Timeout, full and closed are ordinary outcomes here, and so is want of memory: no call that returns a Result throws,
// unless `value()` is asked of a failed one.
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

enum class Code : std::uint8_t {
  kFull,               // no room in the channel before the deadline
  kEmpty,              // no message before the deadline
  kTimeout,            // an acknowledgement, or a lock, did not come before the deadline
  kClosed,             // this end was closed here, or the stream has ended
  kShutDown,           // the queue was shut down
  kPeerDied,           // nobody is left who could serve this call and one of them was killed: `pids`
  kMessageTooLarge,    // the message is over the budget; waiting would not help
  kOutOfSharedMemory,  // held views, the machine or this process leave no memory
  kCorrupt,            // bytes that no sender of this version writes
  kPickleRefused,      // the message needs pickle, or a class, that is not allowed
  kIncompatible,       // not an arena, or one of another version
  kNotFound,           // no such name
  kExists,             // the name is in use
  kInvalid,            // an argument out of range
  kInterrupted,        // the caller's interrupt hook asked to stop
  kUnavailable,        // the arena's process cannot be reached (another PID namespace, not dumpable)
  kOs,                 // an operating system call failed: `os_errno`
};

std::string_view name_of(Code code) noexcept;

struct Error {
  Code code = Code::kOs;
  std::string message{};        // complete sentence that names the numbers
  int os_errno = 0;             // errno of the failed call, 0 when there was none
  std::vector<int> pids{};      // the killed processes, for kPeerDied
  std::uint64_t ticket = 0;     // the message concerned, for kCorrupt, and for kOutOfSharedMemory of one to be received
  std::uint64_t completed = 0;  // how many of several went through before this
};

// What `Result::value()` throws when there is no value.
class BadResult : public std::exception {
 public:
  explicit BadResult(Error error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

struct Unit {};

// A value or an Error. `[[nodiscard]]`: an ignored failure is a bug.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & { return check(), std::get<0>(state_); }
  const T& value() const& { return check(), std::get<0>(state_); }
  T&& value() && { return check(), std::get<0>(std::move(state_)); }

  // Unchecked access: undefined unless ok().
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }

  // Undefined unless !ok().
  const Error& error() const& noexcept { return *std::get_if<1>(&state_); }
  Error&& error() && noexcept { return std::move(*std::get_if<1>(&state_)); }
  Code code() const noexcept { return error().code; }

 private:
  void check() const {
    if (!ok()) throw BadResult(error());
  }
  std::variant<T, Error> state_;
};

using Status = Result<Unit>;
inline Status success() {
  return Unit{};
}

// What a call returns for which this process has no memory: kOutOfSharedMemory.
Error out_of_memory() noexcept;

// The result of `act`, or that one where it throws std::bad_alloc.
template <class Act>
auto or_out_of_memory(Act act) -> decltype(act()) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

}  // namespace shmtree
