// Observers with few descriptors, and observers that other observers see.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "discovery/names.h"
#include "observe/openers.h"
#include "platform/machine.h"
#include "platform/other_process.h"
#include "support/catch2.h"
#include "support/snapshots.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

using Arenas = std::vector<std::shared_ptr<Arena>>;

Arenas new_arenas(std::size_t count) {
  Arenas arenas;
  while (arenas.size() < count) arenas.push_back(new_arena());
  for (const auto& arena : arenas) arena->identity().value();
  return arenas;
}

// Returns true if all arenas are reported, with `owner` as a live participant.
bool has_all(const std::vector<ObservedArena>& looked, const Arenas& arenas, int owner) {
  return std::all_of(arenas.begin(), arenas.end(), [&](const auto& arena) {
    const ObservedArena seen = look_at(arena->uuid(), looked);
    return seen.refused.empty() && opens(seen, owner) && participant_of(seen, owner).alive;
  });
}

bool says_why_nothing_is_seen(const std::vector<ObservedArena>& looked) {
  return looked.size() == 1 && looked[0].uuid == observer::kNoUuid && looked[0].openers.empty() &&
         looked[0].refused.find("Too many open files") != std::string::npos;
}

// Runs an observer in a process with `count` free descriptors and without these arenas.
template <class Check>
bool holds_with_descriptors(rlim_t count, Check check) {
  constexpr unsigned kStandard = 3;
  return succeeds_with_limit(RLIMIT_NOFILE, kStandard + count,
                             [&] { return close_range(kStandard, ~0U, 0) == 0 && check(observe()); });
}

// A process with an arena that no other process has.
class ArenaElsewhere {
 public:
  ArenaElsewhere()
      : child_([this] {
          const auto arena = new_arena();
          arena->identity().value();
          ready_.open(static_cast<std::uint64_t>(arena->fd()));
          pause();
          return true;
        }),
        fd_(static_cast<int>(ready_.wait())) {}

  Child& process() noexcept { return child_; }
  UniqueFd open_for_reading() const { return open_from_process(child_.pid(), fd_, Access::kRead).value(); }
  memory::Arena::Head head() const { return Arena::read_head(open_for_reading().get()).value(); }

 private:
  Gate ready_;  // must exist before the child
  Child child_;
  int fd_;
};

}  // namespace

// guarantee: observer-is-right
TEST_CASE("An observer with few descriptors still sees all arenas") {
  if (under_valgrind()) return;  // valgrind has its own descriptors, and does not pass on the limit
  const Arenas arenas = new_arenas(40);
  CHECK(holds_with_descriptors(
      2, [&, owner = process_id()](const auto& looked) { return has_all(looked, arenas, owner); }));
}

// guarantee: observer-is-right
TEST_CASE("An observer short of descriptors reports it or sees all") {
  if (under_valgrind()) return;
  const Arenas arenas = new_arenas(3);
  for (const rlim_t count : {rlim_t{0}, rlim_t{1}}) {
    CAPTURE(count);
    CHECK(holds_with_descriptors(count, [&, owner = process_id()](const auto& looked) {
      return says_why_nothing_is_seen(looked) || (count != 0 && has_all(looked, arenas, owner));
    }));
  }
}

// guarantee: observer-is-right
TEST_CASE("Observing threads are not listed as fd holders") {
  ArenaElsewhere elsewhere;
  const int owner = elsewhere.process().pid();
  const auto head = elsewhere.head();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int look = 0; look < 25; ++look) {
        const ObservedArena seen = look_at(head.uuid);
        wrong += seen.openers.size() != 1 || !opens(seen, owner) || participant_of(seen, owner).pid != owner;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("An arena is opened although its known descriptor is closed") {
  ArenaElsewhere elsewhere;
  observer::OpenArena open{.id = file_id(elsewhere.open_for_reading().get()).value()};
  open.users.push_back({.pid = elsewhere.process().pid(), .fd = 900, .read_only = false});
  const auto opened = observer::open_arena(open);
  REQUIRE(opened.ok());
  CHECK(file_id(opened->get()).value() == open.id);
}

TEST_CASE("An arena open only in observers is listed with them") {
  ArenaElsewhere elsewhere;
  const auto head = elsewhere.head();
  const UniqueFd kept = elsewhere.open_for_reading();
  elsewhere.process().kill_and_wait();
  const ObservedArena seen = look_at(head.uuid);
  REQUIRE(opens(seen, process_id()));
  for (const ObservedOpener& one : seen.openers) CHECK(one.read_only);
  REQUIRE(seen.participants.size() == 1);
  CHECK_FALSE(seen.participants[0].alive);
}

TEST_CASE("A process that attaches during a snapshot is listed") {
  const auto arena = new_arena();
  arena->identity().value();
  const auto found = observer::find_open_arenas().value();
  const FileId id = file_id(arena->fd()).value();
  const auto open = std::find_if(found.begin(), found.end(), [&](const auto& one) { return one.id == id; });
  REQUIRE(open != found.end());
  const Participant other(arena);
  const ObservedArena seen =
      observer::snapshot_arena(open_from_process(process_id(), arena->fd(), Access::kRead).value(), *open)
          .value()
          .value();
  CHECK(participant_of(seen, other.pid()).alive);
  CHECK(opens(seen, other.pid()));
}

TEST_CASE("A dead participant is not confused across PID namespaces") {
  const auto arena = new_arena();
  Participant other(arena);
  other.process().kill_and_wait();
  const observer::OpenArena open{.processes = {{process_id(), {other.pid()}}}};
  const ObservedArena seen =
      observer::snapshot_arena(open_from_process(process_id(), arena->fd(), Access::kRead).value(), open)
          .value()
          .value();
  const auto dead = std::find_if(seen.participants.begin(), seen.participants.end(),
                                 [](const ObservedParticipant& one) { return !one.alive; });
  REQUIRE(dead != seen.participants.end());
  CHECK(dead->pid == 0);
  CHECK(dead->namespace_pid == other.pid());
}

TEST_CASE("An arena created during a snapshot is not reported hidden") {
  const Gate stop;
  Child maker([&] {
    while (!stop.is_open()) {
      const auto arena = new_arena();
      const std::string name = "observed-" + std::to_string(process_id());
      discovery::Name::create(name, {discovery::NamedKind::kArena, arena, 0, ""}).value();
    }
    return true;
  });
  for (int look = 0; look < 100; ++look) {
    for (const ObservedArena& one : observe()) {
      if (one.names.empty() || one.names[0] != "observed-" + std::to_string(maker.pid())) continue;
      CHECK(one.refused == "");
      CHECK(opens(one, maker.pid()));
    }
  }
  stop.open();
  CHECK(maker.succeeded());
}
