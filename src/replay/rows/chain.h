// Follows a stream from slot to slot. Finds the successors of a row, the frames before it, and the end of its episode.
//
// Shared words are untrusted, but every position returned is inside an existing chunk. The positions belong to the
// stream if the earliest ticket used is still in the window (Store::is_in_window) after a fence.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "platform/dcheck.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

struct Position {
  std::uint64_t ticket = 0;  // 0: no position
  std::uint32_t slot = 0;

  bool operator==(const Position&) const noexcept = default;
};

// The n rows from a row on, within its episode, and their successor.
struct Reach {
  bool there = false;       // All of them were found, up to the end of the episode.
  bool terminated = false;  // The episode ended within them and was not cut off.
  std::uint32_t rows = 0;   // Number of rows from the row itself on: n, or up to the episode's end.
  Position last{};          // The last of these rows.
  Position successor{};     // Slot after `last`; at an episode's end its last observation, or `last` if it has none.
};

enum class Before { kThere, kBegin, kGone };

class Chain {
 public:
  explicit Chain(const Store& store) noexcept : store_(store) {}

  // Returns the slot after this one in its stream, if it is written.
  Position after(Position at) const noexcept {
    const std::uint64_t next = platform::load_acquire(store_.info(at.ticket).next);  // set after the last slot
    if (at.slot + 1 < written(at.ticket)) return {at.ticket, at.slot + 1};
    return leads_to(at.ticket, next) ? Position{next, 0} : Position{};
  }

  // Moves to the previous slot of the same episode. kGone if it has left the window.
  Before step_back(Position& at) const noexcept {
    Position to{at.ticket, at.slot - 1};
    if (at.slot == 0) {
      const std::uint64_t previous = platform::load_relaxed(store_.info(at.ticket).previous);
      if (previous == 0) return Before::kBegin;
      const std::uint32_t there = previous < at.ticket ? written(previous) : 0;
      if (there == 0) return Before::kGone;
      to = {previous, there - 1};
    }
    const ChunkInfo& info = store_.info(to.ticket);
    const bool ends = is_set(info.finals, to.slot) || (is_set(info.ends, to.slot) && !is_final(at));
    if (ends) return Before::kBegin;
    at = to;
    return Before::kThere;
  }

  // Calls visit(position, count) for each run of adjacent slots: the row itself and those after it, n in all, or up to
  // the end of its episode. Finds `successor` only if wants_successor.
  template <class Visit>
  Reach reach(Position from, std::uint32_t n, bool wants_successor, Visit visit) const noexcept {
    SHMTREE_DCHECK(n != 0);
    Reach result;
    for (Position at = from;;) {
      const ChunkInfo& info = store_.info(at.ticket);
      const std::uint64_t next = platform::load_acquire(info.next);
      const std::uint32_t end = written(at.ticket);
      if (at.slot >= end) return {};
      const auto to_end = static_cast<std::uint32_t>(std::countr_zero(platform::load_relaxed(info.ends) >> at.slot));
      const std::uint32_t here = std::min({n - result.rows, end - at.slot, to_end == 64 ? 64 : to_end + 1});
      SHMTREE_DCHECK(here != 0 && at.slot + here <= store_.shape().rows_per_chunk);
      visit(at, here);
      result.rows += here;
      result.last = {at.ticket, at.slot + here - 1};
      if (here == to_end + 1) return ended(result, wants_successor);
      if (result.rows == n && !wants_successor) break;
      at = at.slot + here < end ? Position{at.ticket, at.slot + here} : Position{next, 0};
      if (at.slot == 0 && !leads_to(result.last.ticket, next)) return {};
      if (result.rows == n) {
        result.successor = at;
        break;
      }
    }
    result.there = true;
    return result;
  }

  // Calls visit(position, count) for each run of adjacent rows: the row itself and those after it in its episode. Stops
  // at the first row that is not ready, or when visit returns false.
  template <class Visit>
  void each_run(Position from, Visit visit) const noexcept {
    for (;;) {
      const ChunkInfo& info = store_.info(from.ticket);
      const std::uint64_t next = platform::load_acquire(info.next);  // set once the chunk has its last row
      const Progress now = progress(from.ticket);
      const std::uint32_t ready = std::min(now.ready, now.rows);
      if (from.slot >= ready) return;
      const auto to_end = static_cast<std::uint32_t>(std::countr_zero(platform::load_relaxed(info.ends) >> from.slot));
      const std::uint32_t here = std::min(ready - from.slot, to_end + 1);
      if (!visit(from, here) || here == to_end + 1 || ready < now.rows || !leads_to(from.ticket, next)) return;
      from = {next, 0};
    }
  }

  // Calls visit(position, count) for each run of adjacent rows before `at` in its episode, the latest run first. Stops
  // where earlier rows have left the window, or when visit returns false.
  template <class Visit>
  void each_run_before(Position at, Visit visit) const noexcept {
    for (std::uint32_t end = at.slot;;) {
      const ChunkInfo& info = store_.info(at.ticket);
      const std::uint64_t before =
          (platform::load_relaxed(info.ends) | platform::load_relaxed(info.finals)) & bits_below(end);
      const auto begin = static_cast<std::uint32_t>(64 - std::countl_zero(before));
      if (begin < end && !visit(Position{at.ticket, begin}, end - begin)) return;
      const std::uint64_t previous = platform::load_relaxed(info.previous);
      end = before == 0 && previous < at.ticket && store_.is_in_window(previous) ? written(previous) : 0;
      if (end == 0) return;
      at.ticket = previous;
    }
  }

  // Writes to `out` the indices of the row itself and of every `stride`-th row after it in its episode. Stops at the
  // first row that is not ready, or when `out` is full. Returns the number written.
  std::size_t follow(Position from, std::uint64_t stride, std::span<std::uint64_t> out) const noexcept {
    SHMTREE_DCHECK(stride != 0);
    std::size_t count = 0;
    std::uint64_t skipped = 0;
    each_run(from, [&](Position at, std::uint32_t here) {
      for (; skipped < here && count < out.size(); skipped += stride) {
        out[count++] = store_.shape().index_of(at.ticket, at.slot + skipped);
      }
      skipped -= std::min<std::uint64_t>(here, skipped);
      return count < out.size();
    });
    return count;
  }

  // Writes to the end of `out` the indices of every `stride`-th row before `at` in its episode, the latest one last.
  // Stops where earlier rows have left the window, or when `out` is full. Returns the number written.
  std::size_t follow_back(Position at, std::uint64_t stride, std::span<std::uint64_t> out) const noexcept {
    SHMTREE_DCHECK(stride != 0);
    std::size_t count = 0;
    std::uint64_t skipped = stride - 1;
    each_run_before(at, [&](Position first, std::uint32_t rows) {
      for (; skipped < rows && count < out.size(); skipped += stride) {
        out[out.size() - ++count] = store_.shape().index_of(first.ticket, first.slot + rows - 1 - skipped);
      }
      skipped -= std::min<std::uint64_t>(rows, skipped);
      return count < out.size();
    });
    return count;
  }

  // Returns the position of the first row of the episode of `at`; none if it has left the window.
  Position begin_of(Position at) const noexcept {
    each_run_before(at, [&](Position first, std::uint32_t) { return at = first, true; });
    Position before = at;
    return step_back(before) == Before::kBegin ? at : Position{};
  }
  // Calls visit(position) for the last row of each episode in the chunk, if the row is ready.
  template <class Visit>
  void each_end(std::uint64_t ticket, Visit visit) const noexcept {
    const ChunkInfo& info = store_.info(ticket);
    const Progress now = progress(ticket);
    const std::uint64_t ready = bits_below(std::min(now.ready, now.rows));
    std::uint64_t ends = platform::load_relaxed(info.ends) & ~platform::load_relaxed(info.finals) & ready;
    for (; ends != 0; ends &= ends - 1) visit(Position{ticket, static_cast<std::uint32_t>(std::countr_zero(ends))});
  }

  bool is_final(Position at) const noexcept {
    return store_.shape().finals && is_set(store_.info(at.ticket).finals, at.slot);
  }
  bool is_end(Position at) const noexcept { return is_set(store_.info(at.ticket).ends, at.slot); }

 private:
  static bool is_set(const std::atomic<std::uint64_t>& bits, std::uint32_t slot) noexcept {
    SHMTREE_DCHECK(slot < kMaxRowsPerChunk);
    return (platform::load_relaxed(bits) >> slot & 1) != 0;
  }
  // Returns the state of the chunk with this ticket, with `rows` limited to the slots of a chunk. Empty if no chunk has
  // the ticket.
  Progress progress(std::uint64_t ticket) const noexcept {
    if (ticket == 0 || ticket > kMaxTicket) return {};
    Progress now = store_.progress(ticket);
    if (now.ticket != ticket) return {};
    now.rows = std::min(now.rows, static_cast<std::uint32_t>(store_.shape().rows_per_chunk));
    return now;
  }
  std::uint32_t written(std::uint64_t ticket) const noexcept { return progress(ticket).rows; }
  bool leads_to(std::uint64_t ticket, std::uint64_t next) const noexcept {
    return next > ticket && written(next) != 0 && platform::load_relaxed(store_.info(next).previous) == ticket;
  }
  Reach ended(Reach result, bool wants_successor) const noexcept {
    result.there = true;
    result.terminated = !is_set(store_.info(result.last.ticket).truncated, result.last.slot);
    if (!wants_successor) return result;
    const Position final = after(result.last);
    result.successor = final.ticket != 0 && is_final(final) ? final : result.last;
    return result;
  }

  const Store& store_;
};

}  // namespace shmtree::replay
