#include "platform/copy.h"

#include <cstdint>
#include <cstring>

#include "platform/never_destroyed.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shmtree::platform {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kAhead = 8 * kCacheLine;  // the hardware prefetcher stops at page boundaries
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 8;

void stream_line(std::byte* out, const std::byte* in) noexcept {
  const auto* from = reinterpret_cast<const __m128i*>(in);
  auto* to = reinterpret_cast<__m128i*>(out);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a), _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c), _mm_stream_si128(to + 3, d);
}

// Copies a line of each page in turn: memory serves several pages at once faster than one after the other.
__attribute__((target("avx2"))) void stream_pages(std::byte* out, const std::byte* in) noexcept {
  for (std::size_t line = 0; line < kPage; line += kCacheLine) {
    for (std::size_t at = line; at < kPages * kPage; at += kPage) {
      __builtin_prefetch(in + at + kAhead);
      const auto* from = reinterpret_cast<const __m256i*>(in + at);
      auto* to = reinterpret_cast<__m256i*>(out + at);
      const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
      _mm256_stream_si256(to, a), _mm256_stream_si256(to + 1, b);
    }
  }
}

void stream(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
  const std::size_t head = (kCacheLine - reinterpret_cast<std::uintptr_t>(out) % kCacheLine) % kCacheLine;
  std::memcpy(out, in, head);
  std::size_t at = head;
  if (computed_once<[] { return __builtin_cpu_supports("avx2") != 0; }>()) {
    for (; at + kPages * kPage <= bytes; at += kPages * kPage) stream_pages(out + at, in + at);
  }
  for (; at + kCacheLine <= bytes; at += kCacheLine) {
    __builtin_prefetch(in + at + kAhead);
    stream_line(out + at, in + at);
  }
  _mm_sfence();  // streaming stores are not ordered with others
  std::memcpy(out + at, in + at, bytes - at);
}

}  // namespace
#endif

void copy_bytes(void* out, const void* in, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if (bytes >= kStreamedBytes) {
    stream(static_cast<std::byte*>(out), static_cast<const std::byte*>(in), bytes);
    return;
  }
#endif
  if (bytes != 0) std::memcpy(out, in, bytes);
}

#if defined(__SANITIZE_THREAD__)
// Hidden from ThreadSanitizer, since the caller expects the race.
__attribute__((no_sanitize_thread, optimize("no-tree-loop-distribute-patterns"))) void copy_racing(
    void* out, const void* in, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; ++at) static_cast<char*>(out)[at] = static_cast<const char*>(in)[at];
}
#else
void copy_racing(void* out, const void* in, std::size_t bytes) noexcept {
  copy_bytes(out, in, bytes);
}
#endif

}  // namespace shmtree::platform
