#include "channel/grants.h"

#include <cstring>
#include <mutex>
#include <new>

#include "channel/recovery.h"
#include "platform/machine.h"

namespace shmtree::channel {

using namespace platform;

namespace {

bool has_given(Arena& arena, ChannelHeader& shared, Identity me) noexcept {
  return for_each_grant(arena, shared, [&](Grant& grant) {
           const std::uint64_t state = load_acquire(grant.state);
           return state == 0 || giver_is_gone(state) || giver_of(state) != me;
         }) == Walked::kStopped;
}

ChannelHeader& header_in(const Lease& control) noexcept {
  return *reinterpret_cast<ChannelHeader*>(control.data());
}

struct Kept {
  LeafMutex mutex;
  std::vector<std::shared_ptr<Lease>> controls;
};
Kept& kept() noexcept {  // never destroyed
  alignas(Kept) static unsigned char place[sizeof(Kept)];
  static Kept* const kept = new (place) Kept;
  return *kept;
}

std::string seconds(std::uint64_t count) {
  return std::to_string(count) + " s";
}

}  // namespace

void KeptForGrants::add(Lease control) noexcept {
  const Identity me = control.arena()->current_identity();
  if (me == memory::kNobody || !has_given(*control.arena(), header_in(control), me)) return;
  try {
    auto lease = std::make_shared<Lease>(std::move(control));
    const std::lock_guard guard(kept().mutex);
    kept().controls.push_back(std::move(lease));
  } catch (const std::bad_alloc&) {  // then a minute has to do
  }
}

void KeptForGrants::sweep() noexcept {
  try {
    std::vector<std::shared_ptr<Lease>> controls;  // looked at, and let go of, without the mutex
    {
      const std::lock_guard guard(kept().mutex);
      controls = kept().controls;
    }
    for (const auto& control : controls) {
      Arena& arena = *control->arena();
      if (has_given(arena, header_in(*control), arena.current_identity())) continue;
      const std::lock_guard guard(kept().mutex);
      std::erase(kept().controls, control);
    }
  } catch (const std::bad_alloc&) {  // the next one does it
  }
}

// A free place, else that of one that does not count any more.
Grant* Channel::free_grant() noexcept {
  Grant* found = nullptr;
  for_each_grant(*arena_, header(), [&](Grant& grant) {
    if (load_acquire(grant.state) == 0) found = &grant;
    return found == nullptr;
  });
  if (found != nullptr) return found;
  Givers givers(*arena_);
  for_each_grant(*arena_, header(), [&](Grant& grant) {
    if (!givers.is_pending(grant)) found = &grant;
    return found == nullptr;
  });
  return found;
}

// Nobody is waited for: those whom the memory is full of may be waiting for just this end.
Status Channel::add_grants() {
  std::uint64_t count = 0;
  walk_grants(*arena_, header(), [&](std::span<Grant> grants, BlockRef) { return (count += grants.size()) != 0; });
  auto block =
      arena_->allocate(grants_bytes(count), memory::BlockKind::kDeliveries, WaitContext{Deadline::immediate()});
  if (!block) {
    Error error = std::move(block).error();
    error.message = "there is no memory to note that one more end is on its way, besides " + std::to_string(count) +
                    " others: " + error.message;
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  std::memset(block->data(), 0, grants_bytes(count));
  auto* added = new (block->data()) GrantsHeader{count, {0}, {}};
  std::uint64_t first = load_acquire(header().more_grants);
  do {
    store_relaxed(added->next, first);
  } while (!compare_swap(header().more_grants, first, memory::pack(block->ref())));
  block->publish();
  return success();
}

Result<std::uint64_t> Channel::grant(End which) {
  auto me = arena_->identity();
  if (!me) return std::move(me).error();
  KeptForGrants::sweep();
  std::uint32_t random = 0;
  while (random == 0) random_bytes(reinterpret_cast<unsigned char*>(&random), sizeof random);
  const std::uint64_t state = grant_state(random, *me, which);
  store_full(end(which).begun, 1u);
  has_given_.store(true, std::memory_order_relaxed);
  for (;;) {
    Grant* place = free_grant();
    if (place == nullptr) {
      Status added = add_grants();
      if (!added) return std::move(added).error();
      continue;
    }
    std::uint64_t old = load_acquire(place->state);
    if (old != 0 && Givers(*arena_).is_pending(*place)) continue;
    store_relaxed(place->made_ns, monotonic_ns());
    if (compare_swap(place->state, old, state)) return state;
  }
}

Grant* Channel::find_grant(std::uint64_t state) noexcept {
  Grant* found = nullptr;
  if (state == 0) return found;
  for_each_grant(*arena_, header(), [&](Grant& grant) {
    if (is_same_grant(load_acquire(grant.state), state)) found = &grant;
    return found == nullptr;
  });
  return found;
}

void Channel::claim(std::uint64_t granted, End which) noexcept {
  if (Grant* grant = find_grant(granted)) {
    std::uint64_t state = load_acquire(grant->state);
    while (is_same_grant(state, granted) && !compare_swap(grant->state, state, std::uint64_t{0})) {
    }
  }
  if (granted != 0 && !anyone_at(which)) wake_all();
}

Status Channel::check_grant(std::uint64_t granted, End which, int giver_pid) {
  if (granted == 0 || ending() == Ending::kNever) return success();
  if (end_of_grant(granted) != which) {
    return Error{Code::kInvalid, which == End::kSending
                                     ? "this is the handle of a receiving end, not of a sending one"
                                     : "this is the handle of a sending end, not of a receiving one"};
  }
  Givers givers(*arena_);
  Grant* grant = find_grant(granted);
  if (grant != nullptr && givers.is_pending(*grant)) return success();
  // Loaded before, or late: nobody is misled while its giver lives, or others keep the stream open.
  if (arena_->participants().is_alive(giver_of(granted)) || !is_over(which)) return success();
  std::string when, ended = "has ended";
  if (grant != nullptr) {
    const std::uint64_t state = load_acquire(grant->state);
    when.append(" ").append(seconds(givers.now_s() - second_of(load_relaxed(grant->made_ns)))).append(" ago");
    if (giver_is_gone(state)) ended = "was found to have ended " + seconds(gone_for(state, givers.now_s())) + " ago";
  }
  return Error{Code::kClosed, "this end was pickled" + when + " by process " + std::to_string(giver_pid) + ", which " +
                                  ended + ": it has counted for " + seconds(kGrantLifeS) +
                                  " after that, and the stream is over"};
}

OnTheirWay Channel::on_their_way(End which) noexcept {
  OnTheirWay found{};
  const std::int64_t now = monotonic_ns();
  Givers givers(*arena_);
  for_each_grant(*arena_, header(), [&](Grant& grant) {
    const std::uint64_t state = load_acquire(grant.state);
    if (state == 0 || end_of_grant(state) != which || !givers.is_pending(grant)) return true;
    ++found.count;
    // Unsigned: the time lies in memory that everyone can write.
    const auto age_ns = static_cast<std::int64_t>(static_cast<std::uint64_t>(now) -
                                                  static_cast<std::uint64_t>(load_relaxed(grant.made_ns)));
    if (found.count != 1 && age_ns <= found.age_ns) return true;
    found.age_ns = age_ns;
    const bool gone = giver_is_gone(load_acquire(grant.state));
    found.pid = gone ? 0 : load_relaxed(arena_->participants().slot(memory::slot_of(giver_of(state))).pid);
    return true;
  });
  return found;
}

bool Channel::is_on_its_way(End which) noexcept {
  Givers givers(*arena_);
  return for_each_grant(*arena_, header(), [&](Grant& grant) {
           const std::uint64_t state = load_acquire(grant.state);
           return state == 0 || end_of_grant(state) != which || !givers.is_pending(grant);
         }) == Walked::kStopped;
}

bool Recovery::has_grants(Arena& arena, BlockRef channel) {
  auto* shared = reinterpret_cast<ChannelHeader*>(arena.blocks().address(channel.id));
  if (shared == nullptr) return true;  // not to be called abandoned before it was looked at
  if (shared->magic != kChannelMagic) return false;
  Givers givers(arena);
  return for_each_grant(arena, *shared, [&](Grant& grant) { return !givers.is_pending(grant); }) != Walked::kAll;
}

}  // namespace shmtree::channel
