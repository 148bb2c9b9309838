#include "platform/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shmtree::platform {

namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kAhead = 8 * kCacheLine;  // the hardware prefetcher stops at page boundaries
constexpr std::size_t kPage = 4096;
// Distance of the copies that are made at a time, in their pages. Streamed to addresses that are multiples of a page
// apart, rows of 16 KB took 40 times as long.
constexpr std::size_t kSkew = kPage / 4;

std::size_t bytes_to_line(const std::byte* at) noexcept {
  return (kCacheLine - reinterpret_cast<std::uintptr_t>(at) % kCacheLine) % kCacheLine;
}

#if defined(__x86_64__)
void stream_line(std::byte* out, const std::byte* in) noexcept {
  const auto* from = reinterpret_cast<const __m128i*>(in);
  auto* to = reinterpret_cast<__m128i*>(out);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a), _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c), _mm_stream_si128(to + 3, d);
}

constexpr std::size_t kStretch = 8 * kPage;

void stream(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
  SideBySide all(Stores::kStreamed);
  for (std::size_t at = 0; at < bytes; at += kStretch) all.add(out + at, in + at, std::min(bytes - at, kStretch));
}
#endif

// Copies a line to an aligned address, and prefetches a later one.
template <Stores kStores>
void copy_line(std::byte* out, const std::byte* in) noexcept {
  __builtin_prefetch(in + kAhead);
#if defined(__x86_64__)
  if constexpr (kStores == Stores::kStreamed) return stream_line(out, in);
#endif
  __builtin_prefetch(out + kAhead, 1);
  std::memcpy(out, in, kCacheLine);
}

}  // namespace

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

// --- SideBySide

// Copies the first bytes.
void SideBySide::Copy::advance(std::size_t count) noexcept {
  std::memcpy(out, in, count);
  *this = {out + count, in + count, bytes - count};
}

// Copies up to the first line of the next copy, and leaves the rest in `copy`. Copies that have no whole line are made
// at once. Returns false if there are no more copies.
bool SideBySide::begin_next(Copy& copy) noexcept {
  while (begun_ < count_) {
    copy = copies_[begun_++];
    if (begun_ + kWays <= count_) {  // the copy that begins some time after this one: its lines, and its pages
      const Copy& later = copies_[begun_ + kWays - 1];
      for (std::size_t at = kCacheLine; at < std::min(later.bytes, kAhead / 2); at += kCacheLine) {
        __builtin_prefetch(later.in + at);
      }
      for (std::size_t at = 0; at < later.bytes; at += kPage) __builtin_prefetch(later.in + at);
    }
    const std::size_t head = bytes_to_line(copy.out);
    if (copy.bytes < head + kCacheLine) {
      std::memcpy(copy.out, copy.in, copy.bytes);
      continue;
    }
    copy.advance(head);
    return true;
  }
  return false;
}

template <Stores kStores>
void SideBySide::copy_all() noexcept {
  std::array<Copy, kWays> open{};
  std::size_t count = 0;
  while (count < kWays && begin_next(open[count])) {
    open[count].advance(std::min(count * kSkew, open[count].bytes / kCacheLine * kCacheLine));
    ++count;
  }
  while (count == kWays) {
    const std::size_t least = std::ranges::min(open, {}, &Copy::bytes).bytes, lines = least - least % kCacheLine;
    const auto [a, b, c, d] = open;  // in registers
    for (std::size_t at = 0; at < lines; at += kCacheLine) {
      copy_line<kStores>(a.out + at, a.in + at);
      copy_line<kStores>(b.out + at, b.in + at);
      copy_line<kStores>(c.out + at, c.in + at);
      copy_line<kStores>(d.out + at, d.in + at);
    }
    for (std::size_t i = 0; i < count;) {
      Copy& each = open[i];
      each = {each.out + lines, each.in + lines, each.bytes - lines};
      if (each.bytes < kCacheLine) {
        each.advance(each.bytes);
        if (!begin_next(each)) {
          each = open[--count];
          continue;
        }
      }
      ++i;
    }
  }
  for (std::size_t i = 0; i < count; ++i) open[i].advance(open[i].bytes);
}

void SideBySide::flush() noexcept {
  begun_ = 0;
#if defined(__SANITIZE_THREAD__)
  for (; begun_ < count_; ++begun_) copy_racing(copies_[begun_].out, copies_[begun_].in, copies_[begun_].bytes);
#else
  if (stores_ == Stores::kStreamed) {
    copy_all<Stores::kStreamed>();
#if defined(__x86_64__)
    _mm_sfence();
#endif
  } else {
    copy_all<Stores::kCached>();
  }
#endif
  count_ = 0;
}

}  // namespace shmtree::platform
