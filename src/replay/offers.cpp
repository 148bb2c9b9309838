// Places that their writers have left before they were full, for writers of new streams: docs/replay-layout.md.
#include <algorithm>

#include "replay/store.h"

namespace shmtree::replay {

using namespace platform;

// Whether a place that was left so can have rows of another stream: all of its own are ready, and there is room.
bool Store::may_go_on(const Progress& left) const noexcept {
  return left.rows != 0 && left.rows < shape_.rows_per_place && left.ready == left.rows && !left.closed && !left.busy &&
         is_young(left.ticket);
}

bool Store::offer_place(const Progress& left) noexcept {
  if (!may_go_on(left) || !take_place(left)) return false;
  Progress taken = left;
  taken.busy = true;
  std::uint64_t busy = pack(taken);
  store_release(about(left.ticket).owner, memory::kNobody);
  // From here on it may be opened anew at any time.
  if (!compare_swap(progress_word(left.ticket), busy, pack(left))) return false;
  for (auto& offer : header().offers) {
    std::uint64_t seen = load_acquire(offer);
    const bool is_free = seen == 0 || progress(seen).ticket != seen || !may_go_on(progress(seen));
    if (is_free && compare_swap(offer, seen, left.ticket)) return true;
  }
  return false;
}

std::optional<Progress> Store::take_offered(Identity me) noexcept {
  for (auto& offer : header().offers) {
    std::uint64_t ticket = load_acquire(offer);
    if (ticket == 0 || ticket > kMostTicket || extent(shape_.extent_of(place_of(ticket))) == nullptr) continue;
    if (!compare_swap(offer, ticket, std::uint64_t{0})) continue;
    const Progress left = progress(ticket);
    About& what = about(ticket);
    Identity owner = memory::kNobody;  // before it is busy: who finds it busy has to find an owner that lives
    if (left.ticket != ticket || !may_go_on(left) || !compare_swap(what.owner, owner, me) || !take_place(left))
      continue;
    const std::uint64_t last = std::uint64_t{1} << (left.rows - 1), ends = load_relaxed(what.ends);
    if (((ends | load_relaxed(what.finals)) & last) == 0) {  // the stream was left in the middle of an episode
      store_relaxed(what.truncated, load_relaxed(what.truncated) | last);
      store_relaxed(what.ends, ends | last);
    }
    store_relaxed(what.begins, load_relaxed(what.begins) | last << 1);
    return left;
  }
  return std::nullopt;
}

}  // namespace shmtree::replay
