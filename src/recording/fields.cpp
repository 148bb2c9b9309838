#include "recording/fields.h"

#include "platform/text.h"

namespace shmtree::recording {

std::span<const std::byte> Fields::bytes(std::size_t count) noexcept {
  if (count > left_.size()) {
    fail("a length in it exceeds the record");
    return {};
  }
  const std::span<const std::byte> found = left_.first(count);
  left_ = left_.subspan(count);
  return found;
}

std::string Fields::text() {
  const std::span<const std::byte> from = bytes(number<std::uint32_t>());
  std::string copy(reinterpret_cast<const char*>(from.data()), from.size());
  if (platform::is_strict_utf8(copy)) return copy;
  fail("a text is not UTF-8");
  return {};
}

void Fields::fail(const char* why) noexcept {
  if (wrong_ == nullptr) wrong_ = why;
  left_ = {};
}

}  // namespace shmtree::recording
