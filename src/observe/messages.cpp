#include <algorithm>
#include <cstring>

#include "channel/layout.h"
#include "observe/channels.h"

namespace shmtree::observer {

using channel::RingSlot;
using channel::SegmentHeader;

namespace {

constexpr std::uint64_t kReceivedMeanwhile = 1024;  // limit for messages that receivers take during the walk

// Walks a ring's chain of segments from its head segment, and works on copies of their headers.
class SegmentWalk {
 public:
  SegmentWalk(const ArenaFile& file, std::uint64_t packed, std::uint64_t slot_bytes) noexcept
      : file_(file), slot_bytes_(slot_bytes) {
    there_ = load(packed, now_);
  }

  // Finds the slot of a ticket: its segment becomes block(), and `offset` its offset in that block. Tickets must
  // ascend. Returns false if the chain does not contain the ticket.
  bool find(std::uint64_t ticket, std::uint64_t& offset) noexcept {
    while (there_ && now_.next != 0) {
      Segment next;
      there_ = load(now_.next, next);
      if (!there_ || ticket < next.base) break;
      if (next.base <= now_.base) there_ = false;  // bases must ascend; otherwise the chain is damaged
      now_ = next;
    }
    if (!there_ || ticket < now_.base) return false;
    offset = sizeof(SegmentHeader) + ((ticket - now_.base) & (now_.slots - 1)) * slot_bytes_;
    return true;
  }
  BlockRef block() const noexcept { return now_.block; }

 private:
  struct Segment {
    BlockRef block{};
    std::uint64_t base = 0, slots = 0, next = 0;
  };

  bool load(std::uint64_t packed, Segment& out) const noexcept {
    SegmentHeader header{};
    const BlockRef block = memory::unpack(packed);
    if (packed == 0 || !file_.read_block(block, 0, &header, sizeof header)) return false;
    const std::uint64_t slots = header.slots;
    if (slots == 0 || (slots & (slots - 1)) != 0 || slots > channel::kMaxSlots) return false;
    out = {block, header.base, slots, header.next.load()};
    return true;
  }

  const ArenaFile& file_;
  std::uint64_t slot_bytes_;
  Segment now_;
  bool there_ = false;
};

std::vector<std::byte> copy_frame(const ArenaFile& file, BlockRef segment, std::uint64_t offset, const RingSlot& slot,
                                  std::uint64_t slot_bytes, std::uint64_t max_bytes) {
  const BlockRef block = slot.block == 0 ? segment : memory::unpack(slot.block);
  const std::uint64_t from = slot.block == 0 ? offset + sizeof(RingSlot) : 0;
  const std::uint64_t available = slot.block == 0 ? channel::inline_bytes(slot_bytes) : max_bytes;
  if (slot.bytes > std::min(available, max_bytes)) return {};
  std::vector<std::byte> frame(slot.bytes);
  if (!file.read_block(block, from, frame.data(), frame.size())) return {};
  return frame;
}

}  // namespace

std::vector<MessageInfo> snapshot_messages(const ArenaFile& file, BlockRef channel,
                                           const ObservedParticipants& participants, std::size_t most,
                                           std::uint64_t max_bytes) {
  std::vector<MessageInfo> found;
  bool still = false;
  const auto header = file.read_still<channel::ChannelHeader>(channel, still);
  if (header == nullptr || header->magic != channel::kChannelMagic || !channel::is_slot_size(header->slot_bytes)) {
    return found;
  }
  const std::uint64_t slot_bytes = header->slot_bytes, head = header->head.load(), tail = header->tail.load();
  SegmentWalk walk(file, header->head_segment.load(), slot_bytes);
  const std::uint64_t last = head + std::min<std::uint64_t>(std::max(tail, head) - head, most + kReceivedMeanwhile);
  for (std::uint64_t ticket = head; ticket < last && found.size() < most; ++ticket) {
    std::uint64_t offset = 0;
    RingSlot slot{}, again{};
    if (!walk.find(ticket, offset) || !file.read_block(walk.block(), offset, &slot, sizeof slot)) break;
    MessageInfo info{.ticket = ticket, .bytes = slot.bytes, .in_block = slot.block != 0};
    if (participants.is_alive(slot.sender)) info.sender = participants.pid_of(memory::slot_of(slot.sender));
    info.frame = copy_frame(file, walk.block(), offset, slot, slot_bytes, max_bytes);
    // If the message was received meanwhile, another message may already use its slot.
    std::uint64_t received = 0;
    const bool is_there =
        file.read_block(walk.block(), offset, &again, sizeof again) && std::memcmp(&slot, &again, sizeof slot) == 0 &&
        slot.ticket == ticket &&
        file.read_block(channel, offsetof(channel::ChannelHeader, head), &received, sizeof received) &&
        received <= ticket;
    if (is_there) found.push_back(std::move(info));
  }
  return found;
}

}  // namespace shmtree::observer
