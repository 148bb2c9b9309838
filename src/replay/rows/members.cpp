#include "replay/rows/members.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>

#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/weak_registry.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

using memory::Identity;
using memory::kNoIdentity;
using memory::WaitFor;
using platform::load_acquire;
using platform::load_relaxed;

namespace {

platform::WeakRegistry<BufferMembers>& all_members() noexcept {
  return platform::never_destroyed<platform::WeakRegistry<BufferMembers>>();
}

// Process id for which leave_all() ran. A forked child has another id.
constinit std::atomic<int> g_left{0};

bool waits(const memory::Participant& participant, WaitFor what, std::uint64_t block) noexcept {
  return std::any_of(std::begin(participant.waits), std::end(participant.waits), [&](const memory::Wait& wait) {
    return memory::what_of_wait(load_acquire(wait.what)) == what && load_relaxed(wait.about) == block;
  });
}

}  // namespace

// --- Members

bool Members::has_objects(Identity me) noexcept {
  const std::lock_guard guard(mutex_);
  return counted_ == me && objects_ != 0;
}

// Races with leave_all(): either this thread sees g_left, or leave_all() sees the word that this thread wrote.
void Members::enter(Identity me) noexcept {
  words_.enter(me);
  if (g_left.load() == platform::process_id()) words_.leave();
}

void Members::join(Identity me) noexcept {
  SHMTREE_DCHECK(me != kNoIdentity);
  {
    const std::lock_guard guard(mutex_);
    if (std::exchange(counted_, me) != me) objects_ = 0;  // a forked child has none of its parent's
    ++objects_;
  }
  enter(me);
}

void Members::part(Identity me) noexcept {
  {
    const std::lock_guard guard(mutex_);
    if (counted_ != me || objects_ == 0 || --objects_ != 0) return;
  }
  words_.leave();
  if (has_objects(me)) enter(me);  // an object that joined meanwhile may have seen the old word
}

// --- Membership

Status Membership::begin_as_member() {
  auto me = members_->identity();
  if (!me) return std::move(me).error();
  if (as_.load(std::memory_order_relaxed) != *me && as_.exchange(*me) != *me) members_->join(*me);
  return success();
}

void Membership::end() noexcept {
  if (members_ == nullptr) return;
  const Identity me = as_.exchange(kNoIdentity);
  if (me != kNoIdentity && me == members_->current_identity()) members_->part(me);
}

// --- BufferMembers

BufferMembers::BufferMembers(std::shared_ptr<Store> store, BufferMemberWords& words) noexcept
    : store_(std::move(store)),
      writers_(*store_->arena(), words.writers, "added rows"),
      samplers_(*store_->arena(), words.samplers, "drew rows") {}

BufferMembers::~BufferMembers() {
  all_members().erase(this);
}

std::shared_ptr<BufferMembers> BufferMembers::of(std::shared_ptr<Store> store, BufferMemberWords& words) {
  const std::shared_ptr<BufferMembers> members(new BufferMembers(std::move(store), words));
  return all_members().insert(members, [&](const BufferMembers& other) {
    return other.store_->arena() == members->store_->arena() && other.store_->block() == members->store_->block();
  });
}

void BufferMembers::leave_all() noexcept {
  g_left.store(platform::process_id());
  for (const auto& members : all_members().all()) {
    members->writers_.leave();
    members->samplers_.leave();
  }
}

// --- Waiting processes

Waiters waiters_of(const Store& store) {
  Waiters found;
  const memory::Participants& participants = store.arena()->participants();
  const std::uint64_t block = memory::pack(store.block());
  for (std::uint32_t slot = 0; slot < participants.used_slots(); ++slot) {
    const memory::Participant& participant = participants.slot(slot);
    const bool adds = waits(participant, WaitFor::kRateLimit, block);
    const bool tries = waits(participant, WaitFor::kRows, block);
    if ((!adds && !tries) || !participants.is_owner_alive(slot)) continue;
    const int pid = load_relaxed(participant.pid);
    if (adds) found.adding.push_back(pid);
    if (tries) found.sampling.push_back(pid);
  }
  for (std::vector<int>* pids : {&found.adding, &found.sampling}) {
    std::sort(pids->begin(), pids->end());
    pids->erase(std::unique(pids->begin(), pids->end()), pids->end());
  }
  return found;
}

}  // namespace shmtree::replay
