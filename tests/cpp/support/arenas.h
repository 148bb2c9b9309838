// Arenas for tests of the memory layer, and the smallest channel with which recovery can be tested.
#pragma once

#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "memory/reconciler.h"
#include "platform/atomics.h"
#include "support/arena_check.h"
#include "support/process.h"

namespace shmtree::test {

using namespace platform;
using memory::Arena;
using memory::ArenaOptions;
using memory::BlockEntry;
using memory::BlockId;
using memory::BlockKind;
using memory::BlockRef;
using memory::BlockState;
using memory::Lease;
using memory::OwnedBlock;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

inline std::shared_ptr<Arena> new_arena(std::uint64_t max_bytes = 16 * kMiB) {
  ArenaOptions options;
  options.max_bytes = max_bytes;
  return Arena::create(options).value();
}

inline WaitContext no_wait() {
  return WaitContext{Deadline::immediate()};
}
inline WaitContext patience(std::int64_t ms = 60'000) {
  return WaitContext{Deadline::after_ns(ms * 1'000'000)};
}

inline OwnedBlock new_block(Arena& arena, std::uint64_t bytes = 4096, BlockKind kind = BlockKind::kMessage) {
  return arena.allocate(bytes, kind, patience()).value();
}
inline Lease new_lease(Arena& arena, std::uint64_t bytes = 4096) {
  return arena.hold_new(new_block(arena, bytes, BlockKind::kArray)).value();
}

// Overwrites every free byte of the arena.
inline void overfill(Arena& arena) {
  std::vector<OwnedBlock> blocks;
  for (std::uint64_t bytes = arena.pool().max_bytes(); bytes >= 4096; bytes /= 2) {
    while (true) {
      auto block = arena.allocate(bytes, BlockKind::kArray, no_wait());
      if (!block) break;
      std::memset(block->data(), 0xee, bytes);
      blocks.push_back(std::move(*block));
    }
  }
}

inline bool is_filled(const Lease& lease, int value) {
  for (std::uint64_t i = 0; i < lease.bytes(); ++i) {
    if (lease.data()[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

inline Lease filled_lease(Arena& arena, std::uint64_t bytes, int value) {
  Lease lease = new_lease(arena, bytes);
  std::memset(lease.data(), value, bytes);
  return lease;
}

// Returns the lease of a pin that was begun.
inline Result<Lease> adopt_hold(Arena& arena, BlockRef ref) {
  auto lease = arena.share_hold(ref);
  arena.holders().drop(ref);
  return lease;
}

inline std::uint64_t used_bytes(Arena& arena) {
  return arena.inspector().stats().used_bytes;
}
// Returns the bytes that the system has allocated for the arena's file.
inline std::uint64_t file_pages_bytes(const Arena& arena) {
  struct stat status {};
  fstat(arena.fd(), &status);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

// A window of block references in a channel's block. It uses the order of stores of a real channel, but one lock for
// both sides.
struct Window {
  static constexpr std::uint64_t kSlots = 64;
  std::atomic<std::uint32_t> lock;
  std::atomic<std::uint64_t> head, tail;
  std::atomic<std::uint64_t> slots[kSlots];

  static Window& of(Arena& arena, BlockRef channel) {
    return *reinterpret_cast<Window*>(arena.blocks().address(channel.id));
  }
  static Lease create(Arena& arena) {
    walk_windows();
    OwnedBlock block = new_block(arena, sizeof(Window), BlockKind::kChannel);
    std::memset(static_cast<void*>(block.data()), 0, sizeof(Window));
    return arena.hold_new(std::move(block)).value();
  }
  static void walk_windows() {
    memory::ReconcilePass::set_channel_walker([](Arena& arena, BlockRef channel, memory::ReconcilePass& pass) {
      Window& window = of(arena, channel);
      if (!pass.lock(window.lock).ok()) return;
      for (std::uint64_t at = load_relaxed(window.head); at < load_relaxed(window.tail); ++at) {
        pass.mark(memory::unpack(load_relaxed(window.slots[at % kSlots])));
      }
      arena.unlock(window.lock);
    });
  }

  std::uint64_t queued() const { return load_relaxed(tail) - load_relaxed(head); }

  bool put(Arena& arena, OwnedBlock block) {
    if (!arena.lock(lock, patience()).ok()) return false;
    const std::uint64_t at = load_relaxed(tail);
    const bool fits = at - load_relaxed(head) < kSlots;
    if (fits) {
      store_relaxed(slots[at % kSlots], memory::pack(block.ref()));
      store_release(tail, at + 1);
    }
    arena.unlock(lock);
    if (fits) block.publish();
    return fits;
  }
  // Returns the block at the head, pinned, or an invalid reference if the window is empty.
  BlockRef get(Arena& arena) {
    if (!arena.lock(lock, patience()).ok()) return {};
    BlockRef ref{};
    const std::uint64_t at = load_relaxed(head);
    if (at != load_relaxed(tail)) {
      ref = memory::unpack(load_relaxed(slots[at % kSlots]));
      arena.holders().begin(ref, arena.current_identity());
      arena.blocks().make_live(ref);
      store_release(head, at + 1);
    }
    arena.unlock(lock);
    return ref;
  }
};

#if defined(SHMTREE_CRASH_POINTS)
// Runs `act` in a child that is killed before its n-th change of shared memory. Returns false if it made fewer changes.
template <class Act>
bool killed_at_change(std::int64_t n, Act act) {
  Child child([&] {
    changes_until_crash.store(n);
    act();
    changes_until_crash.store(0);
    return true;
  });
  return child.was_killed();
}
#endif

}  // namespace shmtree::test
