#include "memory/owned_block.h"

#include <utility>

#include "memory/reclaimer.h"

namespace shmtree::memory {

using namespace platform;

void OwnedBlock::publish() noexcept {
  SHMTREE_DCHECK(valid());
  Reclaimer& reclaimer = *std::exchange(reclaimer_, nullptr);
  std::uint64_t word = block_word(BlockState::kWriting, writer_, ref_.generation);
  // A receiver may have made the block live already, and even have released it.
  compare_swap_seq_cst(reclaimer.table_.entry(ref_.id)->word, word, live_word(ref_.generation));
}

void OwnedBlock::give_back() noexcept {
  Reclaimer& reclaimer = *std::exchange(reclaimer_, nullptr);
  BlockEntry* entry = reclaimer.table_.entry(ref_.id);
  // In a forked child the block is still the parent's.
  if (entry == nullptr || writer_ != reclaimer.participants_.current()) return;
  // No other process knows the block, so it can be freed at once. A channel's block would wait for a reconcile.
  store_relaxed(entry->kind, static_cast<std::uint32_t>(BlockKind::kMessage));
  std::uint64_t word = block_word(BlockState::kWriting, writer_, ref_.generation);
  if (compare_swap_seq_cst(entry->word, word, live_word(ref_.generation))) {
    reclaimer.collect(ref_);
  }
}

}  // namespace shmtree::memory
