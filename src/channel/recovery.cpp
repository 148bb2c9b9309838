#include "channel/recovery.h"

#include <algorithm>

#include "channel/tap_notes.h"
#include "channel/watchers.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

using namespace platform;
using memory::ReconcilePass;

namespace {

// Holds one of a channel's locks for a scope that may throw.
class Held {
 public:
  Held(Arena& arena, ReconcilePass& pass, std::atomic<std::uint32_t>& word)
      : arena_(arena), word_(word), taken_(pass.lock(word).ok()) {}
  ~Held() {
    if (taken_) arena_.unlock(word_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  bool is_taken() const noexcept { return taken_; }

 private:
  Arena& arena_;
  std::atomic<std::uint32_t>& word_;
  bool taken_;
};

// Maximum number of references that recovery reads to count the bytes of a channel (half a second). Each message adds
// kMoreReferencesOfMessage, so that damaged lists leave enough for the usual lists of other messages. The bytes of
// further references are not counted.
constexpr std::uint64_t kMaxReferencesOfChannel = std::uint64_t{1} << 26;
constexpr std::uint64_t kMoreReferencesOfMessage = 64;

// Wakes the waiters of a channel, after its members or transfers have changed.
void wake_waiters(const Control& control) noexcept {
  ChannelHeader& shared = control.shared;
  notify_all(shared.items);
  notify_all(shared.space);
  notify_all(shared.freed_bytes);
  notify_all(shared.acked);
  Watchers::send_wakes(control, End::kSending);
  const Ends ends(control);
  const bool must_report = ends.is_left(End::kSending) || ends.has_deaths_to_report(End::kSending, memory::kNoIdentity);
  if (must_report || load_seq_cst(shared.tail) != load_seq_cst(shared.head) || load_seq_cst(shared.returned) != 0) {
    Watchers::send_wakes(control, End::kReceiving);
  } else if (ends.may_report_deaths(End::kSending)) {
    Watchers::announce_deaths(control, ends, End::kSending);
  }
}

// A channel that is known by its block alone, since this process may not have opened it.
class Repair {
 public:
  Repair(const Control& control, ReconcilePass& pass)
      : control_(control), arena_(control.arena), shared_(control.shared), pass_(pass) {}

  // Removes the notes of puts that did not take place. If the tap is dead, removes the tap and all of its notes.
  void tap() noexcept {
    const std::uint64_t packed = load_relaxed(shared_.tap);
    if (packed == 0) return;
    const auto notes = TapNotes::at(control_.arena.blocks(), control_.slot_bytes, packed);
    if (notes) notes->forget_from(load_relaxed(shared_.tail));
    const Identity owner = notes ? load_once(notes->header().owner) : Identity{memory::kNoIdentity};
    const bool is_dead = pass_.dead().contains(memory::slot_of(owner)) || !arena_.participants().is_alive(owner);
    if (!is_dead) return;
    store_release(shared_.timed, std::uint32_t{0});
    store_release(shared_.tap, std::uint64_t{0});
  }

  // False if the slot size is damaged. The messages are lost then, since their positions are unknown.
  bool has_slots() const noexcept { return is_slot_size(control_.slot_bytes); }

  void ring() noexcept {
    SHMTREE_DCHECK(has_slots() && memory::HeldLocks::contains(shared_.senders_lock));
    const std::uint64_t head = load_relaxed(shared_.head), tail = load_relaxed(shared_.tail);
    std::uint64_t packed = load_relaxed(shared_.head_segment), queued = 0, ticket = head;
    for (int links = 0; packed != 0 && links < 1 << 20; ++links) {
      const Segment segment = checked_segment(block(packed), space(packed), control_.slot_bytes);
      if (!segment) break;
      pass_.mark(memory::unpack(packed));
      store_relaxed(shared_.tail_segment, packed);
      const std::uint64_t slots = segment.slots, next = load_acquire(segment.header->next);
      const auto* successor = next == 0 ? nullptr : reinterpret_cast<const SegmentHeader*>(block(next));
      const std::uint64_t border = successor == nullptr ? tail : load_once(successor->base);
      if (successor != nullptr && border <= segment.base) break;  // damaged, or a cycle
      const std::uint64_t end = std::min(tail, border);
      // A segment cannot contain more queued tickets than slots.
      ticket = std::max(ticket, end > slots ? end - slots : 0);
      for (; ticket < end; ++ticket) {
        const RingSlot& slot = segment.at(ticket);
        queued += counted_bytes(slot);
        keep(load_once(slot.block), false);
      }
      packed = next;
    }
    RingTail::finish_count(shared_);
    store_relaxed(shared_.pending_wakes, 0u);  // a sender died before it sent its byte
    store_relaxed(shared_.cached_head, head);
    store_relaxed(shared_.limit, shared_.capacity);
    store_relaxed(shared_.cached_tail, head);
    queued_bytes_ = queued;
  }

  void records() noexcept {
    SHMTREE_DCHECK(has_slots() && memory::HeldLocks::contains(shared_.receivers_lock));
    const std::uint64_t head = load_relaxed(shared_.head);
    Counts counts;
    const auto mark = [&](BlockRef block) { return pass_.mark(block), true; };
    const auto repair = [&](Record& record) { return repair_record(record, head, counts), true; };
    const Walked walked = for_each_record(control_, repair, mark);
    if (walked == Walked::kUnmapped) pass_.give_up();
    store_relaxed(shared_.taken, counts.taken);
    store_relaxed(shared_.rejected, counts.rejected);
    store_relaxed(shared_.returned, counts.returned);
    store_relaxed(shared_.also_queued, counts.returned);
    const std::uint64_t in = std::max(load_relaxed(shared_.bytes_in), queued_bytes_);  // the word may be damaged
    store_relaxed(shared_.bytes_in, in);
    store_relaxed(shared_.bytes_out, in - queued_bytes_);
  }

  void members() noexcept {
    for (std::uint32_t slot = 0; slot < memory::kMaxParticipants; ++slot) {
      if (!pass_.dead().contains(slot)) continue;
      for (const End end : kEnds) {
        EndState& mine = shared_.ends[end];
        const bool used_only_the_other = !mine.users.contains(slot) && shared_.ends[other(end)].users.contains(slot);
        if (!mine.members.contains(slot) || (used_only_the_other && !control_.is_maker(slot))) continue;
        store_seq_cst(mine.begun, 1u);
        if (pass_.dead().was_killed(slot)) add_killed(mine.killed, arena_.participants().known_pid(slot));
      }
      // Members are removed before users: if recovery dies in between, the remaining bits still say which end was used.
      for (EndState& end : shared_.ends) end.members.remove(slot);
      for (EndState& end : shared_.ends) end.users.remove(slot);
      for (EndState& end : shared_.ends) end.given.remove(slot);
      for (EndState& end : shared_.ends) end.passive.remove(slot);
      for (ParticipantSet& watchers : shared_.watchers) watchers.remove(slot);
      for (ParticipantSet& awaiting : shared_.awaiting) awaiting.remove(slot);
      for (memory::SleepTime& slept : shared_.slept) slept.sleepers.remove(slot);
      for (std::atomic<Identity>& reserved : shared_.reserved) {
        Identity by = load_acquire(reserved);
        if (by != memory::kNoIdentity && memory::slot_of(by) == slot)
          compare_swap(reserved, by, Identity{memory::kNoIdentity});
      }
    }
  }

 private:
  std::byte* block(std::uint64_t packed) noexcept {
    const BlockRef ref = memory::unpack(packed);
    if (!arena_.blocks().is_current(ref)) return nullptr;
    std::byte* data = arena_.blocks().address(ref.id);
    if (data == nullptr) pass_.give_up();
    return data;
  }
  std::uint64_t space(std::uint64_t packed) noexcept { return arena_.blocks().capacity_of(memory::unpack(packed).id); }
  void keep(std::uint64_t packed, bool delivered) noexcept {
    const BlockRef ref = memory::unpack(packed);
    if (packed == 0 || !arena_.blocks().is_current(ref)) return;
    pass_.mark(ref);
    arena_.reclaimer().set_delivered(ref, delivered);
  }
  // Like Control::counted_bytes(), but limited: with damaged words, every slot may name the same long list.
  std::uint64_t counted_bytes(const RingSlot& slot) noexcept {
    const std::uint64_t packed = load_once(slot.block), bytes = load_once(slot.bytes);
    if (packed == 0) return bytes;
    references_left_ += kMoreReferencesOfMessage;
    return bytes + arena_.blocks().referred_bytes(memory::unpack(packed), &references_left_);
  }
  struct Counts {
    std::uint32_t taken = 0, returned = 0, rejected = 0;
  };
  bool is_there(Identity identity) const noexcept {
    return identity != memory::kNoIdentity && !pass_.dead().contains(memory::slot_of(identity)) &&
           arena_.participants().is_alive(identity);
  }
  // Returns the word of a record without its dead taker: the predecessor's messages go to its successor, all others
  // back to the channel.
  std::uint64_t without_taker(const Record& record, std::uint64_t word) const noexcept {
    const Identity successor = load_acquire(shared_.successor);
    const bool is_left = state_of_record(word) == RecordState::kTaken &&
                         taker_of_record(word) == load_acquire(shared_.predecessor) && is_there(successor);
    if (!is_left) return given_back(word, load_once(shared_.max_attempts), load_relaxed(record.failed_builds));
    return record_word(RecordState::kTaken, successor, attempts_of_record(word));
  }
  void repair_record(Record& record, std::uint64_t head, Counts& counts) noexcept {
    const std::uint64_t word = load_acquire(record.state);
    RecordState state = state_of_record(word);
    if (state == RecordState::kFree) return;
    if (load_once(record.slot().ticket) >= head) {  // its taker died before it stored `head`
      store_release(record.state, kFreeRecord);
      return;
    }
    const Identity taker = taker_of_record(word);
    const bool in_hand =
        state == RecordState::kTaken || (state == RecordState::kRejected && taker != memory::kNoIdentity);
    std::uint64_t now = word;
    if (in_hand && !is_there(taker)) now = without_taker(record, word);
    now = control_.unless_discarded(now);
    if (now != word) store_release(record.state, now);
    state = state_of_record(now);
    if (state == RecordState::kFree) return;  // nothing keeps its block
    if (awaits_ack(state)) ++counts.taken;
    if (state == RecordState::kRejected) ++counts.rejected;
    if (state == RecordState::kReturned) {
      ++counts.returned;
      queued_bytes_ += counted_bytes(record.slot());
    }
    keep(load_once(record.slot().block), true);
  }

  const Control control_;
  Arena& arena_;
  ChannelHeader& shared_;
  ReconcilePass& pass_;
  std::uint64_t queued_bytes_ = 0;  // of the ring, then also of returned messages
  std::uint64_t references_left_ = kMaxReferencesOfChannel;
};

}  // namespace

void wake_after_loss(Arena& arena, BlockRef channel) noexcept {
  if (const auto control = control_at(arena, channel)) wake_waiters(*control);
}

void repair_channel(Arena& arena, BlockRef channel, ReconcilePass& pass) {
  auto* const shared = reinterpret_cast<ChannelHeader*>(arena.blocks().address(channel.id));
  if (shared == nullptr) pass.give_up();
  if (shared == nullptr || shared->magic != kChannelMagic) return;
  const Control control{arena, *shared, channel, load_once(shared->slot_bytes)};
  {
    const Held senders(arena, pass, shared->senders_lock);
    if (!senders.is_taken()) return;
    const Held receivers(arena, pass, shared->receivers_lock);
    if (!receivers.is_taken()) return;
    Repair repair(control, pass);
    repair.members();
    if (repair.has_slots()) {
      repair.tap();
      repair.ring();
      repair.records();
    }
  }
  wake_waiters(control);
}

}  // namespace shmtree::channel
