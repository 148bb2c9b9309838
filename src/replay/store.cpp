#include "replay/store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "memory/event.h"

namespace shmtree::replay {

using namespace platform;
using memory::BlockKind;
using memory::BlockRef;
using memory::Lease;
using memory::round_up;

namespace {

struct ControlPlan {
  std::uint64_t note, progress, about, list, bytes;
};
ControlPlan plan_of(const Shape& shape, std::uint64_t note_bytes) noexcept {
  ControlPlan plan{};
  plan.note = sizeof(ReplayHeader);
  plan.progress = round_up(plan.note + note_bytes, 64);
  plan.about = round_up(plan.progress + shape.places * sizeof(std::uint64_t), 64);
  plan.list = plan.about + shape.places * sizeof(About);
  plan.bytes = plan.list + shape.most_extents * sizeof(memory::ListEntry);
  return plan;
}

}  // namespace

Store::Store(std::shared_ptr<Arena> arena, Lease control, Shape shape, std::uint64_t note_bytes)
    : arena_(std::move(arena)), control_(std::move(control)), shape_(std::move(shape)), extents_(shape_.most_extents) {
  const ControlPlan plan = plan_of(shape_, note_bytes);
  progress_ = reinterpret_cast<std::atomic<std::uint64_t>*>(control_.data() + plan.progress);
  about_ = reinterpret_cast<About*>(control_.data() + plan.about);
  note_ = {control_.data() + plan.note, note_bytes};
}

Result<std::shared_ptr<Store>> Store::create(std::shared_ptr<Arena> arena, const Shape& shape,
                                             std::span<const std::byte> note, const WaitContext& wait) try {
  const ControlPlan plan = plan_of(shape, note.size());
  auto block = arena->allocate(plan.bytes, BlockKind::kReplay, wait);
  if (!block) return std::move(block).error();
  std::memset(block->data(), 0, plan.bytes);
  auto* header = new (block->data()) ReplayHeader{};
  header->magic = kReplayMagic;
  header->version = kReplayVersion;
  header->rows_per_place = static_cast<std::uint32_t>(shape.rows_per_place);
  header->capacity = shape.capacity;
  header->places = shape.places;
  header->record_bytes = shape.record_bytes;
  header->columns = static_cast<std::uint32_t>(shape.column_bytes.size());
  header->most_extents = shape.most_extents;
  header->places_per_extent = shape.places_per_extent;
  std::copy(shape.column_bytes.begin(), shape.column_bytes.end(), header->column_bytes);
  store_relaxed(header->head, std::uint64_t{1});
  store_relaxed(header->tail, std::uint64_t{1});
  header->note_offset = plan.note;
  header->note_bytes = note.size();
  header->progress_offset = plan.progress;
  header->about_offset = plan.about;
  if (!note.empty()) std::memcpy(block->data() + plan.note, note.data(), note.size());
  Status listed = arena->holders().refer(*block, {}, wait, shape.most_extents);
  if (!listed) return std::move(listed).error();
  auto control = arena->hold_new(std::move(*block));
  if (!control) return std::move(control).error();
  return std::shared_ptr<Store>(new Store(std::move(arena), std::move(*control), shape, note.size()));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::shared_ptr<Store>> Store::open(std::shared_ptr<Arena> arena, BlockRef block,
                                           std::span<const std::uint64_t> leaf_bytes, const WaitContext& wait) try {
  auto control = arena->hold_existing(block, wait);
  if (!control) return std::move(control).error();
  const auto incompatible = [] { return Error{.code = Code::kIncompatible, .message = "not a replay buffer"}; };
  const std::uint64_t room = arena->blocks().room_of(block.id);
  if (room < sizeof(ReplayHeader)) return incompatible();
  const auto& header = *reinterpret_cast<const ReplayHeader*>(control->data());
  auto shape = shape_of(header, leaf_bytes);
  if (!shape.ok()) return std::move(shape).error();
  const std::uint64_t note_bytes = load_once(header.note_bytes);
  if (note_bytes > room || plan_of(*shape, note_bytes).bytes > room) return incompatible();
  return std::shared_ptr<Store>(new Store(std::move(arena), std::move(*control), std::move(*shape), note_bytes));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// --- Extents

// Null while there is none, or where this process has no address space for it.
std::byte* Store::extent(std::uint64_t number) const noexcept {
  std::byte* known = extents_[number].load(std::memory_order_acquire);
  if (known != nullptr) [[likely]]
    return known;
  const memory::BlockTable& blocks = arena_->blocks();
  const memory::BlockEntry* entry = blocks.entry(control_.ref().id);
  const auto listed =
      entry == nullptr ? std::span<const memory::ListEntry>{} : blocks.references_of(control_.ref().id, *entry);
  if (number >= listed.size()) return nullptr;
  const BlockRef ref = memory::ref_of(listed[number]);
  if (!blocks.is_current(ref) || blocks.room_of(ref.id) < shape_.extent_bytes()) return nullptr;
  std::byte* found = blocks.address(ref.id);
  if (found != nullptr) extents_[number].store(found, std::memory_order_release);
  return found;
}

// Called without the lock: the pages of an extent may take a while. Two who find it missing both bring one, and one of
// them is given back.
Status Store::add_extent(std::uint64_t number, const WaitContext& wait) {
  auto block = arena_->allocate(shape_.extent_bytes(), BlockKind::kExtent, wait);
  if (!block) return std::move(block).error();
  auto held = arena_->hold_new(std::move(*block));
  if (!held) return std::move(held).error();
  Status added = arena_->holders().refer_also(control_.ref(), held->ref(), number, wait);
  if (!added) return added;
  if (extent(number) != nullptr) return success();
  return Error{
      .code = Code::kOutOfSharedMemory,
      .message = "no address space left to map an extent of " + std::to_string(shape_.extent_bytes()) + " bytes"};
}

// --- Places

Status Store::lock(const WaitContext& wait) {
  Status locked = arena_->lock(header().lock, wait);
  if (locked && load_relaxed(header().opening) != 0) repair();
  return locked;
}

// What the place of the window with that ticket has, or may still get.
std::uint64_t Store::reserved_by(std::uint64_t ticket) const noexcept {
  const Progress now = progress(ticket);
  if (now.ticket != ticket) return 0;
  return now.closed ? std::min<std::uint64_t>(now.rows, shape_.rows_per_place) : shape_.rows_per_place;
}

// The last owner of the lock died while it opened or closed a place.
void Store::repair() noexcept {
  const std::uint64_t ticket = load_relaxed(header().opening);
  const Window now = window();
  std::uint64_t busy = pack({.ticket = ticket, .busy = true});
  if (ticket == now.tail) {  // it got no further than the place
    compare_swap(progress_word(ticket), busy, pack({.ticket = ticket, .closed = true}));
  }
  std::uint64_t reserved = 0;
  for (std::uint64_t at = now.head; at < now.tail; ++at) reserved += reserved_by(at);
  store_relaxed(header().reserved, reserved);
  store_release(header().opening, std::uint64_t{0});
}

// The oldest places leave the window until there is room for one more.
void Store::make_room() noexcept {
  for (Window now = window(); now.head < now.tail; ++now.head) {
    const std::uint64_t reserved = load_relaxed(header().reserved);
    const bool has_place = now.tail + 1 - now.head <= shape_.places;
    if (has_place && reserved + shape_.rows_per_place <= shape_.capacity) return;
    const std::uint64_t leaving = reserved_by(now.head);
    store_release(header().head, now.head + 1);
    store_relaxed(header().reserved, reserved - std::min(leaving, reserved));
  }
}

// Busy with that ticket, unless its last owner lives and is in the middle of a row.
bool Store::try_open(std::uint64_t ticket) noexcept {
  std::uint64_t word = load_acquire(progress_word(ticket));
  do {
    const Progress now = unpack_progress(word);
    const Identity owner = load_relaxed(about_[place_of(ticket)].owner);
    if (now.busy && arena_->participants().is_alive(owner)) return false;
  } while (!compare_swap(progress_word(ticket), word, pack({.ticket = ticket, .busy = true})));
  fence_release();  // readers see the ticket go before they see other bytes
  return true;
}

Result<std::uint64_t> Store::open_place(std::uint32_t stream, std::uint64_t first_row, const WaitContext& wait) {
  std::uint64_t passed_over = 0;
  for (;;) {
    auto me = arena_->identity();
    if (!me) return std::move(me).error();
    Status locked = lock(wait);
    if (!locked) return std::move(locked).error();
    const std::uint64_t ticket = load_relaxed(header().tail);
    const std::uint64_t number = shape_.extent_of(place_of(ticket));
    if (extent(number) == nullptr) {
      unlock();
      Status added = add_extent(number, wait);
      if (!added) return std::move(added).error();
      continue;
    }
    store_release(header().opening, ticket);
    make_room();
    const bool opened = try_open(ticket);
    if (opened) {
      About& about = about_[place_of(ticket)];
      store_relaxed(about.owner, *me);
      store_relaxed(about.stream, stream);
      store_relaxed(about.first_row, first_row);
    }
    store_release(header().tail, ticket + 1);
    if (opened) store_relaxed(header().reserved, load_relaxed(header().reserved) + shape_.rows_per_place);
    store_release(header().opening, std::uint64_t{0});
    unlock();
    if (opened) return ticket;
    if (++passed_over == shape_.places) {
      return Error{.code = Code::kUnavailable,
                   .message = "all " + std::to_string(shape_.places) +
                              " chunks of the replay buffer are being written by "
                              "processes that live and do not go on"};
    }
  }
}

bool Store::begin_row(std::uint64_t ticket, std::uint32_t rows) noexcept {
  std::uint64_t idle = pack({.ticket = ticket, .rows = rows});
  return compare_swap(progress_word(ticket), idle, pack({.ticket = ticket, .rows = rows, .busy = true}));
}

void Store::end_row(std::uint64_t ticket, std::uint32_t rows) noexcept {
  store_release(progress_word(ticket),
                pack({.ticket = ticket, .rows = rows + 1, .closed = rows + 1 == shape_.rows_per_place}));
  memory::notify(header().ready);
}

void Store::close_place(std::uint64_t ticket, std::uint32_t rows) noexcept {
  if (!arena_->reconciler().lock_quietly(header().lock, WaitContext{Deadline::immediate()})) return;
  if (load_relaxed(header().opening) != 0) repair();
  store_release(header().opening, load_relaxed(header().tail));
  std::uint64_t idle = pack({.ticket = ticket, .rows = rows});
  const bool closed = compare_swap(progress_word(ticket), idle, pack({.ticket = ticket, .rows = rows, .closed = true}));
  if (closed && ticket >= load_relaxed(header().head)) {
    const std::uint64_t missing = shape_.rows_per_place - std::min<std::uint64_t>(rows, shape_.rows_per_place);
    store_relaxed(header().reserved, load_relaxed(header().reserved) - missing);
  }
  store_release(header().opening, std::uint64_t{0});
  unlock();
}

std::byte* Store::leaf(const Leaf& leaf, std::uint64_t ticket, std::uint64_t row) const noexcept {
  const std::uint64_t place = place_of(ticket);
  std::byte* base = extent(shape_.extent_of(place));
  if (base == nullptr) return nullptr;
  return base +
         (leaf.has_column ? shape_.column_offset(leaf.at, place, row) : shape_.record_offset(place, row) + leaf.at);
}

// --- Looking

Window Store::window() const noexcept {
  const std::uint64_t head = load_acquire(header().head);
  const std::uint64_t tail = load_acquire(header().tail);
  if (head == 0 || tail < head || tail - head > shape_.places || tail > kMostTicket) return {};  // damaged
  return {head, tail};
}

std::uint64_t Store::size() const noexcept {
  std::uint64_t rows = 0;
  const Window now = window();
  for (std::uint64_t ticket = now.head; ticket < now.tail; ++ticket) {
    const Progress at = progress(ticket);
    if (at.ticket == ticket) rows += std::min<std::uint64_t>(at.rows, shape_.rows_per_place);
  }
  return rows;
}

std::string Store::check() const {
  const Window now = window();
  if (load_relaxed(header().opening) != 0) return "a place is being opened";
  std::uint64_t reserved = 0;
  for (std::uint64_t ticket = now.head; ticket < now.tail; ++ticket) reserved += reserved_by(ticket);
  if (reserved != load_relaxed(header().reserved)) {
    return std::to_string(load_relaxed(header().reserved)) + " rows are reserved, not " + std::to_string(reserved);
  }
  if (reserved > shape_.capacity) return "more rows than the capacity";
  for (std::uint64_t place = 0; place < shape_.places; ++place) {
    const Progress at = unpack_progress(load_relaxed(progress_[place]));
    if (at.ticket != 0 && place_of(at.ticket) != place) return "a place with a ticket of another";
    if (at.ticket >= now.tail) return "a place with a ticket that was not given";
    if (at.rows > shape_.rows_per_place) return "a place with too many rows";
  }
  return {};
}

}  // namespace shmtree::replay
