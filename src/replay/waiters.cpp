#include "replay/waiters.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "platform/atomics.h"

namespace shmtree::replay {

using memory::WaitFor;
using platform::load_acquire;
using platform::load_relaxed;

namespace {

bool waits(const memory::Participant& participant, WaitFor what, std::uint64_t about) noexcept {
  return std::any_of(std::begin(participant.waits), std::end(participant.waits), [&](const memory::Wait& wait) {
    return memory::what_of_wait(load_acquire(wait.what)) == what && load_relaxed(wait.about) == about;
  });
}

}  // namespace

Waiters waiters_of(const Store& store) {
  Waiters found;
  const memory::Participants& participants = store.arena()->participants();
  const std::uint64_t about = memory::pack(store.block());
  for (std::uint32_t slot = 0; slot < participants.used_slots(); ++slot) {
    const memory::Participant& participant = participants.slot(slot);
    const bool adds = waits(participant, WaitFor::kRateLimit, about);
    const bool draws = waits(participant, WaitFor::kRows, about);
    if ((!adds && !draws) || !participants.is_owner_alive(slot)) continue;
    const int pid = load_relaxed(participant.pid);
    if (adds) found.adding.push_back(pid);
    if (draws) found.drawing.push_back(pid);
  }
  for (std::vector<int>* pids : {&found.adding, &found.drawing}) {
    std::sort(pids->begin(), pids->end());
    pids->erase(std::unique(pids->begin(), pids->end()), pids->end());
  }
  return found;
}

}  // namespace shmtree::replay
