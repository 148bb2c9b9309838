// A growable array of plain values: one column of a frame under construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "platform/dcheck.h"

namespace shmtree::format {

// Differs from std::vector in three ways. An append consists of a compare and a store, which are always inlined.
// clear() keeps a bounded amount of memory. Running out of memory sets a sticky flag instead of throwing in the middle
// of a walk.
template <class T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Column() = default;
  Column(Column&& other) noexcept { swap(other); }
  Column& operator=(Column&& other) noexcept {
    Column moved(std::move(other));
    swap(moved);
    return *this;
  }
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  ~Column() { std::free(begin_); }

  [[gnu::always_inline]] void push(T value) noexcept {
    if (end_ == limit_ && !grow(1)) [[unlikely]]
      return;
    *end_++ = value;
  }

  [[gnu::always_inline]] void append(const void* values, std::size_t count) noexcept {
    if (T* out = extend(count)) std::memcpy(static_cast<void*>(out), values, count * sizeof(T));
  }

  // Appends `count` values for the caller to fill. Returns nullptr if memory ran out or `count` is 0.
  [[gnu::always_inline]] T* extend(std::size_t count) noexcept {
    if (count > static_cast<std::size_t>(limit_ - end_) && !grow(count)) [[unlikely]]
      return nullptr;
    if (count == 0) return nullptr;
    T* out = end_;
    end_ += count;
    return out;
  }

  // Keeps the memory, unless it is more than a message usually needs.
  void clear() noexcept {
    end_ = begin_;
    failed_ = false;
    if (capacity() * sizeof(T) > kMaxIdleBytes) [[unlikely]] {
      std::free(begin_);
      begin_ = end_ = limit_ = nullptr;
    }
  }

  void truncate(std::size_t count) noexcept {
    SHMTREE_DCHECK(count <= size());
    end_ = begin_ + count;
  }

  T* data() noexcept { return begin_; }
  const T* data() const noexcept { return begin_; }
  T& operator[](std::size_t i) noexcept {
    SHMTREE_DCHECK(i < size());
    return begin_[i];
  }
  const T& operator[](std::size_t i) const noexcept {
    SHMTREE_DCHECK(i < size());
    return begin_[i];
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(end_ - begin_); }
  std::size_t bytes() const noexcept { return size() * sizeof(T); }
  bool empty() const noexcept { return begin_ == end_; }
  T* begin() noexcept { return begin_; }
  T* end() noexcept { return end_; }
  const T* begin() const noexcept { return begin_; }
  const T* end() const noexcept { return end_; }

  // Returns true if memory ran out and an append was dropped since the last clear().
  bool failed() const noexcept { return failed_; }

 private:
  static constexpr std::size_t kMaxIdleBytes = std::size_t{4} << 20;

  std::size_t capacity() const noexcept { return static_cast<std::size_t>(limit_ - begin_); }

  [[gnu::noinline]] bool grow(std::size_t count) noexcept {
    const std::size_t used = size();
    if (count > SIZE_MAX / sizeof(T) / 4 - used) return failed_ = true, false;
    std::size_t wanted = capacity() < 32 ? 64 : 2 * capacity();
    if (wanted < used + count) wanted = used + count;
    auto* grown = static_cast<T*>(std::realloc(static_cast<void*>(begin_), wanted * sizeof(T)));
    if (grown == nullptr) return failed_ = true, false;
    begin_ = grown;
    end_ = grown + used;
    limit_ = grown + wanted;
    return true;
  }

  void swap(Column& other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    std::swap(limit_, other.limit_);
    std::swap(failed_, other.failed_);
  }

  T* begin_ = nullptr;
  T* end_ = nullptr;
  T* limit_ = nullptr;
  bool failed_ = false;
};

}  // namespace shmtree::format
