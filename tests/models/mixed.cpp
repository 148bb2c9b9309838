// A small message reuses the entry of a Broadcast's message that is in a block. One process passes the message and
// removes it (Ring::passed); another one overwrites the entry (Ring::write), with only the ring's lock if the message
// is gone. A reader gets the block, or nothing.
#include "broadcast_ring.h"

namespace {

using namespace model;

constexpr std::uint32_t kFirst = 0, kSecond = 1, kReader = 2;

void pass() {
  rings[kFirst]->passed();
}

void read() {
  broadcast::Incoming message;
  if (!rings[kReader]->read(0, message)) return;
  MODEL_ASSERT(message.bytes == 8 && message.block.ref() == block_ref(0) && "a reader takes a message for another");
  arena_of(kReader).holders().end_lease(block_ref(0), 0);
}

}  // namespace

void model::on_free(BlockId) {}

int main() {
  for (const std::uint32_t slot : {kFirst, kSecond, kReader}) {
    set_up(slot);
    set_up_ring(slot, broadcast::kBroadcastUse);
  }
  set_up_block(0, BlockKind::kPublished);
  put_block(kFirst, block_ref(0));
  shared_ring.header.tail.store(kRingEntries, std::memory_order_relaxed);  // the next put reuses the block's entry
  model::in_threads<pass, put_small_locked<kSecond>, read>();
}
