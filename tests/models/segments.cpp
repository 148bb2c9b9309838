// A ring of a channel that grows: the sender appends a segment, and the receiver moves to it and frees the first one.
// No message is lost or taken for another, and no segment is used after it was freed.
#include "channel_ring.h"

namespace {

using namespace model;

constexpr std::uint64_t kMessages = 2;

void send() {
  const Identity me = identity_of(kSender);
  OwnedBlock none;
  MODEL_ASSERT(put(0, none) == RingTail::Space::kYes);
  OwnedBlock spare(arena_of(kSender).reclaimer(), {block_ref(1), reinterpret_cast<std::byte*>(data[1])}, me,
                   sizeof data[1], false);
  new (spare.data()) SegmentHeader{0, 1, {0}, {}};
  const RingTail::Space space = put(1, spare);
  MODEL_ASSERT(space == RingTail::Space::kYes && "a sender finds a ring damaged");
}

void receive_all() {
  receive(kMessages, 3);
}

}  // namespace

void model::on_free(BlockId id) {
  segment(id.index()).next.store(7, std::memory_order_relaxed);  // the next use of the block
}

int main() {
  set_up_channel(0);
  set_up_block(1, BlockKind::kSegment);
  table[1].word.store(block_word(BlockState::kWriting, identity_of(kSender), 1), std::memory_order_relaxed);
  model::in_threads<send, receive_all>();
  const bool has_moved = channel_words.head_segment.load() == pack(block_ref(1));
  MODEL_ASSERT((!has_moved || state_of(table[0].word.load()) == BlockState::kFree) &&
               "a segment is not free after the receiver moved on");
}
