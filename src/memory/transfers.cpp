#include "memory/transfers.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/sweep_pace.h"
#include "platform/wait_policy.h"

namespace shmtree::memory {

using namespace platform;

namespace {

// A transfer that this process began. It keeps the process attached to the arena.
struct Begun {
  std::shared_ptr<Arena> arena;
  Transfer* entry = nullptr;
  Identity giver = kNoIdentity;
  std::shared_ptr<Arena> home{};  // of the message, if that is another arena
  BlockRef carrier{};             // in `home`

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
  std::atomic<std::uint64_t> abroad{0};  // number of entries with a `home`; changes under the mutex
};
AllBegun& all_begun() noexcept {
  return never_destroyed<AllBegun>();
}

// Under the mutex.
BegunMap::node_type take(AllBegun& all, BegunMap::const_iterator at) noexcept {
  SHMTREE_DCHECK(at->second.home == nullptr || all.abroad.load(std::memory_order_relaxed) != 0);
  if (at->second.home != nullptr) all.abroad.fetch_sub(1, std::memory_order_relaxed);
  return all.begun.extract(at);
}

// Under the mutex. The caller destroys `over` without it, since that may destroy an arena.
void move_over(AllBegun& all, BegunMap& over) noexcept {
  for (auto each = all.begun.begin(); each != all.begun.end();) {
    const auto at = each++;
    if (at->second.is_over(at->first.second)) over.insert(take(all, at));
  }
  all.pace.note_swept(all.begun.size());
}

void sweep_if_due() noexcept {
  AllBegun& all = all_begun();
  const auto is_due = [&] {
    const std::lock_guard guard(all.mutex);
    return all.pace.is_due(all.begun.size());
  };
  if (!is_due()) return;
  end_lost_transfers();
  sweep_transfers();
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
  BegunMap nodes;  // allocates first, since that may fail
  nodes.try_emplace({});
  auto me = arena->identity();
  if (!me) return std::move(me).error();
  const std::uint64_t number = new_number(*me, what);
  auto entry = take_entry(*arena, number);
  if (!entry) return std::move(entry).error();
  store_relaxed((*entry)->block, block);
  store_relaxed((*entry)->made_ns, monotonic_ns());
  store_relaxed((*entry)->carrier, std::uint64_t{0});
  {
    CountedChange change(*arena, block);
    store_release((*entry)->state, number);
    change.note_begun();
  }
  auto node = nodes.extract(nodes.begin());
  node.key() = {arena.get(), number};
  node.mapped() = {.arena = arena, .entry = *entry, .giver = *me};
  const std::lock_guard guard(all_begun().mutex);
  all_begun().begun.insert(std::move(node));
  return number;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

namespace {

void end_entry(Arena& arena, Transfer& transfer, std::uint64_t block, std::uint64_t number) noexcept {
  CountedChange change(arena, block);
  std::uint64_t state = load_acquire(transfer.state);
  bool ended = false;
  while (state != 0 && is_same_transfer(state, number) && !ended) {
    ended = compare_swap(transfer.state, state, std::uint64_t{0});
  }
  if (ended && TransferTable::has_reference(state)) change.note_ended();
}

}  // namespace

void end_transfer(Arena& arena, std::uint64_t block, std::uint64_t number) noexcept {
  Transfer* const transfer = arena.transfers().find(number);
  if (transfer != nullptr && TransferTable::handed_over(*transfer) == block) end_entry(arena, *transfer, block, number);
  BegunMap::node_type own;
  {
    AllBegun& all = all_begun();
    const std::lock_guard guard(all.mutex);
    if (const auto at = all.begun.find({&arena, number}); at != all.begun.end()) own = take(all, at);
  }
  sweep_if_due();
}

// Stores the flag first: a block with a flag and no transfer costs one walk when it is freed, but a transfer would
// outlive a block without a flag. A transfer of another arena needs the flag, too: receivers keep a block that has it.
void carry_transfer(Arena& arena, std::uint64_t number, Arena& home, BlockRef block) noexcept {
  BlockEntry* const entry = home.blocks().entry(block.id);
  if (entry == nullptr) return;
  set_bits(entry->flags, std::uint32_t{kCarriesTransfers});
  if (&arena == &home) {
    Transfer* const transfer = arena.transfers().find(number);
    if (transfer != nullptr) store_release(transfer->carrier, pack(block));
    return;
  }
  AllBegun& all = all_begun();
  const std::lock_guard guard(all.mutex);
  const auto at = all.begun.find({&arena, number});
  if (at == all.begun.end()) return;
  if (at->second.home == nullptr) all.abroad.fetch_add(1, std::memory_order_relaxed);
  at->second.home = home.shared_from_this();
  at->second.carrier = block;
}

bool may_carry_transfers(Arena& arena, BlockRef block) noexcept {
  const BlockEntry* const entry = arena.blocks().entry(block.id);
  return entry != nullptr && (load_relaxed(entry->flags) & kCarriesTransfers) != 0;
}

namespace {

// Returns the other arenas in which messages carry transfers of this process.
std::vector<std::shared_ptr<Arena>> homes(AllBegun& all) {
  std::vector<std::shared_ptr<Arena>> found;
  const std::lock_guard guard(all.mutex);
  for (const auto& [key, begun] : all.begun) {
    if (begun.home != nullptr && std::ranges::find(found, begun.home) == found.end()) found.push_back(begun.home);
  }
  return found;
}

}  // namespace

// If a dead process received the message, or no process has its channel, a recovery frees the message.
void end_lost_transfers() noexcept {
  AllBegun& all = all_begun();
  if (all.abroad.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  try {
    for (const auto& home : homes(all)) poll_for_deaths(*home, wait_policy::kLongPollIntervalNs);
  } catch (const std::bad_alloc&) {  // the next call tries again
  }
  BegunMap lost;
  {
    const std::lock_guard guard(all.mutex);
    for (auto each = all.begun.begin(); each != all.begun.end();) {
      const auto at = each++;
      const Begun& begun = at->second;
      if (begun.home != nullptr && !begun.home->blocks().is_current(begun.carrier)) lost.insert(take(all, at));
    }
  }
  for (auto& [key, begun] : lost) {
    if (begun.is_over(key.second)) continue;
    end_entry(*begun.arena, *begun.entry, TransferTable::handed_over(*begun.entry), key.second);
  }
}

void end_own_transfers(Arena& arena, std::uint64_t block) noexcept {
  const Identity me = arena.current_identity();
  arena.transfers().for_each_of(block, Transferred::kMemory, [&](std::uint64_t state, const Transfer&) {
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
