// The memory layer of a process (src/memory), over one arena that all threads of a model share. Each thread stands for
// a process. The objects are set up by hand, without a file. The functions that are replaced below are not part of the
// protocols that the models check: counts of bytes, lists of free blocks, recovery.
#pragma once

#include "memory/arena.h"
#include "memory/holder_table.cpp"
#include "memory/mapping.cpp"
#include "memory/reclaimer.cpp"
#include "model.h"

namespace model {

using namespace shmtree;
using namespace shmtree::memory;

#ifndef MODEL_PROCESSES
#define MODEL_PROCESSES 3
#endif
constexpr std::uint32_t kProcesses = MODEL_PROCESSES;
constexpr std::uint64_t kBlocks = 2;
constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr std::uint64_t kBlockBytes = 1 << kMinClass;

// --- The arena

struct ArenaWords {
  alignas(kHeaderBytes) ArenaHeader header;
  alignas(kHeaderBytes) Participant participants[kProcesses];
};
static_assert(offsetof(ArenaWords, participants) == kHeaderBytes);
inline constinit ArenaWords arena_words{};
inline constinit BlockEntry table[kBlocks]{};
alignas(64) inline constinit std::uint64_t data[kBlocks][kBlockBytes / 8]{};
inline std::atomic<std::byte*> table_piece{reinterpret_cast<std::byte*>(table)};
inline std::atomic<std::byte*> data_piece{reinterpret_cast<std::byte*>(data)};

inline ArenaHeader& header() {
  return arena_words.header;
}
constexpr BlockRef block_ref(std::uint64_t index) {
  return {BlockId::make(kMinClass, index), 1};
}

// Called for each block that is freed, under the arena lock.
void on_free(BlockId id);

// --- One process's objects

template <class T>
struct Raw {
  alignas(T) std::byte bytes[sizeof(T)];
  T& operator*() { return reinterpret_cast<T&>(bytes); }
  T* operator->() { return &**this; }
};

struct Process {
  Raw<Arena> arena;
  Raw<Mapping> mapping;
};
inline constinit Process processes[kProcesses]{};

inline Identity identity_of(std::uint32_t slot) {
  return make_identity(slot, 1);
}

inline void set_up_block(std::uint64_t index, BlockKind kind) {
  table[index].word.store(live_word(1), std::memory_order_relaxed);
  table[index].kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
  table[index].committed.store(kBlockBytes, std::memory_order_relaxed);
  table[index].size.store(kBlockBytes, std::memory_order_relaxed);
}

// Sets up the objects of a process. Call it before the threads begin.
inline void set_up(std::uint32_t slot) {
  Process& process = processes[slot];
  Mapping& mapping = *process.mapping;
  mapping.control_ = reinterpret_cast<std::byte*>(&arena_words);
  mapping.max_bytes_ = kMaxBytes;
  mapping.geometry_.max_class_ = kMinClass;
  mapping.geometry_.count_[0] = kBlocks;
  mapping.tables_[0].list.store(&table_piece, std::memory_order_relaxed);
  mapping.data_[0].list.store(&data_piece, std::memory_order_relaxed);
  Arena& arena = *process.arena;
  new (&arena.blocks_) BlockTable(mapping);
  new (&arena.participants_) Participants(header(), arena_words.participants, mapping.file());
  arena.participants_.identity_.store(identity_of(slot), std::memory_order_relaxed);
  new (&arena.pool_) BlockPool(mapping, arena.blocks_, arena.held_);
  new (&arena.reclaimer_) Reclaimer(arena, mapping, arena.blocks_, arena.participants_, arena.pool_);
  const ArenaParts parts{mapping, arena.blocks_, arena.participants_, arena.pool_, arena.reclaimer_};
  new (&arena.reconciler_) Reconciler(arena, parts);
  new (&arena.holders_) HolderTable(parts, arena.held_, arena.reconciler_);
  header().participants_high.store(slot + 1, std::memory_order_relaxed);
  header().class_state(kMinClass).high.store(kBlocks, std::memory_order_relaxed);
}

inline Arena& arena_of(std::uint32_t slot) {
  return *processes[slot].arena;
}

inline std::shared_ptr<Arena> shared_arena_of(std::uint32_t slot) {
  return {std::shared_ptr<Arena>(), &arena_of(slot)};  // counts no references
}

// Takes the arena lock. Ignores executions in which another process has it: the real call waits.
inline void lock_arena(Arena& arena) {
  assume(arena.reclaimer_.try_lock());
}

}  // namespace model

namespace shmtree::platform {

ForkSafeMutex::ForkSafeMutex() {}
ForkSafeMutex::~ForkSafeMutex() {}
void ForkSafeMutex::lock() noexcept {}  // each process has one thread
std::int64_t coarse_monotonic_ns() noexcept {
  return 0;
}

}  // namespace shmtree::platform

namespace shmtree::memory {

bool Participants::is_alive(Identity) const noexcept {
  return true;
}
bool Participants::is_pinned() const noexcept {
  return false;
}
void HeldBytes::count(BlockEntry&) noexcept {}
std::uint64_t BlockPool::excess_bytes() const noexcept {
  return 0;
}
std::size_t BlockPool::take_victims(std::uint64_t, Identity, Victim*) noexcept {
  return 0;
}
// Makes the same stores as the real function, without the lists.
void BlockPool::put(BlockId id, BlockEntry& block) noexcept {
  const std::uint64_t word = platform::load_relaxed(block.word);
  MODEL_ASSERT(state_of(word) == BlockState::kLive && "a block is freed twice");
  platform::store_release(block.word, block_word(BlockState::kFree, kNoIdentity, generation_of_block(word)));
  model::on_free(id);
}

Result<Lease> Arena::hold_while(BlockRef ref, const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  if (holders_.begin_while(ref, current_identity(), word, value) != HolderTable::Tried::kDone || !holders_.adopt(ref))
    return Error{Code::kNotFound};
  Lease lease;
  lease.ref_ = ref;
  lease.bytes_ = model::kBlockBytes;
  return lease;
}
void Lease::reset() noexcept {}  // models call end_lease()

}  // namespace shmtree::memory
