// Implements Item: Cap'n Proto messages as bytes. shmtree/capnp.h makes readers of them, with the program's own Cap'n
// Proto library.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include "shmtree/item.h"
#include "value/tree.h"

namespace shmtree {

namespace detail {

namespace {

std::string in_hex(std::uint64_t id) {
  char digits[20];
  std::snprintf(digits, sizeof(digits), "@0x%016llx", static_cast<unsigned long long>(id));
  return digits;
}

}  // namespace

Error other_schema(std::uint64_t found, std::uint64_t wanted) {
  return Error{.code = Code::kInvalid,
               .message = "expected a Cap'n Proto message of type " + in_hex(wanted) + ", found type " + in_hex(found)};
}

Error unaligned_segment() {
  return Error{.code = Code::kInvalid,
               .message =
                   "the Cap'n Proto message is not aligned to 8 bytes, because its frame is not; pass "
                   "CapnpOptions{.copy = true}"};
}

Error no_capnp_root(const char* why) {
  return Error{.code = Code::kCorrupt,
               .message = std::string("cannot read the root of the Cap'n Proto message: ") + why};
}

}  // namespace detail

Result<CapnpRef> Item::capnp_segments() const {
  return or_out_of_memory([this]() -> Result<CapnpRef> {
    const value::Node& node = value::node_of(tree_, node_);
    if (node.kind != Kind::kCapnp) return mismatch("Cap'n Proto message");
    CapnpRef message{.schema_id = std::bit_cast<std::uint64_t>(tree_->ints[node.number]), .owner = tree_};
    const auto count = static_cast<std::size_t>(tree_->ints[node.number + 1]);
    message.segments.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const value::Array& segment = tree_->arrays[node.array + i];
      message.segments.emplace_back(segment.data, static_cast<std::size_t>(segment.elements));
    }
    // Segments must not overlap: otherwise a small frame could request a large copy.
    std::vector<std::span<const std::byte>> sorted = message.segments;
    std::erase_if(sorted, [](const auto& segment) { return segment.empty(); });
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
    const auto overlap = std::adjacent_find(
        sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return b.data() < a.data() + a.size(); });
    if (overlap == sorted.end()) return message;
    return on_the_way({.code = Code::kCorrupt, .message = "segments of the Cap'n Proto message overlap"});
  });
}

}  // namespace shmtree
