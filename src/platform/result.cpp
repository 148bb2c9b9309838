#include "shmtree/result.h"

namespace shmtree {

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
  }
  return "unknown";
}

// The second text is short enough to need no memory itself.
Error out_of_memory() noexcept {
  try {
    return Error{.code = Code::kOutOfSharedMemory, .message = "This process has no memory left for the call."};
  } catch (const std::bad_alloc&) {
    return Error{.code = Code::kOutOfSharedMemory, .message = "out of memory"};
  }
}

}  // namespace shmtree
