// The ring of a channel (RingTail, RingHead: src/channel/ring.cpp) with one sender and one receiver. Each has the
// lock of its side. Segments have one slot; the first segment is block 0.
#pragma once

#include "channel/ring.cpp"
#include "no_waking.h"
#include "process.h"

namespace model {

using namespace shmtree::channel;

constexpr std::uint32_t kSender = 0, kReceiver = 1;

inline ChannelHeader channel_words{};
inline constinit Raw<RingTail> tail{};
inline constinit Raw<RingHead> head{};

inline SegmentHeader& segment(std::uint64_t block) {
  return *reinterpret_cast<SegmentHeader*>(data[block]);
}

// `capacity`: maximum number of queued messages; 0: no limit.
inline void set_up_channel(std::uint64_t capacity) {
  set_up(kSender);
  set_up(kReceiver);
  set_up_block(0, BlockKind::kSegment);
  segment(0).slots = 1;
  channel_words.capacity = capacity;
  channel_words.limit.store(capacity, std::memory_order_relaxed);
  channel_words.tail_segment.store(pack(block_ref(0)), std::memory_order_relaxed);
  channel_words.head_segment.store(pack(block_ref(0)), std::memory_order_relaxed);
  new (&*tail) RingTail(channel::Control{arena_of(kSender), channel_words, {}, kNarrowSlotBytes});
  new (&*head)
      RingHead(channel::Control{arena_of(kReceiver), channel_words, {}, kNarrowSlotBytes}, shared_arena_of(kReceiver));
}

// Puts a message that contains its number (100 + `number`).
inline RingTail::Space put(std::uint64_t number, OwnedBlock& spare) {
  const std::uint64_t value = 100 + number;
  Outgoing message;
  message.inline_frame = {reinterpret_cast<const std::byte*>(&value), sizeof value};
  return tail->put({&message, 1}, identity_of(kSender), spare).space;
}

// Receives up to `messages` messages in at most `calls` calls.
inline void receive(std::uint64_t messages, int calls) {
  std::uint64_t received = 0;
  for (int call = 0; call < calls && received < messages; ++call) {
    Incoming message;
    Receipt receipt;
    const bool is_there = head->receive(message, identity_of(kReceiver), receipt);
    receipt.release_spent(arena_of(kReceiver));
    MODEL_ASSERT(!receipt.damaged && "a receiver takes a whole ring for damaged");
    if (!is_there) continue;
    MODEL_ASSERT(message.ticket() == received && message.bytes() == 8 && "a receiver takes a message for another");
    const auto* value = reinterpret_cast<const std::uint64_t*>(message.frame().data());
    MODEL_ASSERT(*value == 100 + received && "a message differs from what was put");
    ++received;
  }
}

}  // namespace model
