#include "channel/grants.h"

#include <cstring>
#include <mutex>
#include <new>

#include "platform/machine.h"
#include "platform/never_destroyed.h"

namespace shmtree::channel {

using namespace platform;

namespace {

// Whether a grant of this process is open in the channel.
bool has_given(const Lease& control) noexcept {
  Arena& arena = *control.arena();
  return Grants(arena, *reinterpret_cast<ChannelHeader*>(control.data())).has_one_of(arena.current_identity());
}

struct Kept {
  ForkSafeMutex mutex;
  std::vector<std::shared_ptr<Lease>> controls;
};
Kept& kept() noexcept {
  return never_destroyed<Kept>();
}

}  // namespace

void KeptForGrants::add(Lease control) noexcept {
  if (control.arena()->current_identity() == memory::kNobody || !has_given(control)) return;
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
      if (has_given(*control)) continue;
      const std::lock_guard guard(kept().mutex);
      std::erase(kept().controls, control);
    }
  } catch (const std::bad_alloc&) {  // the next one does it
  }
}

// A free place, else that of one that does not count any more.
Grant* Grants::find_free() const noexcept {
  Grant* found = nullptr;
  for_each([&](Grant& grant) {
    if (load_acquire(grant.state) == 0) found = &grant;
    return found == nullptr;
  });
  if (found != nullptr) return found;
  Givers givers(arena_);
  for_each([&](Grant& grant) {
    if (!givers.is_pending(grant)) found = &grant;
    return found == nullptr;
  });
  return found;
}

// Nobody is waited for: those whom the memory is full of may be waiting for just this end.
Status Grants::add() {
  std::uint64_t count = 0;
  walk([&](BlockRef, std::span<Grant> grants) { return (count += grants.size()) != 0; });
  const std::uint64_t bytes = chain_bytes(count, sizeof(Grant));
  auto block = arena_.allocate(bytes, memory::BlockKind::kDeliveries, WaitContext{Deadline::immediate()});
  if (!block) {
    Error error = std::move(block).error();
    error.message = "there is no memory to note that one more end is on its way, besides " + std::to_string(count) +
                    " others: " + error.message;
    if (error.code == Code::kFull) error.code = Code::kOutOfSharedMemory;
    return error;
  }
  std::memset(block->data(), 0, bytes);
  auto* added = new (block->data()) ChainHeader{count, {0}, {}};
  std::uint64_t first = load_acquire(shared_.more_grants);
  do {
    store_relaxed(added->next, first);
  } while (!compare_swap(shared_.more_grants, first, memory::pack(block->ref())));
  block->publish();
  return success();
}

Result<std::uint64_t> Grants::give(End end, Identity me) {
  std::uint32_t random = 0;
  while (random == 0) random_bytes(reinterpret_cast<unsigned char*>(&random), sizeof random);
  const std::uint64_t state = grant_state(random, me, end);
  store_seq_cst(shared_.ends[end].begun, 1u);
  for (;;) {
    Grant* place = find_free();
    if (place == nullptr) {
      Status added = add();
      if (!added) return std::move(added).error();
      continue;
    }
    std::uint64_t old = load_acquire(place->state);
    if (old != 0 && Givers(arena_).is_pending(*place)) continue;
    store_relaxed(place->made_ns, monotonic_ns());
    if (compare_swap(place->state, old, state)) return state;
  }
}

Grant* Grants::find(std::uint64_t state) const noexcept {
  Grant* found = nullptr;
  if (state == 0) return found;
  for_each([&](Grant& grant) {
    if (is_same_grant(load_acquire(grant.state), state)) found = &grant;
    return found == nullptr;
  });
  return found;
}

void Grants::claim(std::uint64_t granted) noexcept {
  Grant* grant = find(granted);
  if (grant == nullptr) return;
  std::uint64_t state = load_acquire(grant->state);
  while (is_same_grant(state, granted) && !compare_swap(grant->state, state, std::uint64_t{0})) {
  }
}

OnTheirWay Grants::on_their_way(End end) const noexcept {
  OnTheirWay found{};
  const std::int64_t now = monotonic_ns();
  Givers givers(arena_);
  for_each([&](Grant& grant) {
    const std::uint64_t state = load_acquire(grant.state);
    if (state == 0 || end_of_grant(state) != end || !givers.is_pending(grant)) return true;
    ++found.count;
    // Unsigned: the time lies in memory that everyone can write.
    const auto age_ns = static_cast<std::int64_t>(static_cast<std::uint64_t>(now) -
                                                  static_cast<std::uint64_t>(load_relaxed(grant.made_ns)));
    if (found.count != 1 && age_ns <= found.age_ns) return true;
    found.age_ns = age_ns;
    const bool gone = giver_is_gone(load_acquire(grant.state));
    found.pid = gone ? 0 : load_relaxed(arena_.participants().slot(memory::slot_of(giver_of(state))).pid);
    return true;
  });
  return found;
}

bool Grants::is_on_its_way(End end) const noexcept {
  Givers givers(arena_);
  return for_each([&](Grant& grant) {
           const std::uint64_t state = load_acquire(grant.state);
           return state == 0 || end_of_grant(state) != end || !givers.is_pending(grant);
         }) == Walked::kStopped;
}

bool Grants::has_one_of(Identity me) const noexcept {
  return for_each([&](Grant& grant) {
           const std::uint64_t state = load_acquire(grant.state);
           return state == 0 || giver_is_gone(state) || giver_of(state) != me;
         }) == Walked::kStopped;
}

}  // namespace shmtree::channel
