// Messages given up: taken as often as the channel's `max_attempts` says and not acknowledged. They keep their records,
// and their memory, until somebody decides what becomes of them.
#include <algorithm>

#include "channel/channel.h"
#include "channel/records.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;

// Under the receivers' lock: some of those that are with nobody, as many as `found` has memory for. Whether there may
// be more.
bool Channel::collect_rejected(std::vector<Delivery>& found, Identity me, Receipt& receipt) noexcept {
  std::size_t left = std::min(found.capacity() - found.size(), kMostAtOnce);
  for_each_record([&](Record& record) {
    const std::uint64_t word = load_acquire(record.state);
    if (state_of_record(word) != RecordState::kRejected || taker_of_record(word) != memory::kNobody) return true;
    if (left == 0) return false;
    Delivery& delivery = found.emplace_back();
    if (!receive_slot(record.slot(), me, delivery.message_, receipt)) {
      found.pop_back();
      return false;
    }
    delivery.message_.attempts_ = attempts_of_record(word);
    delivery.word_ = record_word(RecordState::kRejected, me, attempts_of_record(word));
    delivery.record_ = &record;
    set_record(record, delivery.word_);
    --left;
    return true;
  });
  return left == 0 && found.size() != found.capacity();
}

Result<std::vector<Delivery>> Channel::rejected(const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  if (arena_->participants().check(0)) {  // one that has just died may have had the last attempt
    Status repaired = arena_->reconcile(wait);
    if (!repaired) return std::move(repaired).error();
  }
  std::size_t count = 0;
  for_each_record([&](Record& record) {
    count += state_of_record(load_acquire(record.state)) == RecordState::kRejected;
    return true;
  });
  std::vector<Delivery> found;
  found.reserve(count);
  for (bool more = count != 0; more;) {
    Status locked = arena_->lock(header().receivers_lock, wait);
    if (!locked) return std::move(locked).error();
    Receipt receipt;
    const std::size_t before = found.size();
    more = collect_rejected(found, *me, receipt);
    arena_->unlock(header().receivers_lock);
    for (std::size_t i = before; i < found.size(); ++i) found[i].channel_ = shared_from_this();
    if (receipt.starved) return unreceived(receipt);
  }
  std::sort(found.begin(), found.end(),
            [](Delivery& a, Delivery& b) { return a.message().ticket() < b.message().ticket(); });
  return found;
}

}  // namespace shmtree::channel
