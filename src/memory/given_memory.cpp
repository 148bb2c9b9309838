#include "memory/given_memory.h"

#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "memory/control_block.h"
#include "platform/atomics.h"
#include "platform/fork.h"
#include "platform/never_destroyed.h"
#include "platform/sweep_pace.h"

namespace shmtree::memory {

using platform::Deadline;
using platform::WaitContext;

namespace {

// The list of references, of one or none, comes after it.
struct GrantBlock {
  std::atomic<std::uint64_t> is_open;
  std::uint64_t giver;  // its identity; written before anybody else knows the block
};

GrantBlock& grant_in(const Lease& lease) noexcept {
  return *reinterpret_cast<GrantBlock*>(lease.data());
}

struct Given {
  Lease grant;
  Identity giver;

  bool is_over() const noexcept {
    return platform::load_acquire(grant_in(grant).is_open) == 0 || grant.arena()->current_identity() != giver;
  }
};

// By the arena and the number of the grant.
using GivenMap = std::map<std::pair<const Arena*, std::uint64_t>, Given>;

struct AllGiven {
  platform::ForkSafeMutex mutex;
  GivenMap given;
  platform::SweepPace pace{64};
};
AllGiven& all_given() noexcept {
  return platform::never_destroyed<AllGiven>();
}

// What has arrived goes to `over`. Under the mutex, and without that is let go of.
void move_over(AllGiven& all, GivenMap& over) noexcept {
  for (auto each = all.given.begin(); each != all.given.end();) {
    const auto at = each++;
    if (at->second.is_over()) over.insert(all.given.extract(at));
  }
  all.pace.note_swept(all.given.size());
}

void sweep_if_due() noexcept {
  AllGiven& all = all_given();
  GivenMap over;
  const std::lock_guard guard(all.mutex);
  if (all.pace.is_due(all.given.size())) move_over(all, over);
}

}  // namespace

// Nothing is held: what is read counts if the block is in use as the same grant afterwards.
Identity giver_of(Arena& arena, std::uint64_t grant) noexcept {
  const BlockRef ref = unpack(grant);
  if (grant == 0 || !arena.blocks().is_current(ref)) return kNobody;
  const BlockEntry* entry = arena.blocks().entry(ref.id);
  const std::byte* data = arena.blocks().address(ref.id);
  if (entry == nullptr || data == nullptr || !is_kind(*entry, BlockKind::kGrant)) return kNobody;
  if (arena.blocks().room_of(ref.id) < sizeof(GrantBlock)) return kNobody;
  const auto& words = *reinterpret_cast<const GrantBlock*>(data);
  const auto giver = static_cast<Identity>(platform::load_once(words.giver));
  const bool is_open = platform::load_acquire(words.is_open) != 0;
  platform::fence_acquire();
  return is_open && arena.blocks().is_current(ref) ? giver : kNobody;
}

bool is_given(Arena& arena, std::uint64_t grant) noexcept {
  const Identity giver = giver_of(arena, grant);
  return giver != kNobody && arena.participants().is_alive(giver);
}

// Does not block: the processes that hold the memory may be waiting for this handle.
Result<std::uint64_t> give_memory(const std::shared_ptr<Arena>& arena, std::uint64_t block) try {
  sweep_if_due();
  GivenMap made;  // what can fail comes first
  made.try_emplace({});
  auto me = arena->identity();
  if (!me) return std::move(me).error();
  const WaitContext wait{Deadline::immediate()};
  const std::uint64_t bytes = sizeof(GrantBlock) + sizeof(ListEntry);
  auto noted = make_control_block(*arena, BlockKind::kGrant, bytes, wait);
  if (!noted) {
    Error error = std::move(noted).error();
    error.message = "there is no memory to note that something is on its way: " + error.message;
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  auto& words = *reinterpret_cast<GrantBlock*>(noted->data());
  words.giver = *me;
  platform::store_relaxed(words.is_open, std::uint64_t{1});
  const BlockRef given = unpack(block);
  auto held = hold_control_block(*arena, std::move(*noted), std::span(&given, block == 0 ? 0 : 1), wait);
  if (!held) return std::move(held).error();
  const std::uint64_t grant = pack(held->ref());
  auto node = made.extract(made.begin());
  node.key() = {arena.get(), grant};
  node.mapped() = {.grant = std::move(*held), .giver = *me};
  const std::lock_guard guard(all_given().mutex);
  all_given().given.insert(std::move(node));
  return grant;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void claim_memory(Arena& arena, std::uint64_t grant) noexcept {
  try {
    const BlockRef ref = unpack(grant);
    if (grant != 0 && arena.blocks().geometry().contains(ref.id)) {
      const auto held = open_control_block(arena, ref, BlockKind::kGrant, sizeof(GrantBlock), "a grant", WaitContext{});
      if (held) platform::store_release(grant_in(*held).is_open, std::uint64_t{0});
    }
  } catch (const std::bad_alloc&) {  // it is kept until its giver ends
  }
  {
    AllGiven& all = all_given();
    GivenMap::node_type own;
    const std::lock_guard guard(all.mutex);
    own = all.given.extract({&arena, grant});
  }
  sweep_if_due();
}

void sweep_given_memory() noexcept {
  GivenMap over;
  const std::lock_guard guard(all_given().mutex);
  move_over(all_given(), over);
}

}  // namespace shmtree::memory
