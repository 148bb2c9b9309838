// Where blocks come from: pages within the budget of the arena and of the machine, waited for while messages that will
// be received have them.
//
// Invariants:
//   - A block's `committed` is raised, under the arena lock, before its pages are made, and lowered with what could not
//     be. So the budget is never exceeded, in the counts or in the file.
//   - A block is the process's that takes it, also when that is a child which was forked in the call.
//   - A process checks the machine's free memory before it commits more than a few MiB since its last check. A check is
//   valid for 100 ms only: other processes use the same memory.
//   - The shrinker drops messages that readers may miss before a call waits for memory or fails.
//   - Nobody waits for memory that only held blocks, or pins, keep: after a second that is an error with the numbers.
//
// Thread safety: any thread.
#pragma once

#include <string>

#include "memory/inspector.h"
#include "memory/reconciler.h"

namespace shmtree::memory {

// Why the machine does not give `bytes` more, in words; empty when it does.
std::string machine_shortage(std::uint64_t bytes);

class Allocator {
 public:
  Allocator(const ArenaParts& parts, Reconciler& reconciler, const Inspector& inspector) noexcept
      : parts_(parts), header_(parts.mapping.header()), reconciler_(reconciler), inspector_(inspector) {}

  // A block of at least `bytes`, its pages committed. Waits while undelivered messages hold the budget; then
  //   kMessageTooLarge    bytes over the budget, at once
  //   kOutOfSharedMemory  only held blocks, or the machine, are in the way, for 1 s (at once when it may not block)
  //   kFull               the deadline passed
  Result<OwnedBlock> allocate(std::uint64_t bytes, BlockKind kind, const platform::WaitContext& wait);
  // Called by an allocation without space before it waits. Frees at least `bytes`, if it can, in blocks of that arena
  // that readers may miss. Returns true if it freed any. Set at most once.
  using Shrinker = bool (*)(const ArenaHeader& of, std::uint64_t bytes, const platform::WaitContext& wait);
  static void set_shrinker(Shrinker shrinker) noexcept;
  // Gives the pages of free blocks back to the system; returns how many bytes.
  std::uint64_t trim() noexcept;
  // This process registers pages of blocks that it holds for DMA from now on, or has none any more. While any process
  // does, nobody gives the pages of free blocks back: a device would go on reading the old ones.
  Status set_pinned(bool pinned, const platform::WaitContext& wait);

 private:
  struct Request {
    std::uint64_t bytes, pages;  // asked for, and what that takes
    BlockKind kind;
  };
  Result<OwnedBlock> try_allocate(const Request& request, const platform::WaitContext& wait, bool* short_of_machine);
  bool make_room_in_machine(std::uint64_t need, const platform::WaitContext& wait);
  Result<OwnedBlock> commit(const BlockPool::Taken& taken, Identity me, const Request& request,
                            const platform::WaitContext& wait, bool* short_of_machine);
  std::uint64_t evict(std::uint64_t want, const platform::WaitContext& wait) noexcept;
  bool is_kept_by_pins(std::uint64_t bytes) const noexcept;
  Error no_room(std::uint64_t bytes, bool short_of_machine) const;

  const ArenaParts parts_;
  ArenaHeader& header_;
  Reconciler& reconciler_;
  const Inspector& inspector_;
};

}  // namespace shmtree::memory
