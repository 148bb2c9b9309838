// SHMTREE_DCHECK(condition) aborts the process with the condition and its location if an invariant does not hold.
// Compiled in if SHMTREE_DCHECKS is defined, as in test builds; otherwise the condition is not evaluated.
//
// Use it only for state that this process alone controls. Another process may have damaged words of shared memory, so
// those are checked and refused, never asserted.
#pragma once

#if defined(SHMTREE_DCHECKS)
#include <cstdio>
#include <cstdlib>

namespace shmtree::platform {

[[noreturn, gnu::noinline, gnu::cold]] inline void invariant_failed(const char* condition, const char* file,
                                                                    int line) noexcept {
  std::fprintf(stderr, "shmtree: %s:%d: invariant does not hold: %s\n", file, line, condition);
  std::abort();
}

}  // namespace shmtree::platform

#define SHMTREE_DCHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::shmtree::platform::invariant_failed(#condition, __FILE__, __LINE__))
#else
#define SHMTREE_DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#endif
