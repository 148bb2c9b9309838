#include "format/node_columns.h"

#include <bit>
#include <cstring>

#include "platform/flat_table.h"

namespace shmtree::format {

// A fast hash of the length and the first and last bytes. The hash is weak, but the keys of one program rarely collide.
std::uint8_t NodeColumns::hash_of_name(std::string_view name) noexcept {
  const char* const text = name.data();
  const std::size_t bytes = name.size();
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
  return static_cast<std::uint8_t>(platform::mixed(head ^ std::rotl(tail, 29) ^ bytes) >> 56);
}

void NodeColumns::add_reference(std::size_t position) noexcept {
  if (position >= kinds()) return;  // memory ran out; finish() reports it
  kinds_[position] |= kMarked;
  begin_node(Kind::kReference, position);
}

std::uint32_t NodeColumns::add_name(std::string_view name) noexcept {
  return add_name(name, hash_of_name(name));
}

bool NodeColumns::is_name(std::uint32_t number, std::string_view name) const noexcept {
  const NameRef& earlier = names_[number];
  return !text_.failed() && std::string_view(text_.data() + earlier.offset, earlier.bytes) == name;
}

}  // namespace shmtree::format
