#include "replay/buffer/home.h"

#include <algorithm>
#include <utility>

#include "platform/errors.h"
#include "platform/memory_limits.h"

namespace shmtree::replay {

Home::Home(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)),
      bytes_(arena_ == nullptr ? platform::available_memory_bytes() : arena_->pool().max_bytes()) {}

Error Home::lacks(const std::string& what, const char* remedy) const {
  return invalid(what + ", but " + (arena_ == nullptr ? "this machine" : "the arena") + " has only " +
                 std::to_string(bytes_) + " bytes" + remedy);
}

Result<BufferSize> Home::within(const Spec& spec, BufferSize sizes, std::uint64_t max_bytes) const {
  if (max_bytes == 0) return sizes;
  const auto rows = Buffer::capacity_within(spec, max_bytes, sizes);
  if (!rows) return rows.error();
  if (max_bytes > bytes_) return lacks("max_bytes is " + std::to_string(max_bytes));
  sizes.capacity = *rows;
  return sizes;
}

Result<std::shared_ptr<Arena>> Home::arena_for(const Spec& spec, const BufferSize& sizes) const {
  constexpr std::uint64_t kMinSpare = std::uint64_t{16} << 20;
  const auto needed = Buffer::total_bytes(spec, sizes);
  if (!needed) return needed.error();
  if (*needed > bytes_) {
    return lacks(
        "a replay buffer of " + std::to_string(sizes.capacity) + " rows takes " + std::to_string(*needed) + " bytes",
        ": reduce the capacity, or set max_bytes");
  }
  if (arena_ != nullptr) return arena_;
  return Arena::create({.max_bytes = *needed + std::max(kMinSpare, *needed / 8)});
}

}  // namespace shmtree::replay
