// The walk over a channel's delivery records, for the files that implement Channel.
#pragma once

#include "channel/channel.h"
#include "platform/atomics.h"

namespace shmtree::channel {

// Each element of the chain holds more than all before it together, so a longer chain than this is a damaged one.
constexpr int kMostRecordBlocks = 40;

// Calls `visit` with each record until it returns false.
template <class Visit>
void Channel::for_each_record(Visit visit) const noexcept {
  std::uint64_t packed = platform::load_acquire(header().records);
  for (int links = 0; packed != 0 && links < kMostRecordBlocks; ++links) {
    const BlockRef ref = memory::unpack(packed);
    if (!arena_->blocks().is_current(ref)) return;
    const Records records =
        checked_records(arena_->blocks().address(ref.id), arena_->blocks().room_of(ref.id), slot_bytes_);
    if (!records) return;
    for (std::uint64_t i = 0; i < records.count; ++i) {
      if (!visit(records.at(i))) return;
    }
    packed = platform::load_acquire(records.header->next);
  }
}

}  // namespace shmtree::channel
