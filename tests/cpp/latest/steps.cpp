// Publishers and readers of a Latest that are killed between any two instructions. Crash points are only before each
// store to shared memory; these kills happen anywhere.
#include <functional>

#include "support/latest_survivors.h"
#include "support/stepped_child.h"
#include "support/waits.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kPublished = 6;

struct Operation {
  const char* name;
  std::function<void(LatestStore&)> act;
  std::uint64_t most = kPublished;  // newest version afterwards
  std::int64_t cut_off = 0;         // store before which an earlier publisher was killed; 0: none was
};

void publish_some(LatestStore& store) {
  for (std::uint64_t version = 1; version <= kPublished; ++version) publish(store, version).value();
}
void publish_next(LatestStore& store) {
  publish(store, store.version() + 1).value();
}
void publish_and_leave(LatestStore& store) {
  publish_next(store);
  store.ring()->leave();
}
void read_newest(LatestStore& store) {
  store.newest(0).value();
}
void read_history(LatestStore& store) {
  store.at(kPublished - 1).value();
}
void hold_while_it_goes(LatestStore& store) {
  const Held goes = store.at(kPublished - 1).value();
  publish_next(store);
  store.newest(0).value();
}
void open_again(LatestStore& store) {
  LatestStore::open(store.arena(), store.block(), patience()).value();
}

// Returns the number of the first store of a publication with this property: if the process is killed before it, the
// publication is unfinished and the newest version is `version`.
std::int64_t change_under_way(std::uint64_t version) {
  for (std::int64_t change = 1;; ++change) {
    const auto store = new_latest();
    publish_some(*store);
    REQUIRE(killed_at_change(change, [&] { publish_next(*store); }));
    if (load_relaxed(header_of(*store).putting) != 0 && store->version() == version) return change;
  }
}

std::vector<Operation> operations() {
  const std::int64_t early = change_under_way(kPublished), late = change_under_way(kPublished + 1);
  return {
      {"a publication", publish_next, kPublished + 1},
      {"a publication after one that was cut off early", publish_next, kPublished + 1, early},
      {"a publication after one that was cut off in its entry", publish_next, kPublished + 1, early + 5},
      {"a publication after one that was cut off late", publish_next, kPublished + 2, late},
      {"a read of the newest", read_newest},
      {"a read of the history", read_history},
      {"reads and a publication", hold_while_it_goes, kPublished + 1},
      {"a publisher's end", publish_and_leave, kPublished + 1},
      {"another's opening", open_again},
  };
}

// The survivor's publication does not block, although no process has checked for dead ones.
void require_no_wait(LatestStore& store, std::uint64_t most) {
  const Held newest = store.newest(0).value();
  REQUIRE((kPublished <= newest.version && newest.version <= most));
  CountedWaits waits;
  const auto patient = waits.until(Deadline::after_ns(20'000'000'000));
  REQUIRE(publish(store, newest.version + 1, 8, patient).value() == newest.version + 1);
  REQUIRE(waits.blocks == 0);
  REQUIRE(value_of(newest) == newest.version);
}

Stepped kill_in(const Operation& operation, std::int64_t change, int further) {
  INFO(operation.name << ", killed " << further << " instructions after change " << change);
  const auto arena = new_arena(2 * kMiB);
  const auto store = new_latest(1, arena);
  publish_some(*store);
  const std::uint64_t bytes = used_bytes(*arena);
  if (operation.cut_off != 0) REQUIRE(killed_at_change(operation.cut_off, [&] { publish_next(*store); }));
  SteppedChild child(change, [&] { operation.act(*store); });
  const Stepped stepped = child.step(further);
  child.kill_now();
  require_no_wait(*store, operation.most);
  require_whole(*store, kPublished + 1, operation.most + 1, bytes);
  return stepped;
}

}  // namespace

// guarantee: latest-whole-versions
TEST_CASE("A kill at any instruction leaves a Latest consistent") {
  if (!can_step()) return;
  int kills = 0;
  for (const Operation& operation : operations()) {
    kills += kill_everywhere(24, [&](std::int64_t change, int further) { return kill_in(operation, change, further); });
  }
  CHECK(kills > 1'000);
}

#endif
