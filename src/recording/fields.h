// Reads the content of one record from its beginning to its end. Every byte may be anything, and another one the next
// time: each is read once.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace shmtree::recording {

// After what is not there, or is no text, it gives nothing any more; wrong() says why.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> content) noexcept : left_(content) {}

  template <class T>
  T number() noexcept {
    T value{};
    const std::span<const std::byte> from = bytes(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string text();
  Fields map() noexcept { return Fields(bytes(number<std::uint32_t>())); }

  bool at_end() const noexcept { return left_.empty(); }
  // Null: nothing.
  const char* wrong() const noexcept { return wrong_; }

 private:
  std::span<const std::byte> bytes(std::size_t count) noexcept;
  void fail(const char* why) noexcept;

  std::span<const std::byte> left_;
  const char* wrong_ = nullptr;
};

}  // namespace shmtree::recording
