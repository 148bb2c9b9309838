// Acknowledgements: a message is acknowledged once it was received and is in no delivery record, or in one of those
// that were given up: nobody would ever acknowledge it, and its sender is not to wait for ever. What a process has put
// it notes for itself, so nothing shared has to be kept, or repaired, for it.
#include <algorithm>
#include <mutex>
#include <new>

#include "channel/channel.h"
#include "channel/records.h"
#include "channel/waiting.h"
#include "platform/atomics.h"

namespace shmtree::channel {

using namespace platform;

namespace {

constexpr int kMostLooks = 16;

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

}  // namespace

void Channel::note_sent(std::uint64_t first, std::uint64_t count) noexcept {
  const Identity me = arena_->current_identity();
  const std::lock_guard guard(mutex_);
  if (sent_by_ != me) {  // a forked child: its parent's messages are not its own
    sent_.clear();
    sent_end_ = 0;
    sent_by_ = me;
  }
  sent_end_ = std::max(sent_end_, first + count);  // threads come here in any order
  if (!sent_.empty() && sent_.back().first + sent_.back().count == first) {
    sent_.back().count += count;
    // One range for a lone sender, so that nothing grows: what was received long ago is cut off now and then.
    return;
  }
  const std::uint64_t head = load_acquire(header().head);
  while (!sent_.empty() && sent_.front().first + sent_.front().count <= head) sent_.pop_front();
  try {
    sent_.push_back(Range{first, count});
  } catch (const std::bad_alloc&) {
    // The messages are put, which nothing may spoil. pending_acks() counts those of others between as well, or, with no
    // range before, none of these; sent_end_ is what is waited for.
    if (!sent_.empty() && first >= sent_.back().first) sent_.back().count = first + count - sent_.back().first;
  }
}

bool Channel::is_acked(std::uint64_t ticket) noexcept {
  if (ticket >= load_acquire(header().head)) return false;
  if (load_acquire(header().taken) == 0) return true;
  bool acked = true;
  for_each_record([&](Record& record) {
    acked = !awaits_ack(state_of_record(load_acquire(record.state))) || load_once(record.slot().ticket) != ticket;
    return acked;
  });
  return acked;
}

bool Channel::all_acked(Identity me) noexcept {
  const std::uint64_t head = load_acquire(header().head);
  {
    const std::lock_guard guard(mutex_);
    if (sent_by_ == me && sent_end_ > head) return false;
  }
  if (load_acquire(header().taken) == 0) return true;
  bool acked = true;
  for_each_record([&](Record& record) {
    acked = !awaits_ack(state_of_record(load_acquire(record.state))) || load_once(record.slot().sender) != me;
    return acked;
  });
  return acked;
}

// Without a lock: exact when nothing is received meanwhile, else as it was at some instant or nearly so.
std::uint64_t Channel::pending_acks(const WaitContext&) {
  auto me = arena_->identity();
  if (!me) return 0;
  for (int attempt = 0;; ++attempt) {
    const std::uint64_t head = load_acquire(header().head);
    std::uint64_t pending = 0;
    for_each_record([&](Record& record) {
      const bool waits = awaits_ack(state_of_record(load_acquire(record.state)));
      const Slot& slot = record.slot();
      if (waits && load_once(slot.sender) == *me && load_once(slot.ticket) < head) ++pending;
      return true;
    });
    {
      const std::lock_guard guard(mutex_);
      if (sent_by_ == *me) {
        for (const Range& range : sent_) {
          const std::uint64_t end = range.first + range.count;
          if (end > head) pending += end - std::max(range.first, head);
        }
      }
    }
    if (attempt == kMostLooks || load_acquire(header().head) == head) return pending;
  }
}

Status Channel::wait_for_ack(std::optional<std::uint64_t> ticket, const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  if (ticket && *ticket >= load_acquire(header().tail)) {
    return Error{Code::kInvalid, "ticket " + number(*ticket) + " was never given: the channel is at " +
                                     number(load_acquire(header().tail))};
  }
  const auto acked = [&] { return ticket ? is_acked(*ticket) : all_acked(*me); };
  Status waited = wait_at(header().acked, End::kReceiving, "acknowledgements", acked, wait);
  if (waited || waited.code() != Code::kTimeout) return waited;
  return Error{Code::kTimeout, number(pending_acks(wait)) + " messages were not acknowledged in time"};
}

}  // namespace shmtree::channel
