// Reads the contents of one record from beginning to end. The bytes are untrusted and may change meanwhile, so each
// byte is read once.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace shmtree::recording {

// Failures are sticky: after a missing field or invalid text, every read returns an empty value, and wrong() returns
// the reason.
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
  // Returns nullptr if nothing is wrong.
  const char* wrong() const noexcept { return wrong_; }

 private:
  std::span<const std::byte> bytes(std::size_t count) noexcept;
  void fail(const char* why) noexcept;

  std::span<const std::byte> left_;
  const char* wrong_ = nullptr;
};

}  // namespace shmtree::recording
