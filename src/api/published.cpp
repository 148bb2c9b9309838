#include "api/published.h"

#include "api/receiving.h"
#include "discovery/handle.h"
#include "endpoint/copy_policy.h"
#include "memory/transfers.h"

namespace shmtree::api {

// The Item is read-only and cannot be given away, because other processes read the same memory.
Result<Item> to_item(memory::Arena& arena, std::span<const std::byte> frame, memory::Lease& block,
                     endpoint::CopyPolicy policy) {
  std::vector<std::span<const std::byte>> blocks;
  if (block.valid()) blocks = endpoint::referred_blocks(arena, arena.blocks().referred_to_by(block.ref()));
  if (endpoint::is_copied(policy, frame.size(), !blocks.empty())) {
    auto item = value::decode(frame, nullptr, blocks, nullptr, false);
    if (!item || !block.valid() || !memory::may_carry_transfers(arena, block.ref())) return item;
    auto kept = arena.hold_referred(block.ref());
    if (!kept) return std::move(kept).error();
    return kept_with(*item, std::move(*kept));
  }
  OfferedLease offered(block);
  auto item = value::decode(frame, offered.owner(), blocks, nullptr, true);
  if (item) offered.made();
  return item;
}

Result<Found> find_handle(std::span<const std::byte> bytes) {
  auto handle = discovery::decode(bytes);
  if (!handle) return std::move(handle).error();
  auto opened = discovery::open_arena(*handle);
  if (!opened) return std::move(opened).error();
  auto name = endpoint::join_name(handle->name, *opened);
  return Found{std::move(*opened), memory::unpack(handle->block), std::move(name), handle->transfer};
}
Result<Found> find_handle(const std::string& text) {
  auto bytes = handle_bytes(text);
  if (!bytes) return std::move(bytes).error();
  return find_handle(*bytes);
}

Result<Found> find_item(const Item& item, std::string_view name, const char* what) {
  if (item.kind() != Kind::kRegistered || item.class_name() != name) return item.mismatch(what);
  const Item parts = item.at(0);
  if (parts.kind() != Kind::kTuple || parts.size() != 2) return item.mismatch("a handle");
  auto handle = parts.at(0).try_as<std::span<const std::byte>>();
  if (!handle) return std::move(handle).error();
  return find_handle(*handle);
}

}  // namespace shmtree::api
