// A message of a Broadcast in a block, whose entry takes a small message next: a process that passes it drops the block
// (Ring::passed), and another one writes the entry (Ring::write), under the ring's lock alone if it comes second. A
// reader has the block, or nothing.
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
  shared_ring.header.tail.store(kRingEntries, std::memory_order_relaxed);  // the block's entry is next
  model::in_threads<pass, put_small_locked<kSecond>, read>();
}
