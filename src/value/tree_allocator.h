// Allocates a shared object together with extra memory behind it.
//
// A thread keeps the memory that it frees for its next object of about the same size, because successive messages
// usually have about the same size. The heap is slower: it coalesces and splits freed memory above 1 KiB each time. A
// thread keeps only a few allocations, and no large ones.
//
// Thread safety: any thread may call the functions, and free what another one has allocated. None for a Trailing or
// Rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "platform/dcheck.h"

namespace shmtree::value {

void* allocate_memory(std::size_t bytes);
void free_memory(void* extra, std::size_t bytes) noexcept;

// For std::allocate_shared: allocates at least `extra` bytes behind the object.
template <class T>
struct TrailingAllocator {
  using value_type = T;
  explicit TrailingAllocator(std::size_t bytes) noexcept : extra(bytes) {}
  template <class U>
  TrailingAllocator(const TrailingAllocator<U>& other) noexcept : extra(other.extra) {}  // NOLINT: as allocators are

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_memory(count * sizeof(T) + extra)); }
  void deallocate(T* object, std::size_t count) noexcept { free_memory(object, count * sizeof(T) + extra); }
  bool operator==(const TrailingAllocator&) const noexcept = default;

  std::size_t extra;
};

// Hands out the memory behind an object, and then memory of the heap. Frees the heap memory only in its destructor.
class Trailing {
 public:
  Trailing(void* begin, std::size_t bytes) noexcept : at_(static_cast<std::byte*>(begin)), end_(at_ + bytes) {}

  void* allocate(std::size_t bytes, std::size_t alignment) {
    const auto left = static_cast<std::size_t>(end_ - at_);
    const std::size_t padding = -std::bit_cast<std::uintptr_t>(at_) & (alignment - 1);
    if (padding > left || bytes > left - padding) [[unlikely]]
      return allocate_more(bytes, alignment);
    return std::exchange(at_, at_ + padding + bytes) + padding;
  }

 private:
  [[gnu::noinline]] void* allocate_more(std::size_t bytes, std::size_t alignment) {
    more_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes + alignment));
    at_ = more_.back().get();
    end_ = at_ + bytes + alignment;
    return allocate(bytes, alignment);
  }

  std::byte* at_;
  std::byte* end_;
  std::vector<std::unique_ptr<std::byte[]>> more_{};
};

// A vector of plain values in such memory.
template <class T>
class Rows {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Allocates memory for `count` values.
  Rows(Trailing& memory, std::size_t count)
      : memory_(memory), data_(allocate(count)), capacity_(static_cast<std::uint32_t>(count)) {}

  [[gnu::always_inline]] void push_back(const T& value) {
    if (size_ == capacity_) [[unlikely]]
      grow(1);
    new (data_ + size_) T(value);
    ++size_;
  }
  void append(std::span<const T> values) {
    if (values.size() > capacity_ - size_) [[unlikely]]
      grow(values.size());
    if (!values.empty()) std::memcpy(static_cast<void*>(data_ + size_), values.data(), values.size_bytes());
    size_ += static_cast<std::uint32_t>(values.size());
  }
  void truncate(std::size_t count) noexcept {
    SHMTREE_DCHECK(count <= size_);
    size_ = static_cast<std::uint32_t>(count);
  }
  std::uint32_t size() const noexcept { return size_; }
  T* data() const noexcept { return data_; }
  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + size_; }
  T& operator[](std::size_t i) noexcept { return SHMTREE_DCHECK(i < size_), data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return SHMTREE_DCHECK(i < size_), data_[i]; }

 private:
  T* allocate(std::size_t count) { return static_cast<T*>(memory_.allocate(count * sizeof(T), alignof(T))); }
  [[gnu::noinline]] void grow(std::size_t more) {
    const std::size_t count = std::max<std::size_t>(size_ + more, 2 * size_);
    T* const grown = allocate(count);
    if (size_ != 0) std::memcpy(static_cast<void*>(grown), data_, size_ * sizeof(T));
    data_ = grown;
    capacity_ = static_cast<std::uint32_t>(count);
  }

  Trailing& memory_;
  T* data_;
  std::uint32_t size_ = 0, capacity_;
};

}  // namespace shmtree::value
