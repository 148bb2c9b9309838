#include "memory/transfers.h"

#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "platform/atomics.h"
#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/sweep_pace.h"

namespace shmtree::memory {

using namespace platform;

namespace {

// A transfer that this process began. It keeps the process attached to the arena.
struct Begun {
  std::shared_ptr<Arena> arena;
  const Transfer* entry = nullptr;
  Identity giver = kNoIdentity;

  bool is_over(std::uint64_t number) const noexcept {
    const std::uint64_t state = load_acquire(entry->state);
    return state == 0 || !is_same_transfer(state, number) || arena->current_identity() != giver;
  }
};

// The key is the arena and the number of the transfer.
using BegunMap = std::map<std::pair<const Arena*, std::uint64_t>, Begun>;

struct AllBegun {
  ForkSafeMutex mutex;
  BegunMap begun;
  SweepPace pace{64};
};
AllBegun& all_begun() noexcept {
  return never_destroyed<AllBegun>();
}

// Under the mutex. The caller destroys `over` without it, since that may destroy an arena.
void move_over(AllBegun& all, BegunMap& over) noexcept {
  for (auto each = all.begun.begin(); each != all.begun.end();) {
    const auto at = each++;
    if (at->second.is_over(at->first.second)) over.insert(all.begun.extract(at));
  }
  all.pace.note_swept(all.begun.size());
}

void sweep_if_due() noexcept {
  AllBegun& all = all_begun();
  BegunMap over;
  const std::lock_guard guard(all.mutex);
  if (all.pace.is_due(all.begun.size())) move_over(all, over);
}

std::uint64_t new_number(Identity me, Transferred what) noexcept {
  std::uint32_t random = 0;
  while (random == 0) {
    random_bytes(reinterpret_cast<unsigned char*>(&random), sizeof random);
    random >>= 1;
  }
  return transfer_state(random, me, what);
}

// Does not block: the processes that hold the memory may be waiting for this very handle.
Status add_entries(Arena& arena) {
  const std::uint64_t count = arena.transfers().entries();
  auto block =
      arena.allocate(chain_bytes(count, sizeof(Transfer)), BlockKind::kDeliveries, WaitContext{Deadline::immediate()});
  if (!block) {
    Error error = std::move(block).error();
    error.message =
        "no shared memory to record another transfer (" + std::to_string(count) + " are in transit): " + error.message;
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  arena.transfers().add_entries(block->ref(), block->data(), count);
  block->publish();
  return success();
}

Result<Transfer*> take_entry(Arena& arena, std::uint64_t number) {
  for (;;) {
    if (Transfer* entry = arena.transfers().take_entry(number)) return entry;
    Status added = add_entries(arena);
    if (!added) return std::move(added).error();
  }
}

// Holds the arena lock for a change of a transfer's word and of the refcount that follows it. If a stopped process has
// the lock, it requests a recovery, which recounts.
class CountedChange {
 public:
  CountedChange(Arena& arena, std::uint64_t block) noexcept
      : arena_(arena),
        block_(block),
        locked_(block != 0 && arena.reconciler().lock_arena_quietly(WaitContext{Deadline::immediate()})) {}
  ~CountedChange() {
    if (locked_) arena_.reclaimer().unlock();
  }
  CountedChange(const CountedChange&) = delete;
  CountedChange& operator=(const CountedChange&) = delete;

  void note_begun() noexcept {
    if (!locked_) return recount();
    if (BlockEntry* entry = arena_.blocks().entry(unpack(block_).id)) add(entry->refcount, 1u);
  }
  void note_ended() noexcept { locked_ ? arena_.reclaimer().drop_reference(unpack(block_)) : recount(); }

 private:
  void recount() noexcept {
    if (block_ != 0) request_recovery(arena_.header());
  }

  Arena& arena_;
  const std::uint64_t block_;
  const bool locked_;
};

}  // namespace

Result<std::uint64_t> begin_transfer(const std::shared_ptr<Arena>& arena, std::uint64_t block, Transferred what) try {
  sweep_if_due();
  BegunMap made;  // allocates first, since that may fail
  made.try_emplace({});
  auto me = arena->identity();
  if (!me) return std::move(me).error();
  const std::uint64_t number = new_number(*me, what);
  auto entry = take_entry(*arena, number);
  if (!entry) return std::move(entry).error();
  store_relaxed((*entry)->block, block);
  store_relaxed((*entry)->made_ns, monotonic_ns());
  {
    CountedChange change(*arena, block);
    store_release((*entry)->state, number);
    change.note_begun();
  }
  auto node = made.extract(made.begin());
  node.key() = {arena.get(), number};
  node.mapped() = {.arena = arena, .entry = *entry, .giver = *me};
  const std::lock_guard guard(all_begun().mutex);
  all_begun().begun.insert(std::move(node));
  return number;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void end_transfer(Arena& arena, std::uint64_t block, std::uint64_t number) noexcept {
  Transfer* const transfer = arena.transfers().find(number);
  if (transfer != nullptr && TransferTable::handed_over(*transfer) == block) {
    CountedChange change(arena, block);
    std::uint64_t state = load_acquire(transfer->state);
    bool ended = false;
    while (state != 0 && is_same_transfer(state, number) && !ended) {
      ended = compare_swap(transfer->state, state, std::uint64_t{0});
    }
    if (ended && TransferTable::has_reference(state)) change.note_ended();
  }
  BegunMap::node_type own;
  {
    const std::lock_guard guard(all_begun().mutex);
    own = all_begun().begun.extract({&arena, number});
  }
  sweep_if_due();
}

void end_own_transfers(Arena& arena, std::uint64_t block) noexcept {
  const Identity me = arena.current_identity();
  arena.transfers().for_each_of(block, Transferred::kMemory, [&](std::uint64_t state, std::int64_t) {
    if (!giver_is_gone(state) && giver_of(state) == me) end_transfer(arena, block, state);
    return true;
  });
}

void sweep_transfers() noexcept {
  BegunMap over;
  const std::lock_guard guard(all_begun().mutex);
  move_over(all_begun(), over);
}

}  // namespace shmtree::memory
