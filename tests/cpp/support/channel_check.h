// The invariants of an arena and of all channels in it, as a function.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "channel/channel.h"
#include "support/arena_check.h"

namespace shmtree::channel {

using memory::BlockEntry;
using memory::BlockId;
using memory::BlockKind;
using memory::BlockState;
using platform::load_acquire;
using platform::load_relaxed;

// Walks the whole arena and returns the first violated invariant, or an empty string. Checks the invariants of
// check_arena(). Also checks that each channel's messages, records and counts agree, and that every block in use has a
// pin or a reference. No other process may use the arena meanwhile, and dead processes must be reconciled.
class Check {
 public:
  explicit Check(Arena& arena) : arena_(arena) {}

  std::string run() {
    std::string wrong = check_arena(arena_);
    for_each_live([&](BlockRef ref, const BlockEntry& entry) {
      if (!wrong.empty() || kind_of(entry) != BlockKind::kChannel || !is_held(entry)) return;
      kept_.insert(memory::pack(ref));
      auto& shared = *reinterpret_cast<ChannelHeader*>(arena_.blocks().address(ref.id));
      wrong = channel(Control{arena_, shared, ref, shared.slot_bytes});
      if (!wrong.empty()) wrong = "the channel in block " + std::to_string(memory::pack(ref)) + ": " + wrong;
    });
    if (wrong.empty()) wrong = transfers();
    // Deferred frees and abandoned channels stay allocated until a process takes the arena lock.
    const memory::ArenaHeader& header = arena_.header();
    if (load_acquire(header.abandoned_channels) != 0 || load_acquire(header.deferred_hint) != 0) return wrong;
    for_each_live([&](BlockRef ref, const BlockEntry& entry) {
      const bool kept = is_held(entry) || load_acquire(entry.refcount) != 0 || kept_.count(memory::pack(ref)) != 0;
      if (wrong.empty() && !kept) wrong = "no reference to block " + std::to_string(memory::pack(ref));
    });
    return wrong;
  }

 private:
  static BlockKind kind_of(const BlockEntry& entry) { return static_cast<BlockKind>(load_relaxed(entry.kind)); }
  static bool is_held(const BlockEntry& entry) {
    for (const auto& word : entry.holders.words) {
      if (load_acquire(word) != 0) return true;
    }
    return false;
  }
  template <class Visit>
  void for_each_live(Visit visit) {
    for (unsigned k = memory::kMinClass; k <= arena_.blocks().geometry().max_class(); ++k) {
      const std::uint64_t high = load_acquire(arena_.header().classes[k - memory::kMinClass].high);
      for (std::uint64_t index = 0; index < high; ++index) {
        const BlockId id = BlockId::make(k, index);
        const BlockEntry& entry = *arena_.blocks().entry(id);
        const std::uint64_t word = load_acquire(entry.word);
        if (memory::state_of(word) == BlockState::kLive) visit(BlockRef{id, memory::generation_of_block(word)}, entry);
      }
    }
  }

  // Records that the channel references the block. Returns true if the block is live, of that kind, and referenced
  // once.
  bool keep(std::uint64_t packed, BlockKind kind) {
    const BlockRef ref = memory::unpack(packed);
    if (!arena_.blocks().is_current(ref)) return false;
    const BlockEntry& entry = *arena_.blocks().entry(ref.id);
    const bool live = memory::state_of(load_acquire(entry.word)) == BlockState::kLive;
    return kept_.insert(packed).second && live && kind_of(entry) == kind;
  }
  std::string message(const RingSlot& slot, std::uint64_t slot_bytes) {
    if (slot.block == 0) return slot.bytes > inline_bytes(slot_bytes) ? "an inline message is too long" : "";
    if (!keep(slot.block, BlockKind::kMessage)) return "a message's block is free, twice there, or something else";
    const BlockRef ref = memory::unpack(slot.block);
    return load_relaxed(arena_.blocks().entry(ref.id)->committed) < slot.bytes ? "a message is longer than its block"
                                                                               : "";
  }

  std::string channel(const Control& control) {
    const ChannelHeader& shared = control.shared;
    if (load_acquire(shared.senders_lock) != 0 || load_acquire(shared.receivers_lock) != 0) return "a lock is taken";
    const std::uint64_t head = load_acquire(shared.head), tail = load_acquire(shared.tail);
    if (head > tail) return "its head is past its tail";
    if (shared.capacity != 0 && tail - head > shared.capacity) return "there are more messages than it takes";
    bytes_ = 0;
    std::string wrong = ring(control, head, tail);
    if (wrong.empty()) wrong = records(control, head);
    if (!wrong.empty()) return wrong;
    const std::uint64_t said = control.queued_bytes();
    return said == bytes_
               ? ""
               : std::to_string(said) + " bytes are said to be queued, and " + std::to_string(bytes_) + " are";
  }
  std::string transfers() {
    const Walked walked = arena_.transfers().walk([&](BlockRef block, std::span<memory::Transfer>) {
      return block.id.value == 0 || keep(memory::pack(block), BlockKind::kDeliveries);
    });
    return walked == Walked::kAll ? "" : "a block of transfers is damaged, free, twice there, or something else";
  }
  std::string ring(const Control& control, std::uint64_t head, std::uint64_t tail) {
    const ChannelHeader& shared = control.shared;
    std::uint64_t packed = load_acquire(shared.head_segment), last = 0, ticket = head;
    while (packed != 0) {
      if (!keep(packed, BlockKind::kSegment)) return "a segment's block is free, twice there, or something else";
      const Segment segment = segment_at(control, packed);
      if (!segment) return "a segment is damaged";
      const std::uint64_t next = load_acquire(segment.header->next);
      std::uint64_t end = tail;
      if (next != 0) {
        const auto* successor =
            reinterpret_cast<const SegmentHeader*>(arena_.blocks().address(memory::unpack(next).id));
        if (successor == nullptr || successor->base < segment.base) return "the segments are out of order";
        end = std::min(end, successor->base);
      }
      if (end > ticket && end - ticket > segment.slots) return "a segment has more messages than slots";
      for (; ticket < end; ++ticket) {
        const RingSlot& slot = segment.at(ticket);
        if (slot.ticket != ticket) return "a slot has another ticket";
        bytes_ += control.counted_bytes(slot);
        if (std::string wrong = message(slot, shared.slot_bytes); !wrong.empty()) return wrong;
      }
      last = packed;
      packed = next;
    }
    if (ticket != tail) return "messages are in no segment";
    return last == load_acquire(shared.tail_segment) ? "" : "the last segment is another";
  }
  std::string records(const Control& control, std::uint64_t head) {
    const ChannelHeader& shared = control.shared;
    std::uint32_t taken = 0, returned = 0, rejected = 0;
    std::string wrong;
    const auto enter = [&](BlockRef block) { return keep(memory::pack(block), BlockKind::kDeliveries); };
    const auto visit = [&](const Record& record) {
      const RecordState state = state_of_record(load_acquire(record.state));
      if (state == RecordState::kFree) return true;
      if (awaits_ack(state)) ++taken;
      if (state == RecordState::kRejected) ++rejected;
      if (state == RecordState::kReturned) {
        ++returned;
        bytes_ += control.counted_bytes(record.slot());
      }
      wrong = record.slot().ticket >= head ? "a message is taken and in the ring"
                                           : message(record.slot(), shared.slot_bytes);
      return wrong.empty();
    };
    const Walked walked = for_each_record(control, visit, enter);
    if (!wrong.empty()) return wrong;
    if (walked != Walked::kAll) return "a block of records is damaged, free, twice there, or something else";
    if (taken != load_acquire(shared.taken)) return "what is taken is miscounted";
    if (rejected != load_acquire(shared.rejected)) return "what is rejected is miscounted";
    const bool counted = returned == load_acquire(shared.returned) && returned == load_acquire(shared.also_queued);
    return counted ? "" : "what is returned is miscounted";
  }

  Arena& arena_;
  std::set<std::uint64_t> kept_;
  std::uint64_t bytes_ = 0;  // bytes of the messages that can be received
};

inline std::string check(Arena& arena) {
  return Check(arena).run();
}

}  // namespace shmtree::channel
