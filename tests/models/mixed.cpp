// A small message reuses the entry of a Broadcast's message that is in a block. One process passes the message and
// removes it (Ring::free_passed); another one overwrites the entry (Ring::write), with only the ring's lock if the
// message was removed. A reader gets the block, or nothing.
#include "broadcast_processes.h"

namespace {

using namespace model;

void pass() {
  rings[kFirst]->free_passed();
}

void read() {
  broadcast::Incoming message;
  if (!rings[kReader]->read(0, message)) return;
  MODEL_ASSERT(message.bytes == 8 && message.block.ref() == block_ref(0) && "a reader takes a message for another");
  arena_of(kReader).holders().end_lease(block_ref(0), 0);
}

}  // namespace

int main() {
  set_up_broadcast();
  set_up_block(0, BlockKind::kPublished);
  put_block(kFirst, block_ref(0));
  shared_ring.header.tail.store(kRingEntries, std::memory_order_relaxed);  // the next put reuses the block's entry
  model::in_threads<pass, put_small_locked<kSecond>, read>();
}
