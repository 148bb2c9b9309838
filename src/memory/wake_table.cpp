#include "memory/wake_table.h"

#include <mutex>
#include <string>

#include "platform/dcheck.h"

namespace shmtree::memory {

using namespace platform;

namespace {

constexpr std::uint64_t pack_address(WakeAddress address, unsigned end) noexcept {
  SHMTREE_DCHECK(end <= 1 && (address & ~kWakeAddressMask) == 0);
  return address | std::uint64_t{end} << 63;
}
bool is_for(const WakeEntry& entry, std::uint64_t channel, unsigned end) noexcept {
  const std::uint64_t word = load_acquire(entry.address);
  return (word & kWakeAddressMask) != 0 && word >> 63 == end && load_acquire(entry.channel) == channel;
}

}  // namespace

Status WakeTable::set(Identity me, BlockRef channel, unsigned end, WakeAddress address) {
  SHMTREE_DCHECK(me != kNoIdentity);
  const std::lock_guard guard(mutex_);
  const std::uint32_t slot = slot_of(me), count = used(slot);
  WakeEntry* const table = mapping_.wake_table(slot);
  if (table == nullptr) return mapping_.unmapped("the table of wake pipes");
  std::uint32_t free = count;
  for (std::uint32_t i = count; i-- != 0;) {
    if (is_for(table[i], pack(channel), end)) {
      store_release(table[i].address, pack_address(address, end));
      return success();
    }
    if (load_relaxed(table[i].address) == 0) free = i;
  }
  if (free == kMaxWakeEntries) {
    return Error{Code::kUnavailable, "this process already watches " + std::to_string(kMaxWakeEntries) +
                                         " ends of channels of one arena, which is the limit: close unused ends"};
  }
  constexpr std::uint32_t kPerPage = kPageBytes / sizeof(WakeEntry);
  if (free == count && free % kPerPage == 0) {
    const auto file = mapping_.file().get("cannot use an arena");
    if (!file) return file.error();
    const std::uint64_t offset = mapping_.geometry().wake_table_offset(slot) + free * sizeof(WakeEntry);
    if (Status committed = commit_pages(*file, offset, kPageBytes); !committed) return committed;
  }
  store_relaxed(table[free].address, std::uint64_t{0});
  store_release(table[free].channel, pack(channel));
  store_release(table[free].address, pack_address(address, end));
  if (free == count) store_release(participants_.slot(slot).wake_entries, count + 1);
  return success();
}

void WakeTable::clear(Identity me, BlockRef channel, unsigned end) noexcept {
  const std::lock_guard guard(mutex_);
  const std::uint32_t slot = slot_of(me);
  std::uint32_t count = used(slot);
  WakeEntry* const table = mapping_.wake_table(slot);
  if (table == nullptr) return;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (is_for(table[i], pack(channel), end)) store_release(table[i].address, std::uint64_t{0});
  }
  const std::uint32_t before = count;
  while (count != 0 && load_relaxed(table[count - 1].address) == 0) --count;
  if (count != before) store_release(participants_.slot(slot).wake_entries, count);
}

void WakeTable::set_hub(Identity me, WakeAddress address) noexcept {
  std::atomic<std::uint64_t>& mine = participants_.slot_of_identity(me).hub_address;
  if (load_relaxed(mine) != address) store_release(mine, address);
}

bool WakeTable::wake(std::uint32_t slot, BlockRef channel, unsigned end) const noexcept {
  const std::uint32_t count = used(slot);
  if (count == 0) return false;
  const WakeEntry* const table = mapping_.wake_table(slot);
  if (table == nullptr) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!is_for(table[i], pack(channel), end)) continue;
    const std::uint64_t word = load_acquire(table[i].address);
    // Checks again: another end may have taken the entry before the second load.
    if (is_for(table[i], pack(channel), end)) return sender_.send(pid_of(slot), word);
  }
  return false;
}

}  // namespace shmtree::memory
