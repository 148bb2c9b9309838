// Allocates blocks within the budget of the arena and the memory of the machine. Waits while messages that receivers
// will free use the memory.
//
// Invariants:
//   - A block's `committed` is raised, under the arena lock, before its pages are allocated, and lowered again if that
//     fails. So neither the counts nor the file ever exceed the budget.
//   - A block belongs to the process that takes it off its list, even to a child that was forked during the call.
//   - A process commits pages only under a claim, for which the machine and its control groups have memory beside the
//     claims of other processes (platform/memory_claim.h).
//   - The shrinker drops messages that readers may miss before a call waits for memory or fails.
//   - No call waits for memory that only held blocks or DMA pins keep: after 1 s it fails with the numbers.
//
// Thread safety: any thread.
#pragma once

#include "memory/inspector.h"
#include "memory/reconciler.h"

namespace shmtree::memory {

class Allocator {
 public:
  Allocator(const ArenaParts& parts, Reconciler& reconciler, const Inspector& inspector) noexcept
      : parts_(parts), header_(parts.mapping.header()), reconciler_(reconciler), inspector_(inspector) {}

  // Allocates a block of at least `bytes`, with its pages committed. Waits while undelivered messages use the budget.
  //   kMessageTooLarge    `bytes` exceeds the budget; at once
  //   kOutOfSharedMemory  for 1 s only held blocks, or the machine, prevented it; at once if the call may not block
  //   kFull               the deadline passed
  Result<OwnedBlock> allocate(std::uint64_t bytes, BlockKind kind, const platform::WaitContext& wait);
  // Called by an allocation without space before it waits. Frees at least `bytes`, if it can, in blocks of that arena
  // that readers may miss. Returns true if it freed any. Set at most once.
  using Shrinker = bool (*)(const ArenaHeader& of, std::uint64_t bytes, const platform::WaitContext& wait);
  static void set_shrinker(Shrinker shrinker) noexcept;
  // Returns the pages of free blocks to the system; the result is their number of bytes.
  std::uint64_t trim() noexcept;
  // Records that this process has pages of held blocks registered for DMA, or no longer has. While any process has, no
  // process returns the pages of free blocks to the system: a device would still access the old pages.
  Status set_pinned(bool pinned, const platform::WaitContext& wait);

 private:
  struct Request {
    std::uint64_t bytes, pages;  // requested bytes, and the same in whole pages
    BlockKind kind;
  };
  Result<OwnedBlock> try_allocate(const Request& request, const platform::WaitContext& wait, bool* short_of_machine);
  bool free_machine_memory(std::uint64_t need, const platform::WaitContext& wait);
  Result<OwnedBlock> commit(const BlockPool::Taken& taken, Identity me, const Request& request,
                            const platform::WaitContext& wait, bool* short_of_machine);
  std::uint64_t evict(std::uint64_t want, const platform::WaitContext& wait) noexcept;
  bool is_kept_by_pins(std::uint64_t bytes) const noexcept;
  Error no_space(std::uint64_t bytes, bool short_of_machine) const;

  const ArenaParts parts_;
  ArenaHeader& header_;
  Reconciler& reconciler_;
  const Inspector& inspector_;
};

}  // namespace shmtree::memory
