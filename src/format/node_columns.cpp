#include "format/node_columns.h"

#include <bit>
#include <cstring>

#include "platform/hash.h"

namespace shmtree::format {

namespace {

// A fast hash of the length and the first and last bytes. It is weak, but separates the keys of one program well.
std::size_t hash_name(const char* text, std::size_t bytes) noexcept {
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  if (bytes >= 8) {
    std::memcpy(&head, text, 8);
    std::memcpy(&tail, text + bytes - 8, 8);
  } else if (bytes >= 4) {
    std::memcpy(&head, text, 4);
    std::memcpy(&tail, text + bytes - 4, 4);
  } else if (bytes != 0) {
    head = static_cast<std::uint8_t>(text[0]);
    tail = static_cast<std::uint64_t>(static_cast<std::uint8_t>(text[bytes / 2])) << 8 |
           static_cast<std::uint8_t>(text[bytes - 1]);
  }
  return platform::mixed(head ^ std::rotl(tail, 29) ^ bytes) >> 56;
}

}  // namespace

void NodeColumns::add_reference(std::size_t position) noexcept {
  if (position >= kinds()) return;  // memory ran out; finish() reports it
  kinds_[position] |= kMarked;
  begin_node(Kind::kReference, position);
}

std::uint32_t NodeColumns::add_name(std::string_view name) noexcept {
  std::uint32_t& cached = name_cache_[hash_name(name.data(), name.size())];
  if (cached < names_.size() && !text_.failed()) {
    const NameRef earlier = names_[cached];
    if (earlier.bytes == name.size() && std::memcmp(text_.data() + earlier.offset, name.data(), name.size()) == 0) {
      add_known_name(cached);
      return cached;
    }
  }
  cached = static_cast<std::uint32_t>(names_.size());
  if (name.size() < kLengthEscape) [[likely]] {
    if (std::uint8_t* lengths = lengths_.extend(2)) {
      lengths[0] = 0;
      lengths[1] = static_cast<std::uint8_t>(name.size());
    }
  } else {
    add_length(0);
    add_length(name.size());
  }
  names_.push({static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(name.size())});
  text_.append(name.data(), name.size());
  return cached;
}

}  // namespace shmtree::format
