#include "channel/records.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;

std::uint64_t Records::unacked() const noexcept {
  const std::uint32_t taken = load_seq_cst(control_.shared.taken), returned = load_seq_cst(control_.shared.returned);
  return std::max(taken, returned) - returned;
}

std::vector<std::uint64_t> Records::unacked_tickets() const {
  std::vector<std::uint64_t> found;
  for_each_record(control_, [&](Record& record) {
    if (awaits_ack(state_of_record(load_acquire(record.state)))) found.push_back(load_once(record.slot().ticket));
    return true;
  });
  return found;
}

std::uint64_t Records::discarded() const noexcept {
  const std::uint64_t end = load_relaxed(control_.shared.discarded_from);
  std::uint64_t count = 0;
  for_each_record(control_, [&](Record& record) {
    const std::uint64_t word = load_acquire(record.state);
    const bool is_discarded = word == kDiscardedRecord || state_of_record(word) == RecordState::kReturned;
    count += is_discarded && load_once(record.slot().ticket) < end;
    return true;
  });
  return count;
}

std::uint64_t Records::rejected() const noexcept {
  if (load_acquire(control_.shared.rejected) == 0) return 0;
  std::uint64_t count = 0;
  for_each_record(control_, [&](Record& record) {
    count += state_of_record(load_acquire(record.state)) == RecordState::kRejected;
    return true;
  });
  return count;
}

Status Records::add(const WaitContext& wait) {
  std::uint64_t total = 0;
  for_each_record(control_, [&](Record&) { return ++total != 0; });
  const std::uint64_t count = total == 0 ? kFirstRecords : total + 1, bytes = chain_bytes(count, each_bytes());
  auto block = control_.arena.allocate(bytes, memory::BlockKind::kDeliveries, wait);
  if (!block) return std::move(block).error();
  std::memset(block->data(), 0, bytes);
  auto* added = new (block->data()) ChainHeader{count, {0}, {}};
  Status locked = control_.arena.lock(control_.shared.receivers_lock, wait);
  if (!locked) return locked;
  const bool is_needed = find_free() == nullptr;
  if (is_needed) {
    store_relaxed(added->next, load_relaxed(control_.shared.records));
    store_release(control_.shared.records, memory::pack(block->ref()));
  }
  control_.arena.unlock(control_.shared.receivers_lock);
  if (is_needed) block->publish();
  return success();
}

Record* Records::find_free() noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  Record* const freed = freed_.exchange(nullptr, std::memory_order_relaxed);
  if (freed != nullptr && load_acquire(freed->state) == kFreeRecord) return freed;
  Record* const found = find_free_from(next_);
  return found != nullptr || next_ == 0 ? found : find_free_from(0);
}

Record* Records::find_free_from(std::uint64_t number) noexcept {
  if (!is_slot_size(control_.slot_bytes)) return nullptr;
  Record* found = nullptr;
  std::uint64_t before = 0;  // number of records in earlier blocks
  const auto look = [&](BlockRef, std::byte* records, std::uint64_t count) {
    for (std::uint64_t i = std::min(number - std::min(number, before), count); i < count && found == nullptr; ++i) {
      auto& record = *reinterpret_cast<Record*>(records + i * each_bytes());
      if (load_acquire(record.state) != kFreeRecord) continue;
      found = &record;
      next_ = before + i + 1;
    }
    before += count;
    return found == nullptr;
  };
  walk_chain(control_.arena.blocks(), load_acquire(control_.shared.records), each_bytes(), look);
  return found;
}

// Resets the counts if there is none.
Record* Records::oldest_returned() noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  Record* oldest = nullptr;
  for_each_record(control_, [&](Record& record) {
    const bool is_returned = state_of_record(load_acquire(record.state)) == RecordState::kReturned;
    if (is_returned && (oldest == nullptr || record.slot().ticket < oldest->slot().ticket)) oldest = &record;
    return true;
  });
  if (oldest == nullptr) {
    store_relaxed(control_.shared.returned, 0u);
    store_relaxed(control_.shared.also_queued, 0u);
  }
  return oldest;
}

void Records::set(Record& record, std::uint64_t word) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  ChannelHeader& shared = control_.shared;
  const RecordState from = state_of_record(load_relaxed(record.state)), to = state_of_record(word);
  const auto count = [](std::atomic<std::uint32_t>& number, int more) {
    if (more != 0) store_relaxed(number, load_relaxed(number) + static_cast<std::uint32_t>(more));
  };
  const int more_returned = (to == RecordState::kReturned) - (from == RecordState::kReturned);
  const std::uint32_t returned = load_relaxed(shared.returned) + static_cast<std::uint32_t>(more_returned);
  if (more_returned > 0) store_relaxed(shared.also_queued, returned);
  store_release(record.state, word);
  if (word == kFreeRecord) store_relaxed(freed_, &record);
  count(shared.taken, awaits_ack(to) - awaits_ack(from));
  count(shared.rejected, (to == RecordState::kRejected) - (from == RecordState::kRejected));
  if (more_returned == 0) return;
  const std::uint64_t bytes = control_.counted_bytes(record.slot()), out = load_relaxed(shared.bytes_out);
  store_relaxed(shared.bytes_out, more_returned > 0 ? out - bytes : out + bytes);
  store_relaxed(shared.returned, returned);
  store_relaxed(shared.also_queued, returned);
}

// --- Front

bool Front::receive_next(Incoming& out, Identity me, Receipt& receipt) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(control_.shared.receivers_lock));
  Record* const record = records_.first_returned();
  if (record == nullptr) [[likely]]
    return head_.receive(out, me, receipt);
  const std::uint32_t attempts = attempts_with_this(load_relaxed(record->state));
  if (!head_.hold_again(*record, me, attempts, out, receipt)) return false;
  records_.set(*record, control_.is_discarded() ? kDiscardedRecord : kFreeRecord);
  if (out.in_block()) control_.arena.reclaimer().set_delivered(out.block(), false);
  return true;
}

Front::Access Front::access() const noexcept {
  if (control_.is_discarded()) return Access::kShutDown;
  return control_.is_reserved(End::kReceiving) ? Access::kReserved : Access::kFree;
}

Status Front::discard_queued(const WaitContext& wait) {
  auto me = control_.arena.identity();
  if (!me) return std::move(me).error();
  while (head_.has_messages()) {
    Status locked = control_.arena.lock(control_.shared.receivers_lock, wait);
    if (!locked) return locked;
    Incoming dropped;
    Receipt receipt;
    const bool received = receive_next(dropped, *me, receipt);
    control_.arena.unlock(control_.shared.receivers_lock);
    receipt.release_spent(control_.arena);
    if (!received && receipt.is_left()) break;  // left for the next receiver
  }
  return success();
}

Error Front::discarded(const WaitContext& wait) {
  Status dropped = discard_queued(wait);
  return dropped ? shut_down_error() : std::move(dropped).error();
}

}  // namespace shmtree::channel
