// Places of a Store: opened one after the other, closed, and left behind by the window.
#include <algorithm>

#include "replay/store.h"

namespace shmtree::replay {

using namespace platform;

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

// Under the lock nobody opens `previous` again meanwhile, and a link is never left in somebody else's place.
void Store::describe(std::uint64_t ticket, Identity owner, std::optional<std::uint32_t> stream, std::uint64_t first_row,
                     std::uint64_t previous) noexcept {
  About& what = about(ticket);
  store_relaxed(what.owner, owner);
  store_relaxed(what.stream, stream.value_or(stream_from(shape_.index_of(ticket, 0))));
  store_relaxed(what.first_row, first_row);
  store_relaxed(what.previous, previous);
  for (auto* word : {&what.next, &what.ends, &what.finals, &what.truncated, &what.begins}) {
    store_relaxed(*word, std::uint64_t{0});
  }
  if (previous != 0 && progress(previous).ticket == previous) store_release(about(previous).next, ticket);
}

Result<std::uint64_t> Store::open_place(std::optional<std::uint32_t> stream, std::uint64_t first_row,
                                        std::uint64_t previous, const WaitContext& wait) {
  std::uint64_t passed_over = 0;
  for (;;) {
    auto me = arena_->identity();
    if (!me) return std::move(me).error();
    Status locked = lock(wait);
    if (!locked) return std::move(locked).error();
    const std::uint64_t ticket = load_relaxed(header().tail);
    if (ticket == 0 || ticket > kMostTicket) {
      unlock();
      return Error{.code = Code::kIncompatible, .message = "a replay buffer whose words are damaged"};
    }
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
    if (opened) describe(ticket, *me, stream, first_row, previous);
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

bool Store::take_place(const Progress& left) noexcept {
  Progress busy = left;
  busy.busy = true;
  std::uint64_t idle = pack(left);
  return compare_swap(progress_word(left.ticket), idle, pack(busy));
}

void Store::make_ready(Progress& left, std::uint32_t ready) noexcept {
  std::uint64_t before = pack(left);
  left.ready = ready;
  compare_swap(progress_word(left.ticket), before, pack(left));
}

bool Store::close_place(const Progress& left) noexcept {
  if (!arena_->reconciler().lock_quietly(header().lock, WaitContext{Deadline::immediate()})) return false;
  if (load_relaxed(header().opening) != 0) repair();
  store_release(header().opening, load_relaxed(header().tail));
  Progress closed = left;
  closed.closed = true;
  std::uint64_t idle = pack(left);
  const bool is_closed = compare_swap(progress_word(left.ticket), idle, pack(closed));
  if (is_closed && left.ticket >= load_relaxed(header().head)) {
    const std::uint64_t missing = shape_.rows_per_place - std::min<std::uint64_t>(left.rows, shape_.rows_per_place);
    store_relaxed(header().reserved, load_relaxed(header().reserved) - missing);
  }
  store_release(header().opening, std::uint64_t{0});
  unlock();
  return is_closed;
}

Status Store::prepare_place(std::uint64_t ticket, const WaitContext& wait) {
  const std::uint64_t number = shape_.extent_of(place_of(ticket));
  return extent(number) != nullptr ? success() : add_extent(number, wait);
}

void Store::begin_with(const Window& window, const Origin& origin) noexcept {
  header().origin = origin;
  std::uint64_t reserved = 0;
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) reserved += reserved_by(ticket);
  store_relaxed(header().reserved, reserved);
  store_release(header().head, window.head);
  store_release(header().tail, window.tail);
}

}  // namespace shmtree::replay
