#include "broadcast/cursors.h"

#include "memory/arena.h"
#include "memory/held_locks.h"
#include "platform/dcheck.h"

namespace shmtree::broadcast {

using namespace platform;

namespace {

constexpr std::size_t kMaxNamed = 8;

}  // namespace

std::uint32_t Cursors::count() const noexcept {
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < used(); ++i) found += load_acquire(at(i).owner) != 0;
  return found;
}

std::uint32_t Cursors::find_free() const noexcept {
  SHMTREE_DCHECK(memory::HeldLocks::contains(header_.lock));
  std::uint32_t number = 0;
  while (number < most_ && load_acquire(at(number).owner) != 0) ++number;
  return number;
}

Cursors::Slowest Cursors::slowest(Readers among) const noexcept {
  Slowest found{load_acquire(header_.tail), memory::kNoIdentity};
  const std::uint32_t cursors = used();
  for (std::uint32_t i = 0; i < cursors; ++i) {
    const Owner owner = owner_of(i);
    if (owner.identity == memory::kNoIdentity || (among == Readers::kBlocking && owner.policy != Policy::kBlock))
      continue;
    const std::uint64_t position = load_seq_cst(at(i).position);
    if (position < found.position || found.reader == memory::kNoIdentity) {
      found = {std::min(position, found.position), owner.identity, i};
    }
  }
  return found;
}

// Ignores a block that was freed or reused, since then no process holds the subscription.
template <class Visit>
void Cursors::for_each_holder(const Cursor& cursor, Visit visit) const {
  const memory::BlockRef ref = memory::unpack(load_acquire(cursor.subscription));
  if (!arena_.blocks().is_current(ref)) return;
  const memory::BlockEntry* block = arena_.blocks().entry(ref.id);
  if (block == nullptr) return;
  block->holders.for_each([&](std::uint32_t slot) {
    if (arena_.participants().is_owner_alive(slot)) visit(slot);
  });
}

template <class Visit>
void Cursors::for_each_giver(const Cursor& cursor, Visit visit) const {
  const std::uint64_t subscription = load_acquire(cursor.subscription);
  if (subscription == 0) return;
  const auto see = [&](std::uint64_t state, const memory::Transfer&) { return visit(memory::giver_of(state)), true; };
  arena_.transfers().for_each_of(subscription, memory::Transferred::kMemory, see);
}

bool Cursors::is_held(const Cursor& cursor) const noexcept {
  bool held = false;
  for_each_holder(cursor, [&](std::uint32_t) { held = true; });
  for_each_giver(cursor, [&](Identity) { held = true; });
  return held;
}

bool Cursors::drop_dead() const noexcept {
  bool dropped = false;
  for (std::uint32_t i = 0; i < used(); ++i) {
    std::uint64_t word = load_acquire(at(i).owner);
    const Owner owner = unpack_owner(word);
    if (word == 0 || (owner.claimed ? arena_.participants().is_alive(owner.identity) : is_held(at(i)))) continue;
    dropped = compare_swap(at(i).owner, word, std::uint64_t{0}) || dropped;
  }
  return dropped;
}

std::vector<int> Cursors::pids_of(std::uint32_t number) const {
  const memory::Participants& participants = arena_.participants();
  const Owner owner = owner_of(number);
  if (owner.claimed) return {load_relaxed(participants.slot_of_identity(owner.identity).pid)};
  std::vector<int> found;
  for_each_holder(at(number), [&](std::uint32_t slot) { found.push_back(load_relaxed(participants.slot(slot).pid)); });
  for_each_giver(at(number),
                 [&](Identity giver) { found.push_back(load_relaxed(participants.slot_of_identity(giver).pid)); });
  // A child that has not started yet is listed with the pid of its parent, so a pid may occur twice.
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::string Cursors::name(std::uint32_t number) const {
  const std::vector<int> pids = pids_of(number);
  std::string text(pids.size() == 1 ? "process" : "processes");
  for (std::size_t i = 0; i < std::min(pids.size(), kMaxNamed); ++i) {
    text += i == 0 ? " " : ", ";
    text += std::to_string(pids[i]);
  }
  if (pids.size() > kMaxNamed) text += " and " + std::to_string(pids.size() - kMaxNamed) + " others";
  return text + (pids.size() == 1 ? " has" : " have");
}

}  // namespace shmtree::broadcast
