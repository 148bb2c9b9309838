// Deferred frees (Reclaimer::collect, unlock): two processes release blocks while a third one has the arena lock, or
// is about to release it. Each block is freed exactly once.
#include "no_waking.h"
#include "process.h"

namespace {

using namespace model;

constexpr std::uint32_t kOwner = 0, kReleaser = 1, kOther = 2;

void own() {
  Arena& arena = arena_of(kOwner);
  lock_arena(arena);
  arena.reclaimer().unlock();
}

void release() {
  arena_of(kReleaser).holders().drop(block_ref(0));
}

// Ends after the store of the hint: this process dies, or is slow, before it tries the lock again.
void defer_only() {
  arena_of(kOther).reclaimer().defer_free(block_ref(1), identity_of(kOther));
}

bool is_free(std::uint64_t block) {
  return state_of(table[block].word.load()) == BlockState::kFree;
}

}  // namespace

void model::on_free(BlockId) {}

int main() {
  for (const std::uint32_t slot : {kOwner, kReleaser, kOther}) set_up(slot);
  for (const std::uint64_t block : {0, 1}) set_up_block(block, BlockKind::kPublished);
  arena_of(kReleaser).holders().begin(block_ref(0), identity_of(kReleaser));
  model::in_threads<own, release, defer_only>();
  MODEL_ASSERT(is_free(0) && "no process has a block, and it is not free");
  MODEL_ASSERT((is_free(1) || header().deferred_hint.load() != 0) && "a deferred free is forgotten");
}
