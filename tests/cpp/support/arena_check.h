// The invariants of an arena, as a function.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/arena.h"

namespace shmtree::memory {

// Walks the whole arena. Changes nothing in it, and commits no pages.
class ArenaCheck {
 public:
  explicit ArenaCheck(Arena& arena) noexcept
      : header_(arena.header()), blocks_(arena.blocks()), pool_(arena.pool()), transfers_(arena.transfers()) {}

  std::string run() {
    for (unsigned k = kMinClass; k <= blocks_.geometry().max_class(); ++k) {
      std::vector<bool> listed(blocks_.walked_entries(k), false);
      std::string wrong = check_lists(k, listed);
      if (wrong.empty()) wrong = check_blocks(k, listed);
      if (!wrong.empty()) return wrong;
    }
    std::string wrong = check_refcounts();
    return wrong.empty() ? check_counts() : wrong;
  }

 private:
  static std::string name_of(BlockId id) { return std::to_string(id.size_class()) + "/" + std::to_string(id.index()); }

  std::string check_lists(unsigned size_class, std::vector<bool>& listed) {
    ClassState& state = header_.class_state(size_class);
    for (std::atomic<std::uint64_t>* list : {&state.resting_first, &state.warm, &state.cold}) {
      std::uint64_t count = 0, last = 0;
      for (std::uint64_t next = platform::load_acquire(*list); next != 0;) {
        if (next > listed.size() || listed[next - 1]) {
          return "a free list of class " + std::to_string(size_class) + " is broken";
        }
        listed[next - 1] = true;
        const BlockEntry& block = *blocks_.entry(BlockId::make(size_class, next - 1));
        if (state_of(platform::load_acquire(block.word)) != BlockState::kFree)
          return "a free list contains a block in use";
        if ((platform::load_relaxed(block.committed) == 0) != (list == &state.cold))
          return "a free block is on the wrong list";
        ++count;
        last = std::exchange(next, platform::load_relaxed(block.next_free));
      }
      if (list == &state.resting_first && (count != platform::load_relaxed(state.resting_count) ||
                                           last != platform::load_relaxed(state.resting_last))) {
        return "the queue of resting blocks of class " + std::to_string(size_class) + " is broken";
      }
    }
    return "";
  }

  std::string check_blocks(unsigned size_class, const std::vector<bool>& listed) {
    for (std::uint64_t index = 0; index < listed.size(); ++index) {
      const BlockId id = BlockId::make(size_class, index);
      const BlockEntry& block = *blocks_.entry(id);
      const std::uint64_t committed = platform::load_acquire(block.committed);
      committed_ += committed;
      if (state_of(platform::load_acquire(block.word)) == BlockState::kFree) {
        if (!listed[index]) return "free block " + name_of(id) + " is on no list";
        continue;
      }
      used_ += committed;
      if ((platform::load_relaxed(block.flags) & kCountedHeld) != 0) held_ += committed;
    }
    return "";
  }

  std::string check_refcounts() const {
    std::unordered_map<std::uint64_t, std::uint32_t> referred;
    blocks_.for_each([&](BlockId id, const BlockEntry& block) {
      if (state_of(platform::load_acquire(block.word)) == BlockState::kFree) return;
      for (const ListEntry& item : blocks_.references_of(id, block)) {
        const BlockRef ref = ref_of(item);
        if (ref.id != id && blocks_.is_current(ref)) ++referred[ref.id.value];
      }
    });
    transfers_.for_each([&](const Transfer& transfer) {
      const BlockRef ref = unpack(platform::load_relaxed(transfer.block));
      const bool counts =
          TransferTable::has_reference(platform::load_acquire(transfer.state)) && blocks_.is_current(ref);
      if (counts) ++referred[ref.id.value];
      return true;
    });
    for (const auto& [id, count] : referred) {
      if (platform::load_relaxed(blocks_.entry(BlockId{id})->refcount) != count) {
        return "the refcount of " + name_of(BlockId{id}) + " is wrong";
      }
    }
    return "";
  }

  std::string check_counts() const {
    const auto differs = [](const char* what, std::uint64_t stored, std::uint64_t sum) {
      return std::string(what) + " is " + std::to_string(stored) + ", but blocks add up to " + std::to_string(sum);
    };
    if (pool_.committed_bytes() != committed_) return differs("committed_bytes", pool_.committed_bytes(), committed_);
    if (pool_.used_bytes() != used_) return differs("used_bytes", pool_.used_bytes(), used_);
    if (pool_.held_bytes() != held_) return differs("held_bytes", pool_.held_bytes(), held_);
    if (committed_ > pool_.max_bytes()) return differs("max_bytes", pool_.max_bytes(), committed_);
    if (platform::load_acquire(header_.arena_lock) != 0) return "the arena lock is taken";
    if (needs_recovery(header_)) return "derived state is marked for recovery";
    return "";
  }

  ArenaHeader& header_;
  const BlockTable& blocks_;
  const BlockPool& pool_;
  const TransferTable& transfers_;
  std::uint64_t committed_ = 0, used_ = 0, held_ = 0;
};

// Returns the first violated invariant, or an empty string. No other thread may use the arena meanwhile.
inline std::string check_arena(Arena& arena) {
  return ArenaCheck(arena).run();
}

}  // namespace shmtree::memory
