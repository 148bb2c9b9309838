#include "channel/tap_notes.h"

#include <cstring>

#include "platform/clock.h"
#include "platform/dcheck.h"
#include "platform/machine.h"

namespace shmtree::channel {

using namespace platform;

std::optional<TapNotes> TapNotes::at(const memory::BlockTable& blocks, std::uint64_t slot_bytes,
                                     std::uint64_t packed) noexcept {
  const memory::BlockRef ref = memory::unpack(packed);
  if (packed == 0 || !blocks.is_current(ref)) return std::nullopt;
  auto* header = reinterpret_cast<TapHeader*>(blocks.address(ref.id));
  const std::uint64_t available = blocks.capacity_of(ref.id);
  if (header == nullptr || available < sizeof(TapHeader)) return std::nullopt;
  const std::uint64_t count = load_once(header->count);
  const bool times_only = load_once(header->times_only) == 1;
  if (!std::has_single_bit(count) || count > max_tap_notes(times_only)) return std::nullopt;
  if (!is_slot_size(slot_bytes)) return std::nullopt;  // so that the product below does not overflow
  if (count * tap_note_bytes(slot_bytes, times_only) > available - sizeof(TapHeader)) return std::nullopt;
  return TapNotes(blocks, slot_bytes, header, count, times_only);
}

void TapNotes::add(const Segment& segment, std::uint64_t first, std::uint64_t count) const noexcept {
  SHMTREE_DCHECK(count != 0);
  const std::int64_t now = monotonic_ns();
  const int thread = times_only_ ? thread_id() : 0;
  for (std::uint64_t ticket = first; ticket != first + count; ++ticket) {
    if (ticket - load_acquire(header_->read) >= count_) return;
    times_only_ ? add_times(ticket, now, thread) : add_one(segment.at(ticket), ticket, now);
  }
}

void TapNotes::add_times(std::uint64_t ticket, std::int64_t now, int thread) const noexcept {
  TapNote& note = of(ticket);
  store_relaxed(note.ticket, ticket + 1);
  store_relaxed(note.put_ns, now);
  store_relaxed(note.put_pid, process_id());
  store_relaxed(note.put_thread, thread);
  store_relaxed(note.got_ns, std::int64_t{0});
}

void TapNotes::note_receipt(std::uint64_t ticket) const noexcept {
  TapNote& note = of(ticket);
  if (!times_only_ || load_relaxed(note.ticket) != ticket + 1) return;
  store_relaxed(note.got_pid, process_id());
  store_relaxed(note.got_thread, thread_id());
  store_relaxed(note.got_ns, monotonic_ns());
}

void TapNotes::add_one(const RingSlot& slot, std::uint64_t ticket, std::int64_t now) const noexcept {
  TapNote& note = of(ticket);
  const std::uint64_t packed = load_once(slot.block), frame_bytes = load_once(slot.bytes);
  std::uint64_t in = load_relaxed(header_->bytes_in);
  if (packed == 0) {
    if (frame_bytes > inline_bytes_) return;  // the slot is damaged
  } else {
    const std::uint64_t kept = in - load_acquire(header_->bytes_out),
                        bytes = frame_bytes + blocks_->referred_bytes(memory::unpack(packed));
    if (kept != 0 && kept + bytes > header_->max_bytes) return;
    in += bytes;
  }
  store_relaxed(note.ticket, ticket + 1);
  store_relaxed(note.put_ns, now);
  store_relaxed(note.bytes, in);
  store_relaxed(note.frame_bytes, frame_bytes);
  if (packed == 0) {
    std::memcpy(note.inline_data(), slot.inline_data(), frame_bytes);
  } else {
    store_release(note.block, packed);  // the ticket, stored before, identifies the put
    memory::BlockEntry* block = blocks_->entry(memory::unpack(packed).id);
    if (block != nullptr) block->holders.add(memory::slot_of(load_once(header_->owner)));
  }
  store_relaxed(header_->bytes_in, in);
}

void TapNotes::forget_from(std::uint64_t tail) const noexcept {
  for (std::uint64_t number = 0; number < count_; ++number) {
    TapNote& note = of(number);
    const std::uint64_t ticket = load_relaxed(note.ticket);
    if (ticket == 0 || ticket - 1 < tail) continue;
    const memory::BlockRef ref = memory::unpack(load_acquire(note.block));
    if (load_relaxed(note.block) != 0 && blocks_->is_current(ref)) {
      blocks_->entry(ref.id)->holders.remove(memory::slot_of(load_once(header_->owner)));
    }
    store_relaxed(note.block, std::uint64_t{0});
    store_relaxed(note.ticket, std::uint64_t{0});
  }
}

}  // namespace shmtree::channel
