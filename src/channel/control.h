// The state that all parts of a channel share: the control block, its arena, and the chains of records and segments
// that words of the control block name.
#pragma once

#include <optional>

#include "channel/layout.h"
#include "memory/arena.h"
#include "platform/atomics.h"
#include "platform/waiting.h"

namespace shmtree::channel {

using memory::Arena;
using memory::BlockRef;
using memory::Lease;
using memory::OwnedBlock;
using memory::walk_chain;
using memory::Walked;
using platform::WaitContext;

struct Control {
  Arena& arena;
  ChannelHeader& shared;
  const BlockRef block;
  const std::uint64_t slot_bytes;  // checked

  // Returns the size of the longest frame that needs no block.
  std::uint64_t inline_bytes() const noexcept { return channel::inline_bytes(slot_bytes); }
  Ending ending() const noexcept { return static_cast<Ending>(shared.ending); }
  bool is_queue() const noexcept { return ending() == Ending::kNever || ending() == Ending::kQueueRaise; }
  bool is_named() const noexcept { return platform::load_relaxed(shared.named) != 0; }
  KeepOpen keep_open() const noexcept { return static_cast<KeepOpen>(shared.keep_open); }
  // True if the other end waits for new processes once none is attached to `end`.
  bool keeps_open(End end) const noexcept {
    return keep_open() == KeepOpen::kBoth || (end == End::kSending && keep_open() != KeepOpen::kNo);
  }
  bool drops_oldest() const noexcept { return shared.drop_oldest != 0; }
  bool is_portable() const noexcept { return platform::load_once(shared.portable) != kNotPortable; }
  bool was_always_portable() const noexcept { return platform::load_once(shared.portable) == kAlwaysPortable; }
  Shutdown shutdown() const noexcept { return static_cast<Shutdown>(platform::load_acquire(shared.shutdown)); }
  bool is_shut_down() const noexcept { return shutdown() != Shutdown::kNot; }
  bool is_discarded() const noexcept { return shutdown() == Shutdown::kDiscarded; }
  // Returns the word for a record that is returned as `word`: kDiscardedRecord if the queue was shut down with its
  // contents. Without the receivers' lock, a shutdown may be missed: the message is then returned, and the next
  // receiver discards it.
  std::uint64_t unless_discarded(std::uint64_t word) const noexcept {
    return state_of_record(word) == RecordState::kReturned && is_discarded() ? kDiscardedRecord : word;
  }
  // Return the participant that created a pipe, true for a pipe, and true if `slot` is that participant.
  Identity maker() const noexcept { return platform::load_once(shared.maker); }
  bool is_pipe() const noexcept { return maker() != memory::kNoIdentity; }
  bool is_maker(std::uint32_t slot) const noexcept {
    const Identity identity = maker();
    return identity != memory::kNoIdentity && memory::slot_of(identity) == slot &&
           memory::generation_of(identity) == platform::load_acquire(arena.participants().slot(slot).generation);
  }
  // True if the end is reserved for another participant than this process.
  bool is_reserved(End end) const noexcept {
    const Identity by = platform::load_relaxed(shared.reserved[end]);
    return by != memory::kNoIdentity && by != arena.current_identity();
  }
  // Returns what a sleeping thread publishes about its sleep. The time counts for that end.
  memory::SleepReason sleep_at(End end, memory::WaitFor what) const noexcept {
    return {arena.participants(), what, memory::pack(block), &shared.slept[end]};
  }
  memory::SleepReason sleep_for(memory::WaitFor what) const noexcept {
    return {arena.participants(), what, memory::pack(block)};
  }
  // Returns the bytes that a message counts with: its frame, and every block that it refers to, even if other messages
  // refer to the same blocks.
  std::uint64_t counted_bytes(std::uint64_t frame_bytes, BlockRef in) const noexcept {
    return frame_bytes + arena.blocks().referred_bytes(in);
  }
  std::uint64_t counted_bytes(const RingSlot& slot) const noexcept {
    const std::uint64_t packed = platform::load_once(slot.block), bytes = platform::load_once(slot.bytes);
    return packed == 0 ? bytes : counted_bytes(bytes, memory::unpack(packed));
  }
  // Returns the bytes that can be received. 0 if more went out than came in: receivers may have advanced `bytes_out`
  // since this thread read `bytes_in`. Either word may also be damaged.
  std::uint64_t queued_bytes() const noexcept {
    const std::uint64_t in = platform::load_acquire(shared.bytes_in), out = platform::load_acquire(shared.bytes_out);
    return in > out ? in - out : 0;
  }
};

// Returns the state of a channel that this process may not have opened. Nothing if the block is no channel, or cannot
// be mapped.
inline std::optional<Control> control_at(Arena& arena, BlockRef block) noexcept {
  const memory::BlockEntry* entry = arena.blocks().is_current(block) ? arena.blocks().entry(block.id) : nullptr;
  if (entry == nullptr || !memory::is_kind(*entry, memory::BlockKind::kChannel)) return std::nullopt;
  auto* shared = reinterpret_cast<ChannelHeader*>(arena.blocks().address(block.id));
  if (shared == nullptr || shared->magic != kChannelMagic) return std::nullopt;
  return Control{arena, *shared, block, platform::load_once(shared->slot_bytes)};
}

inline Error shut_down_error() {
  return Error{Code::kShutDown, "the queue was shut down"};
}
// Converts a timeout for a lock or for memory to `late`: kFull for a put, kEmpty for a get.
inline Error in_time(Error error, Code late) {
  if (error.code == Code::kTimeout || error.code == Code::kFull) error.code = late;
  return error;
}

// Returns the segment that a word of shared memory names. Null if there can be none.
inline Segment segment_at(const Control& control, std::uint64_t packed) noexcept {
  const memory::BlockTable& blocks = control.arena.blocks();
  const BlockRef ref = memory::unpack(packed);
  if (packed == 0 || !blocks.is_current(ref)) return {};
  return checked_segment(blocks.address(ref.id), blocks.capacity_of(ref.id), control.slot_bytes);
}

// Calls visit(record) for each delivery record, and enter(block) before the records of each block, until one returns
// false. A block of records is never unlinked from its chain, so this needs no lock.
template <class Visit, class Enter>
Walked for_each_record(const Control& control, Visit visit, Enter enter) noexcept {
  if (!is_slot_size(control.slot_bytes)) return Walked::kDamaged;
  const std::uint64_t each_bytes = record_bytes(control.slot_bytes);
  return walk_chain(control.arena.blocks(), platform::load_acquire(control.shared.records), each_bytes,
                    [&](BlockRef block, std::byte* records, std::uint64_t count) {
                      if (!enter(block)) return false;
                      for (; count != 0; --count, records += each_bytes) {
                        if (!visit(*reinterpret_cast<Record*>(records))) return false;
                      }
                      return true;
                    });
}
template <class Visit>
Walked for_each_record(const Control& control, Visit visit) noexcept {
  return for_each_record(control, visit, [](BlockRef) { return true; });
}

// Caches the last segment that was looked up, since it seldom changes. Use it only under the lock of one side.
class KnownSegment {
 public:
  const Segment& at(const Control& control, std::uint64_t packed) noexcept {
    if (packed != packed_ || packed == 0) [[unlikely]] {
      packed_ = packed;
      segment_ = segment_at(control, packed);
    }
    if (!segment_) packed_ = 0;  // may be mapped by the next call
    return segment_;
  }
  const Segment& last() const noexcept { return segment_; }
  void forget() noexcept { packed_ = 0; }

 private:
  std::uint64_t packed_ = 0;
  Segment segment_{};
};

}  // namespace shmtree::channel
