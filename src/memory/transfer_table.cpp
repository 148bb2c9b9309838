#include "memory/transfer_table.h"

#include <cstring>
#include <new>

#include "platform/dcheck.h"

namespace shmtree::memory {

using namespace platform;

InTransit TransferTable::in_transit(std::uint64_t block, Transferred what) const noexcept {
  InTransit found{};
  const std::int64_t now = monotonic_ns();
  for_each_of(block, what, [&](std::uint64_t state, const Transfer& transfer) {
    ++found.count;
    // Unsigned, because every process can write the time.
    const auto age_ns = static_cast<std::int64_t>(static_cast<std::uint64_t>(now) -
                                                  static_cast<std::uint64_t>(load_relaxed(transfer.made_ns)));
    if (found.count != 1 && age_ns <= found.age_ns) return true;
    found.age_ns = age_ns;
    found.pid = giver_is_gone(state) ? 0 : load_relaxed(participants_.slot_of_identity(giver_of(state)).pid);
    return true;
  });
  return found;
}

Transfer* TransferTable::find(std::uint64_t number) const noexcept {
  Transfer* found = nullptr;
  if (number == 0 || transferred(number) == Transferred::kBeingMade) return found;
  for_each([&](Transfer& transfer) {
    const std::uint64_t state = load_acquire(transfer.state);
    if (state != 0 && is_same_transfer(state, number)) found = &transfer;
    return found == nullptr;
  });
  return found;
}

Transfer* TransferTable::find_entry() const noexcept {
  Transfer* found = nullptr;
  for_each([&](Transfer& transfer) {
    if (load_acquire(transfer.state) == 0) found = &transfer;
    return found == nullptr;
  });
  if (found != nullptr) return found;
  Expiry expiry(participants_);
  for_each([&](Transfer& transfer) {
    if (!expiry.counts(transfer)) found = &transfer;
    return found == nullptr;
  });
  return found;
}

Transfer* TransferTable::take_entry(std::uint64_t number) const noexcept {
  SHMTREE_DCHECK(number != 0 && transferred(number) != Transferred::kBeingMade && !giver_is_gone(number));
  const std::uint64_t being_made = number | static_cast<std::uint64_t>(Transferred::kBeingMade);
  for (;;) {
    Transfer* entry = find_entry();
    if (entry == nullptr) return nullptr;
    std::uint64_t old = load_acquire(entry->state);
    if (old != 0 && Expiry(participants_).counts(*entry)) continue;
    if (!compare_swap(entry->state, old, being_made)) continue;
    fence_release();  // before the transfer's words change: see handed_over()
    return entry;
  }
}

std::uint64_t TransferTable::entries() const noexcept {
  std::uint64_t count = 0;
  walk([&](BlockRef, std::span<Transfer> transfers) { return (count += transfers.size()) != 0; });
  return count;
}

void TransferTable::add_entries(BlockRef block, std::byte* data, std::uint64_t count) const noexcept {
  SHMTREE_DCHECK(data != nullptr && count != 0);
  std::memset(data, 0, chain_bytes(count, sizeof(Transfer)));
  auto* added = new (data) ChainHeader{count, {0}, {}};
  std::uint64_t first = load_acquire(header_.more_transfers);
  do {
    store_relaxed(added->next, first);
  } while (!compare_swap(header_.more_transfers, first, pack(block)));
}

}  // namespace shmtree::memory
