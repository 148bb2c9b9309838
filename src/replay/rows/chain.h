// Slots of a stream, from one to the next: where a row's successors and the frames before it lie, and where its episode
// ends.
//
// Every shared word may be anything: what comes out are positions in places that there are. That they are the stream's
// is certain once the earliest ticket that was used is still in the window (Store::is_in_window) behind a fence.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "replay/rows/store.h"

namespace shmtree::replay {

struct Position {
  std::uint64_t ticket = 0;  // 0: nowhere
  std::uint32_t slot = 0;

  bool operator==(const Position&) const noexcept = default;
};

// What a row's n successors are.
struct Reach {
  bool there = false;       // all of them, as far as the episode has them
  bool terminated = false;  // the episode ended within them, and was not cut off
  std::uint32_t rows = 0;   // from the row itself on: n, or up to the episode's end
  Position last{};          // of these
  Position successor{};     // the one after them; where the episode ended its last observation, or `last` without one
};

enum class Before { kThere, kBegin, kGone };

class Chain {
 public:
  explicit Chain(const Store& store) noexcept : store_(store) {}

  // The slot after this one in its stream, if it is written.
  Position after(Position at) const noexcept {
    const std::uint64_t next = platform::load_acquire(store_.about(at.ticket).next);  // set once the place has its last
    if (at.slot + 1 < written(at.ticket)) return {at.ticket, at.slot + 1};
    return leads_to(at.ticket, next) ? Position{next, 0} : Position{};
  }

  // Moves to the slot before, of the same episode. kGone: it has left the window.
  Before step_back(Position& at) const noexcept {
    Position to{at.ticket, at.slot - 1};
    if (at.slot == 0) {
      const std::uint64_t previous = platform::load_relaxed(store_.about(at.ticket).previous);
      if (previous == 0) return Before::kBegin;
      const std::uint32_t there = previous < at.ticket ? written(previous) : 0;
      if (there == 0) return Before::kGone;
      to = {previous, there - 1};
    }
    const About& about = store_.about(to.ticket);
    const bool ends = is_set(about.finals, to.slot) || (is_set(about.ends, to.slot) && !is_final(at));
    if (ends) return Before::kBegin;
    at = to;
    return Before::kThere;
  }

  // Calls visit(position, count) for consecutive slots: the row itself and those after it, n in all, or as many as its
  // episode has. `successor` is looked for if it is wanted.
  template <class Visit>
  Reach reach(Position from, std::uint32_t n, bool wants_successor, Visit visit) const noexcept {
    Reach result;
    for (Position at = from;;) {
      const About& about = store_.about(at.ticket);
      const std::uint64_t next = platform::load_acquire(about.next);
      const std::uint32_t end = written(at.ticket);
      if (at.slot >= end) return {};
      const auto to_end = static_cast<std::uint32_t>(std::countr_zero(platform::load_relaxed(about.ends) >> at.slot));
      const std::uint32_t here = std::min({n - result.rows, end - at.slot, to_end == 64 ? 64 : to_end + 1});
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

  // Indices of the row itself and of every `stride`-th after it in its episode, as far as they are ready and `out` has
  // room; how many.
  std::size_t follow(Position from, std::uint64_t stride, std::span<std::uint64_t> out) const noexcept {
    std::size_t count = 0;
    for (std::uint64_t skipped = 0; count < out.size();) {
      const About& about = store_.about(from.ticket);
      const std::uint64_t next = platform::load_acquire(about.next);  // set once the place has its last row
      const Progress now = progress(from.ticket);
      const std::uint32_t ready = std::min(now.ready, now.rows);
      if (from.slot >= ready) break;
      const auto to_end = static_cast<std::uint32_t>(std::countr_zero(platform::load_relaxed(about.ends) >> from.slot));
      const std::uint32_t here = std::min(ready - from.slot, to_end + 1);
      for (; skipped < here && count < out.size(); skipped += stride) {
        out[count++] = store_.shape().index_of(from.ticket, from.slot + skipped);
      }
      if (here == to_end + 1 || ready < now.rows || !leads_to(from.ticket, next)) break;
      skipped -= std::min<std::uint64_t>(here, skipped);
      from = {next, 0};
    }
    return count;
  }

  bool is_final(Position at) const noexcept {
    return store_.shape().finals && is_set(store_.about(at.ticket).finals, at.slot);
  }
  bool is_end(Position at) const noexcept { return is_set(store_.about(at.ticket).ends, at.slot); }

 private:
  static bool is_set(const std::atomic<std::uint64_t>& bits, std::uint32_t slot) noexcept {
    return (platform::load_relaxed(bits) >> slot & 1) != 0;
  }
  // Of the place with that ticket: nothing when none has it, and no more slots than a place has.
  Progress progress(std::uint64_t ticket) const noexcept {
    if (ticket == 0 || ticket > kMostTicket) return {};
    Progress now = store_.progress(ticket);
    if (now.ticket != ticket) return {};
    now.rows = std::min(now.rows, static_cast<std::uint32_t>(store_.shape().rows_per_place));
    return now;
  }
  std::uint32_t written(std::uint64_t ticket) const noexcept { return progress(ticket).rows; }
  bool leads_to(std::uint64_t ticket, std::uint64_t next) const noexcept {
    return next > ticket && written(next) != 0 && platform::load_relaxed(store_.about(next).previous) == ticket;
  }
  Reach ended(Reach result, bool wants_successor) const noexcept {
    result.there = true;
    result.terminated = !is_set(store_.about(result.last.ticket).truncated, result.last.slot);
    if (!wants_successor) return result;
    const Position final = after(result.last);
    result.successor = final.ticket != 0 && is_final(final) ? final : result.last;
    return result;
  }

  const Store& store_;
};

}  // namespace shmtree::replay
