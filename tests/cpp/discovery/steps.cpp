// Givers and receivers of a name in transit, killed between instructions. The name stays with a live process that has
// it or gives it, and becomes free once there is none.
#include "discovery/name_file.h"
#include "discovery/name_in_transit.h"
#include "discovery/names.h"
#include "support/arenas.h"
#include "support/own_names.h"
#include "support/stepped_child.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;
using discovery::Name;
using discovery::NamedKind;

namespace {

constexpr std::uint64_t kTransfer = 7;
constexpr int kStride = 3'989;  // instructions between kills

// Calls `kill_at(instructions)`, which kills a child after that many, until a child ends before its kill.
template <class KillAt>
void kill_along(KillAt kill_at) {
  int kills = 0;
  for (int i = 1; kill_at(i) != Stepped::kEnded; i += kStride) ++kills;
  CHECK(kills > 3);
}
// Makes the stepping of the child begin here.
void begin_steps() {
  std::atomic<std::uint32_t> begins{0};
  changes_until_crash.store(1);
  store_relaxed(begins, 1u);
  changes_until_crash.store(0);
}
// Runs `act` in a child, and kills it that many instructions after its call of begin_steps().
template <class Act>
Stepped kill_in(Act act, int instructions) {
  SteppedChild child(0, act);
  return child.step(instructions);
}

}  // namespace

TEST_CASE("A giver killed in handing over a name leaves it free") {
  if (!can_step()) return;
  const OwnDirectory directory;
  kill_along([&](int instructions) {
    INFO("killed after " << instructions << " instructions");
    const Stepped at = kill_in(
        [] {
          auto made = Name::create(unique_name(), {NamedKind::kArena, new_arena(), 0, ""}).value();
          discovery::NameInTransit given(*made);
          begin_steps();
          given.add(kTransfer).value();
          made.reset();
          given.take_back(kTransfer);
          _exit(0);
        },
        instructions);
    REQUIRE(Name::create(unique_name(), {NamedKind::kArena, new_arena(), 0, ""}).ok());
    return at;
  });
}

TEST_CASE("A receiver killed in taking a name leaves it to its giver") {
  if (!can_step()) return;
  const OwnDirectory directory;
  kill_along([&](int instructions) {
    INFO("killed after " << instructions << " instructions");
    const auto arena = new_arena();
    auto made = Name::create(unique_name(), {NamedKind::kArena, arena, 0, ""}).value();
    const std::string path = made->path();
    discovery::NameInTransit given(*made);
    REQUIRE(given.add(kTransfer).ok());
    made.reset();
    const Stepped at = kill_in(
        [&] {
          begin_steps();
          auto arrived = Name::join(path, arena).value();
          arrived->note_arrival(kTransfer).value();
          _exit(0);
        },
        instructions);
    const bool is_free = Name::create(unique_name(), {NamedKind::kArena, arena, 0, ""}).ok();
    REQUIRE(is_free != given.is_needed());  // the giver has its entry, or the entry went to the receiver, which died
    given.take_back(kTransfer);
    REQUIRE(Name::create(unique_name(), {NamedKind::kArena, arena, 0, ""}).ok());
    return at;
  });
}

#endif
