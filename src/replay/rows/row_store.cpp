#include "replay/rows/row_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "memory/control_block.h"
#include "memory/event.h"
#include "memory/held_locks.h"
#include "memory/robust_lock.h"
#include "platform/dcheck.h"
#include "platform/machine.h"

namespace shmtree::replay {

using namespace platform;
using memory::BlockKind;
using memory::BlockRef;
using memory::Lease;
using memory::round_up;

namespace {

struct ControlPlan {
  std::uint64_t note, progress, info, tables, list, bytes;
};
ControlPlan plan_of(const Shape& shape, std::uint64_t note_bytes, std::uint64_t table_bytes) noexcept {
  ControlPlan plan{};
  plan.note = sizeof(ReplayHeader);
  plan.progress = round_up(plan.note + note_bytes, 64);
  plan.info = round_up(plan.progress + shape.chunks * sizeof(std::uint64_t), 64);
  plan.tables = plan.info + shape.chunks * sizeof(ChunkInfo);
  plan.list = round_up(plan.tables + table_bytes, 64);  // the last bytes of the block: HolderTable::refer()
  plan.bytes = plan.list + shape.max_extents * sizeof(memory::ListEntry);
  return plan;
}

Result<Lease> open_control(Arena& arena, BlockRef block, const WaitContext& wait) {
  return open_control_block(arena, block, BlockKind::kReplay, sizeof(ReplayHeader), "a replay buffer", wait);
}
Error incompatible() {
  return Error{.code = Code::kIncompatible, .message = "not a replay buffer"};
}

}  // namespace

Store::Store(std::shared_ptr<Arena> arena, Lease control, Shape shape, std::uint64_t note_bytes,
             std::uint64_t table_bytes)
    : arena_(std::move(arena)), control_(std::move(control)), shape_(std::move(shape)), extents_(shape_.max_extents) {
  const ControlPlan plan = plan_of(shape_, note_bytes, table_bytes);
  progress_ = reinterpret_cast<std::atomic<std::uint64_t>*>(control_.data() + plan.progress);
  info_ = reinterpret_cast<ChunkInfo*>(control_.data() + plan.info);
  note_ = {control_.data() + plan.note, note_bytes};
  tables_ = {control_.data() + plan.tables, table_bytes};
}

Result<std::shared_ptr<Store>> Store::create(std::shared_ptr<Arena> arena, const Shape& shape,
                                             std::span<const std::byte> note, const WaitContext& wait,
                                             std::uint64_t table_bytes) try {
  if (note.size() > memory::kMaxBudget || table_bytes > memory::kMaxBudget) {
    return Error{.code = Code::kInvalid,
                 .message = "the description of the rows or the sampler tables exceed the largest arena, " +
                            std::to_string(memory::kMaxBudget) + " bytes"};
  }
  const ControlPlan plan = plan_of(shape, note.size(), table_bytes);
  auto block = make_control_block(*arena, BlockKind::kReplay, plan.bytes, wait);
  if (!block) return std::move(block).error();
  auto* header = new (block->data()) ReplayHeader{};
  header->magic = kReplayMagic;
  header->version = kReplayVersion;
  header->rows_per_chunk = static_cast<std::uint32_t>(shape.rows_per_chunk);
  header->capacity = shape.capacity;
  header->chunks = shape.chunks;
  header->record_bytes = shape.record_bytes;
  header->columns = static_cast<std::uint32_t>(shape.column_bytes.size());
  header->ahead = static_cast<std::uint16_t>(shape.ahead);
  header->finals = shape.finals ? 1 : 0;
  header->max_extents = shape.max_extents;
  header->chunks_per_extent = shape.chunks_per_extent;
  std::copy(shape.column_bytes.begin(), shape.column_bytes.end(), header->column_bytes);
  store_relaxed(header->head, std::uint64_t{1});
  store_relaxed(header->tail, std::uint64_t{1});
  header->note_offset = plan.note;
  header->note_bytes = note.size();
  header->progress_offset = plan.progress;
  header->info_offset = plan.info;
  header->tables_offset = plan.tables;
  header->tables_bytes = table_bytes;
  random_bytes(header->origin.uuid, sizeof header->origin.uuid);
  if (!note.empty()) std::memcpy(block->data() + plan.note, note.data(), note.size());
  auto control = hold_control_block(*arena, std::move(*block), {}, wait, shape.max_extents);
  if (!control) return std::move(control).error();
  return std::shared_ptr<Store>(new Store(std::move(arena), std::move(*control), shape, note.size(), table_bytes));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::shared_ptr<Store>> Store::open(std::shared_ptr<Arena> arena, BlockRef block,
                                           std::span<const std::uint64_t> leaf_bytes, const WaitContext& wait) try {
  auto control = open_control(*arena, block, wait);
  if (!control) return std::move(control).error();
  const auto& header = *reinterpret_cast<const ReplayHeader*>(control->data());
  auto shape = shape_of(header, leaf_bytes);
  if (!shape.ok()) return std::move(shape).error();
  const std::uint64_t available = arena->blocks().capacity_of(block.id);
  const std::uint64_t note_bytes = load_once(header.note_bytes), table_bytes = load_once(header.tables_bytes);
  if (note_bytes > available || table_bytes > available) return incompatible();
  if (plan_of(*shape, note_bytes, table_bytes).bytes > available) return incompatible();
  return std::shared_ptr<Store>(
      new Store(std::move(arena), std::move(*control), std::move(*shape), note_bytes, table_bytes));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<Store::Note> Store::note_at(const std::shared_ptr<Arena>& arena, BlockRef block, const WaitContext& wait) try {
  auto control = open_control(*arena, block, wait);
  if (!control) return std::move(control).error();
  const std::uint64_t available = arena->blocks().capacity_of(block.id);
  const auto& header = *reinterpret_cast<const ReplayHeader*>(control->data());
  const std::uint64_t bytes = load_once(header.note_bytes);
  if (load_once(header.magic) != kReplayMagic) return incompatible();
  const std::uint32_t version = load_once(header.version);
  if (version != kReplayVersion) return other_version(version);
  if (bytes > available - sizeof(ReplayHeader)) return incompatible();
  std::string note(reinterpret_cast<const char*>(control->data()) + sizeof(ReplayHeader), bytes);
  return Note{.bytes = std::move(note), .held = std::move(*control)};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::uint64_t Store::control_bytes(const Shape& shape, std::uint64_t note_bytes, std::uint64_t table_bytes) noexcept {
  return round_up(plan_of(shape, note_bytes, table_bytes).bytes, memory::kPageBytes);
}

std::uint64_t Store::extents_bytes(const Shape& shape) noexcept {
  return shape.max_extents * round_up(shape.extent_bytes, memory::kPageBytes);
}

// --- Extents

// Returns null if the extent does not exist yet, or if this process cannot map it.
std::byte* Store::find_extent(std::uint64_t number) const noexcept {
  SHMTREE_DCHECK(number < extents_.size());
  const memory::BlockTable& blocks = arena_->blocks();
  const memory::BlockEntry* entry = blocks.entry(control_.ref().id);
  const auto listed =
      entry == nullptr ? std::span<const memory::ListEntry>{} : blocks.references_of(control_.ref().id, *entry);
  if (number >= listed.size()) return nullptr;
  const BlockRef ref = memory::ref_of(listed[number]);
  if (!blocks.is_current(ref) || blocks.capacity_of(ref.id) < shape_.extent_bytes) return nullptr;
  std::byte* found = blocks.address(ref.id);
  if (found != nullptr) extents_[number].store(found, std::memory_order_release);
  return found;
}

// Called without the buffer's lock, since allocating the pages of an extent may take a while. The budget allows one
// extent of each number, so one process allocates it while the others wait. If that process is stopped, a second one
// allocates it as well, and one of the two extents is freed. If the budget has no space for a second extent, the others
// wait until the stopped process continues or dies.
Status Store::add_extent(std::uint64_t number, const WaitContext& wait) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  memory::RobustLock lock(header().extents_lock, arena_->participants());
  for (bool is_last = false;; is_last = true) {
    Status locked = lock.lock(*me, WaitContext{is_last ? wait.deadline : Deadline::immediate(), wait.hooks});
    if (!locked && locked.code() != Code::kTimeout) return locked;
    Status added = extent(number) != nullptr ? success() : bring_extent(number, wait);
    if (!added && extent(number) != nullptr) added = success();  // another process allocated it meanwhile
    if (locked) lock.unlock();
    const bool is_over_budget = !added && (added.code() == Code::kOutOfSharedMemory || added.code() == Code::kFull);
    if (locked || !is_over_budget) return added;
    if (is_last) return locked;
  }
}

Status Store::bring_extent(std::uint64_t number, const WaitContext& wait) {
  SHMTREE_DCHECK(!memory::HeldLocks::contains(header().lock));
  auto block = arena_->allocate(shape_.extent_bytes, BlockKind::kExtent, wait);
  if (!block) return std::move(block).error();
  auto held = arena_->hold_new(std::move(*block));
  if (!held) return std::move(held).error();
  Status added = arena_->holders().refer_also(control_.ref(), held->ref(), number, wait);
  if (!added) return added;
  if (extent(number) != nullptr) return success();
  return arena_->unmapped("an extent of " + std::to_string(shape_.extent_bytes) + " bytes");
}

// --- Chunks: opened one after the other, closed, and dropped from the window

Status Store::lock(const WaitContext& wait) {
  Status locked = arena_->lock(header().lock, wait);
  if (locked && load_relaxed(header().opening) != 0) repair();
  return locked;
}

// Returns the slots that the chunk with this ticket has, or may still get.
std::uint64_t Store::reserved_by(std::uint64_t ticket) const noexcept {
  const Progress now = progress(ticket);
  if (now.ticket != ticket) return 0;
  return now.closed ? std::min<std::uint64_t>(now.rows, shape_.rows_per_chunk) : shape_.rows_per_chunk;
}

// Finishes the work of a lock owner that died while it opened or closed a chunk.
void Store::repair() noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(header().lock));
  const std::uint64_t ticket = load_relaxed(header().opening);
  const Window now = window();
  std::uint64_t busy = pack({.ticket = ticket, .busy = true});
  if (ticket == now.tail) {  // the owner died before it moved `tail`
    compare_swap(progress_word(ticket), busy, pack({.ticket = ticket, .closed = true}));
  }
  std::uint64_t reserved = 0;
  for (std::uint64_t at = now.head; at < now.tail; ++at) reserved += reserved_by(at);
  store_relaxed(header().reserved, reserved);
  store_release(header().opening, std::uint64_t{0});
}

// Drops the oldest chunks from the window until one more fits.
void Store::make_space() noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(header().lock));
  for (Window now = window(); now.head < now.tail; ++now.head) {
    const std::uint64_t reserved = load_relaxed(header().reserved);
    const bool has_chunk = now.tail + 1 - now.head <= shape_.chunks;
    if (has_chunk && reserved + shape_.rows_per_chunk <= shape_.capacity) return;
    const std::uint64_t leaving = reserved_by(now.head);
    store_release(header().head, now.head + 1);
    store_relaxed(header().reserved, reserved - std::min(leaving, reserved));
  }
}

// Makes the chunk busy under this ticket. Returns false if its last owner is alive and in the middle of a row.
bool Store::try_open(std::uint64_t ticket) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(header().lock));
  std::uint64_t word = load_acquire(progress_word(ticket));
  do {
    const Progress now = unpack_progress(word);
    const Identity owner = load_relaxed(info_[chunk_of(ticket)].owner);
    if (now.busy && arena_->participants().is_alive(owner)) return false;
  } while (!compare_swap(progress_word(ticket), word, pack({.ticket = ticket, .busy = true})));
  fence_release();  // a reader that sees new bytes also sees that the old ticket is gone
  return true;
}

// Runs under the lock, so no process opens `previous` again meanwhile, and the link goes into the right chunk.
void Store::describe(std::uint64_t ticket, Identity owner, std::optional<std::uint32_t> stream, std::uint64_t first_row,
                     std::uint64_t previous) noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(header().lock));
  ChunkInfo& chunk = info(ticket);
  store_relaxed(chunk.owner, owner);
  store_relaxed(chunk.stream, stream.value_or(stream_from(shape_.index_of(ticket, 0))));
  store_relaxed(chunk.first_row, first_row);
  store_relaxed(chunk.previous, previous);
  for (auto* word : {&chunk.next, &chunk.ends, &chunk.finals, &chunk.truncated, &chunk.begins}) {
    store_relaxed(*word, std::uint64_t{0});
  }
  if (previous != 0 && progress(previous).ticket == previous) store_release(info(previous).next, ticket);
}

Result<std::uint64_t> Store::open_chunk(std::optional<std::uint32_t> stream, std::uint64_t first_row,
                                        std::uint64_t previous, const WaitContext& wait) {
  std::uint64_t passed_over = 0;
  for (;;) {
    auto me = arena_->identity();
    if (!me) return std::move(me).error();
    Status locked = lock(wait);
    if (!locked) return std::move(locked).error();
    const std::uint64_t ticket = load_relaxed(header().tail);
    if (ticket == 0 || ticket > kMaxTicket) {
      unlock();
      return Error{.code = Code::kIncompatible, .message = "the shared state of this replay buffer is damaged"};
    }
    const std::uint64_t number = shape_.extent_of(chunk_of(ticket));
    if (extent(number) == nullptr) {
      unlock();
      Status added = add_extent(number, wait);
      if (!added) return std::move(added).error();
      continue;
    }
    store_release(header().opening, ticket);
    make_space();
    const bool opened = try_open(ticket);
    if (opened) describe(ticket, *me, stream, first_row, previous);
    store_release(header().tail, ticket + 1);
    if (opened) store_relaxed(header().reserved, load_relaxed(header().reserved) + shape_.rows_per_chunk);
    store_release(header().opening, std::uint64_t{0});
    unlock();
    if (opened) return ticket;
    if (++passed_over == shape_.chunks) {
      return Error{.code = Code::kUnavailable,
                   .message = "all " + std::to_string(shape_.chunks) +
                              " chunks of the replay buffer are held by "
                              "writers that are alive but make no progress (perhaps stopped)"};
    }
  }
}

Status Store::clear(const WaitContext& wait) {
  Status locked = lock(wait);
  if (!locked) return locked;
  const std::uint64_t tail = load_relaxed(header().tail);
  store_release(header().opening, tail);
  store_release(header().head, tail);
  store_relaxed(header().reserved, std::uint64_t{0});
  store_release(header().opening, std::uint64_t{0});
  unlock();
  return locked;
}

bool Store::take_chunk(const Progress& left) noexcept {
  SHMTREE_DCHECK(!left.busy);
  Progress busy = left;
  busy.busy = true;
  std::uint64_t idle = pack(left);
  return compare_swap(progress_word(left.ticket), idle, pack(busy));
}

void Store::make_ready(Progress& left, std::uint32_t ready) noexcept {
  SHMTREE_DCHECK(left.ready <= ready && ready <= left.rows);
  std::uint64_t before = pack(left);
  left.ready = ready;
  compare_swap(progress_word(left.ticket), before, pack(left));
}

bool Store::close_chunk(const Progress& left) noexcept {
  SHMTREE_DCHECK(!left.busy && !left.closed);
  if (!arena_->reconciler().lock_quietly(header().lock, WaitContext{Deadline::immediate()})) return false;
  if (load_relaxed(header().opening) != 0) repair();
  store_release(header().opening, load_relaxed(header().tail));
  Progress closed = left;
  closed.closed = true;
  std::uint64_t idle = pack(left);
  const bool is_closed = compare_swap(progress_word(left.ticket), idle, pack(closed));
  if (is_closed && left.ticket >= load_relaxed(header().head)) {
    const std::uint64_t missing = shape_.rows_per_chunk - std::min<std::uint64_t>(left.rows, shape_.rows_per_chunk);
    store_relaxed(header().reserved, load_relaxed(header().reserved) - missing);
  }
  store_release(header().opening, std::uint64_t{0});
  unlock();
  return is_closed;
}

Status Store::prepare_chunk(std::uint64_t ticket, const WaitContext& wait) {
  const std::uint64_t number = shape_.extent_of(chunk_of(ticket));
  return extent(number) != nullptr ? success() : add_extent(number, wait);
}

void Store::begin_with(const Window& window, const Origin& origin) noexcept {
  SHMTREE_DCHECK(window.head <= window.tail && window.tail - window.head <= shape_.chunks);
  header().origin = origin;
  std::uint64_t reserved = 0;
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) reserved += reserved_by(ticket);
  store_relaxed(header().reserved, reserved);
  store_release(header().head, window.head);
  store_release(header().tail, window.tail);
}

// --- Chunks that their writers left before they were full: docs/internals/replay-layout.md

// Returns true if another stream can use the rest of the chunk: all of its slots are ready, and it is not full.
bool Store::may_go_on(const Progress& left) const noexcept {
  return left.rows != 0 && left.rows < shape_.rows_per_chunk && left.ready == left.rows && !left.closed && !left.busy &&
         is_young(left.ticket);
}

bool Store::offer_chunk(const Progress& left) noexcept {
  if (!may_go_on(left) || !take_chunk(left)) return false;
  Progress taken = left;
  taken.busy = true;
  std::uint64_t busy = pack(taken);
  store_release(info(left.ticket).owner, memory::kNoIdentity);
  // From here on any process may open the chunk again.
  if (!compare_swap(progress_word(left.ticket), busy, pack(left))) return false;
  for (auto& offer : header().offers) {
    std::uint64_t seen = load_acquire(offer);
    const bool is_free = seen == 0 || seen > kMaxTicket || progress(seen).ticket != seen || !may_go_on(progress(seen));
    if (is_free && compare_swap(offer, seen, left.ticket)) return true;
  }
  return false;
}

std::optional<Progress> Store::take_offered(Identity me) noexcept {
  for (auto& offer : header().offers) {
    std::uint64_t ticket = load_acquire(offer);
    if (ticket == 0 || ticket > kMaxTicket || extent(shape_.extent_of(chunk_of(ticket))) == nullptr) continue;
    if (!compare_swap(offer, ticket, std::uint64_t{0})) continue;
    const Progress left = progress(ticket);
    ChunkInfo& chunk = info(ticket);
    Identity owner = memory::kNoIdentity;  // set before busy, so that a process that sees it busy sees a live owner
    if (left.ticket != ticket || !may_go_on(left) || !compare_swap(chunk.owner, owner, me) || !take_chunk(left))
      continue;
    const std::uint64_t last = std::uint64_t{1} << (left.rows - 1), ends = load_relaxed(chunk.ends);
    if (((ends | load_relaxed(chunk.finals)) & last) == 0) {  // the stream was left in the middle of an episode
      store_relaxed(chunk.truncated, load_relaxed(chunk.truncated) | last);
      store_relaxed(chunk.ends, ends | last);
    }
    store_relaxed(chunk.begins, load_relaxed(chunk.begins) | last << 1);
    return left;
  }
  return std::nullopt;
}

// --- Reading

// Returns a consistent window: `head` did not move while `tail` was read. Takes the last values after kMaxTries.
Window Store::window() const noexcept {
  constexpr int kMaxTries = 64;
  std::uint64_t head = load_acquire(header().head), tail = 0;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    tail = load_acquire(header().tail);
    const std::uint64_t before = std::exchange(head, load_acquire(header().head));
    if (head == before) break;
  }
  if (head == 0 || tail < head || tail - head > shape_.chunks || tail > kMaxTicket) return {};  // damaged
  return {head, tail};
}

}  // namespace shmtree::replay
