#include "shmtree/base/result.h"

#include <array>
#include <cstddef>

#include "platform/never_destroyed.h"

namespace shmtree {
namespace {

constexpr std::size_t kCodes = static_cast<std::size_t>(Code::kRemoteError) + 1;

bool has_more_than_its_code(const Error& error) noexcept {
  return !error.message.empty() || error.os_errno != 0 || !error.pids.empty() || error.ticket != 0 ||
         error.completed != 0 || error.missed != 0 || !error.kind.empty() || error.dropped;
}

// An Error without details for each code.
struct ErrorsOfCodes {
  ErrorsOfCodes() {
    for (std::size_t code = 0; code < kCodes; ++code) errors[code].code = static_cast<Code>(code);
  }
  std::array<Error, kCodes> errors;
};

const Error& error_of(std::uintptr_t code) noexcept {
  return platform::never_destroyed<ErrorsOfCodes>().errors[code];
}

}  // namespace

#ifdef _GLIBCXX_DEBUG
const char detail::library_compiled_with_GLIBCXX_DEBUG = 0;
#else
const char detail::library_compiled_without_GLIBCXX_DEBUG = 0;
#endif

std::string_view name_of(Code code) noexcept {
  switch (code) {
    case Code::kFull: return "full";
    case Code::kEmpty: return "empty";
    case Code::kTimeout: return "timeout";
    case Code::kClosed: return "closed";
    case Code::kShutDown: return "shut down";
    case Code::kPeerDied: return "peer died";
    case Code::kMessageTooLarge: return "message too large";
    case Code::kOutOfSharedMemory: return "out of shared memory";
    case Code::kCorrupt: return "corrupt";
    case Code::kPickleRefused: return "pickle refused";
    case Code::kIncompatible: return "incompatible";
    case Code::kNotFound: return "not found";
    case Code::kExists: return "exists";
    case Code::kInvalid: return "invalid";
    case Code::kInterrupted: return "interrupted";
    case Code::kUnavailable: return "unavailable";
    case Code::kOs: return "operating system error";
    case Code::kOverrun: return "overrun";
    case Code::kRemoteError: return "remote error";
  }
  return "unknown";
}

namespace detail {

ErrorPointer::ErrorPointer(Error error) noexcept : ErrorPointer(error.code) {
  if (!has_more_than_its_code(error)) return;
  auto* details = new (std::nothrow) Error(std::move(error));
  *this = ErrorPointer(Code::kOutOfSharedMemory);
  if (details != nullptr) word_ = reinterpret_cast<std::uintptr_t>(details);
}

const Error& ErrorPointer::operator*() const noexcept {
  return has_details() ? *reinterpret_cast<const Error*>(word_) : error_of(word_ / 2);
}

Error ErrorPointer::take() noexcept {
  return has_details() ? std::move(*reinterpret_cast<Error*>(word_)) : Error{.code = code()};
}

Error ErrorPointer::copy_of(const Error& error) noexcept {
  try {
    return error;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

void ErrorPointer::destroy() noexcept {
  delete reinterpret_cast<Error*>(word_);
}

}  // namespace detail

// The second text is short enough to need no allocation.
Error out_of_memory() noexcept {
  try {
    return Error{.code = Code::kOutOfSharedMemory, .message = "This process has no memory left for the call."};
  } catch (const std::bad_alloc&) {
    return Error{.code = Code::kOutOfSharedMemory, .message = "out of memory"};
  }
}

}  // namespace shmtree
