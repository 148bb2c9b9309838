#include "bindings/replay/replay.h"

#include <pybind11/pybind11.h>

#include <cstring>

#include "bindings/cpython/unwrap.h"
#include "platform/machine.h"
#include "replay/random.h"

namespace shmtree::python {

namespace {

constexpr std::size_t kMostIdleDrawers = 4;

}  // namespace

std::unique_ptr<replay::Drawer> DrawerPool::take(std::size_t table) noexcept {
  const std::lock_guard guard(mutex_);
  auto& idle = idle_[table];
  if (idle.empty()) return nullptr;
  auto drawer = std::move(idle.back());
  idle.pop_back();
  return drawer;
}

void DrawerPool::give_back(std::size_t table, std::unique_ptr<replay::Drawer> drawer) noexcept {
  if (drawer == nullptr) return;
  const std::lock_guard guard(mutex_);
  auto& idle = idle_[table];
  try {
    if (idle.size() < kMostIdleDrawers) idle.push_back(std::move(drawer));
  } catch (const std::bad_alloc&) {  // the next call makes one
  }
}

BorrowedDrawer::BorrowedDrawer(Replay& replay, std::size_t table)
    : replay_(replay), table_(table), drawer_(replay.drawers.take(table)) {
  if (drawer_ != nullptr) return;
  drawer_ = unwrap(replay::Drawer::make(replay.tables, table, new_seed(replay)));
}

Replay::Replay(std::shared_ptr<replay::Tables> shared, ReplayNests made_of, replay::Spec made_with,
               replay::Gather gathers)
    : tables(std::move(shared)),
      store(tables->store()),
      nests(std::move(made_of)),
      spec(std::move(made_with)),
      gather(std::move(gathers)),
      drawers(tables->size()) {
  unsigned char random[16];
  platform::random_bytes(random, sizeof random);
  std::memcpy(&seed, random, sizeof seed);
  for (const replay::Leaf& leaf : store->shape().leaves) row_bytes += leaf.bytes;
}

std::uint64_t new_seed(Replay& replay) noexcept {
  const std::uint64_t number = replay.seeds_given.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t who = replay.store->arena()->current_identity();  // a forked child counts on from its parent
  return replay::Random(replay::Random(replay.seed ^ number).next() ^ who).next();
}

std::uint32_t new_stream(const replay::Store& store) {
  static std::atomic<std::uint64_t> made{0};
  replay::Random mix(std::uint64_t{store.arena()->current_identity()} << 32 ^ made.fetch_add(1));
  return static_cast<std::uint32_t>(mix.next());
}

}  // namespace shmtree::python
