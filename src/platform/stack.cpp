#include "platform/stack.h"

#include <pthread.h>

#include <cstdint>

namespace shmtree::platform {
namespace {

struct Bounds {
  std::uintptr_t low = 0, high = 0;  // both 0: not queried yet; equal but not 0: unknown
};

// Excludes the guard pages, which pthread_getattr_np() of some systems counts as stack.
Bounds ask() noexcept {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {1, 1};
  void* low = nullptr;
  std::size_t bytes = 0, guard = 0;
  const bool known = pthread_attr_getstack(&attributes, &low, &bytes) == 0 &&
                     pthread_attr_getguardsize(&attributes, &guard) == 0 && guard < bytes;
  pthread_attr_destroy(&attributes);
  if (!known) return {1, 1};
  const auto first = reinterpret_cast<std::uintptr_t>(low);
  return {first + guard, first + bytes};
}

thread_local Bounds bounds;

}  // namespace

bool has_stack(std::size_t bytes) noexcept {
  if (bounds.high == 0) bounds = ask();
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (here < bounds.low || here >= bounds.high) return true;
  return here - bounds.low >= bytes;
}

}  // namespace shmtree::platform
