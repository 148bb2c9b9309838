#include "replay/rows/members.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>

#include "memory/weak_registry.h"
#include "platform/atomics.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "replay/rows/store.h"

namespace shmtree::replay {

using memory::Identity;
using memory::kNobody;
using memory::WaitFor;
using platform::load_acquire;
using platform::load_relaxed;

namespace {

memory::WeakRegistry<Attendance>& attendances() noexcept {
  return platform::never_destroyed<memory::WeakRegistry<Attendance>>();
}

// The process that has left; a forked child is another one.
constinit std::atomic<int> g_left{0};

bool waits(const memory::Participant& participant, WaitFor what, std::uint64_t about) noexcept {
  return std::any_of(std::begin(participant.waits), std::end(participant.waits), [&](const memory::Wait& wait) {
    return memory::what_of_wait(load_acquire(wait.what)) == what && load_relaxed(wait.about) == about;
  });
}

}  // namespace

// --- Side

bool Side::has_objects(Identity me) noexcept {
  const std::lock_guard guard(mutex_);
  return counted_ == me && objects_ != 0;
}

// Threads that leave_all() overtakes here find that it came, or it finds the word.
void Side::enter(Identity me) noexcept {
  words_.enter(me);
  if (g_left.load() == platform::process_id()) words_.leave();
}

void Side::join(Identity me) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (std::exchange(counted_, me) != me) objects_ = 0;  // a forked child has none of its parent's
    ++objects_;
  }
  enter(me);
}

void Side::part(Identity me) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (counted_ != me || objects_ == 0 || --objects_ != 0) return;
  }
  words_.leave();
  if (has_objects(me)) enter(me);  // one that joined meanwhile may have found the word there
}

// --- Attending

Status Attending::begin_on_side() {
  auto me = side_->identity();
  if (!me) return std::move(me).error();
  if (as_.load(std::memory_order_relaxed) != *me && as_.exchange(*me) != *me) side_->join(*me);
  return success();
}

void Attending::end() noexcept {
  if (side_ == nullptr) return;
  const Identity me = as_.exchange(kNobody);
  if (me != kNobody && me == side_->current_identity()) side_->part(me);
}

// --- Attendance

Attendance::Attendance(std::shared_ptr<Store> store, AttendanceWords& words) noexcept
    : store_(std::move(store)),
      adders_(*store_->arena(), words.adders, "added rows"),
      drawers_(*store_->arena(), words.drawers, "drew rows") {}

Attendance::~Attendance() {
  attendances().erase(this);
}

std::shared_ptr<Attendance> Attendance::of(std::shared_ptr<Store> store, AttendanceWords& words) {
  const std::shared_ptr<Attendance> made(new Attendance(std::move(store), words));
  return attendances().insert(made, [&](const Attendance& other) {
    return other.store_->arena() == made->store_->arena() && other.store_->block() == made->store_->block();
  });
}

void Attendance::leave_all() noexcept {
  g_left.store(platform::process_id());
  for (const auto& attendance : attendances().all()) {
    attendance->adders_.leave();
    attendance->drawers_.leave();
  }
}

// --- Who waits

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
