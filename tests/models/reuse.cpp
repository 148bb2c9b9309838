// An optimistic pin that comes too late (HolderTable::begin_while, Reclaimer::collect_after_failed_pin): the block was
// freed and is in use again. The reader's bit may prevent the next free of the block. Then the reader frees it.
#define MODEL_PROCESSES 65
#include "no_waking.h"
#include "process.h"

namespace {

using namespace model;

constexpr std::uint32_t kUser = 0, kReader = 64;  // in another word of holder bits

std::atomic<std::uint64_t> ticket;  // of the entry that referred to the block's earlier use, and has changed

// Does what Allocator::allocate() and Arena::hold_new() do.
void use_again() {
  Arena& arena = arena_of(kUser);
  const Identity me = identity_of(kUser);
  const BlockRef again{block_ref(0).id, 2};
  lock_arena(arena);
  platform::store_release(table[0].word, block_word(BlockState::kWriting, me, again.generation));
  arena.reclaimer().unlock();
  OwnedBlock block(arena.reclaimer(), {again, reinterpret_cast<std::byte*>(data[0])}, me, kBlockBytes, false);
  arena.holders().begin(again, me);
  block.publish();
  arena.holders().drop(again);
}

void read() {
  const auto tried = arena_of(kReader).holders().begin_while(block_ref(0), identity_of(kReader), ticket, 1);
  MODEL_ASSERT(tried == HolderTable::Tried::kChanged && "a reader holds a version that is gone");
}

}  // namespace

void model::on_free(BlockId) {}

int main() {
  set_up(kUser);
  set_up(kReader);
  set_up_block(0, BlockKind::kPublished);
  table[0].word.store(block_word(BlockState::kFree, kNoIdentity, 1), std::memory_order_relaxed);
  model::in_threads<use_again, read>();
  MODEL_ASSERT(state_of(table[0].word.load()) == BlockState::kFree && "no process has the block, and it is not free");
}
