// Publishers and readers of a Broadcast that are killed between any two instructions. Crash points are only before each
// store to shared memory; these kills happen anywhere.
#include <functional>

#include "support/broadcast_survivors.h"
#include "support/stepped_child.h"
#include "support/waits.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

using Numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kSurvivor = 400;  // number of the message that the survivor puts

struct Operation {
  const char* name;
  std::function<void(const std::shared_ptr<Ring>&)> act;
  std::size_t words = kBlockWords;
  Numbers added{};           // numbers that the child puts
  std::int64_t cut_off = 0;  // store before which an earlier put was killed; 0: none was
};

std::function<void(const std::shared_ptr<Ring>&)> putting(std::size_t words, const Numbers& numbers) {
  return [=](const std::shared_ptr<Ring>& ring) {
    for (const std::uint64_t number : numbers) put(*ring, number, words).value();
  };
}
std::function<void(const std::shared_ptr<Ring>&)> reading(Policy policy) {
  return [=](const std::shared_ptr<Ring>& ring) {
    const auto reader = subscribe(ring, policy, true);
    for (int i = 0; i < 3; ++i) next(*reader);
    reader->close();
  };
}
void watch_for_a_while(const std::shared_ptr<Ring>& ring) {
  const auto reader = subscribe(ring, Policy::kBlock, true);
  reader->fd().value();
  for (int i = 0; i < 3; ++i) next(*reader);
  reader->close_fd();
}
void put_and_leave(const std::shared_ptr<Ring>& ring) {
  put(*ring, 2, kBlockWords).value();
  ring->leave();
}
void open_again(const std::shared_ptr<Ring>& ring) {
  Ring::open(ring->arena(), ring->block(), patience()).value();
}

// Fills the ring once around. Then puts two messages that the reader has not read.
std::unique_ptr<Subscriber> begin(const std::shared_ptr<Ring>& ring, std::size_t words) {
  for (std::uint64_t i = 100; i < 106; ++i) put(*ring, i, words).value();
  auto reader = subscribe(ring);
  for (std::uint64_t i = 0; i < 2; ++i) put(*ring, i, words).value();
  return reader;
}

// Returns the number of the first store of a put with this property: if the process is killed before it, the put is
// unfinished and the tail is `tail`.
std::int64_t change_under_way(std::size_t words, std::uint64_t tail) {
  for (std::int64_t change = 1;; ++change) {
    const auto ring = new_ring({.capacity = 4});
    const auto reader = begin(ring, words);
    REQUIRE(killed_at_change(change, [&] { put(*ring, 2, words).value(); }));
    if (check_ring(*ring) == "a put was interrupted" && ring->tail() == tail) return change;
  }
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  for (const std::size_t words : {kSmallWords, kBlockWords}) {
    const std::int64_t early = change_under_way(words, 8);
    all.push_back({"a put", putting(words, {2}), words, {2}});
    all.push_back({"a put after one that was cut off", putting(words, {2}), words, {2}, early});
    all.push_back({"a put after one that was cut off in its entry", putting(words, {2}), words, {2}, early + 5});
    for (const Policy policy : {Policy::kBlock, Policy::kSkip, Policy::kLatest, Policy::kRaise}) {
      all.push_back({"a reader, from its subscription to its end", reading(policy), words});
    }
  }
  all.push_back({"a reader that watches for messages", watch_for_a_while, kSmallWords});
  all.push_back({"an end", put_and_leave, kBlockWords, {2}});
  all.push_back({"another's opening", open_again});
  return all;
}

// The survivor's put does not block, although no process has checked for dead ones: the ring has space for one more
// message, even without recovering what the child put.
void require_no_wait(Ring& ring, Subscriber& reader, const Operation& operation) {
  CountedWaits waits;
  const auto patient = waits.until(Deadline::after_ns(20'000'000'000));
  REQUIRE(put(ring, kSurvivor, operation.words, patient).ok());
  REQUIRE(waits.blocks == 0);
  REQUIRE(check_ring(ring) == "");
  Numbers without{0, 1}, with{0, 1};
  with.insert(with.end(), operation.added.begin(), operation.added.end());
  without.push_back(kSurvivor);
  with.push_back(kSurvivor);
  const Numbers found = all_of(reader);
  REQUIRE((found == with || found == without));
}

Stepped kill_in(const Operation& operation, std::int64_t change, int further) {
  INFO(operation.name << ", " << operation.words << " words, killed " << further << " instructions after change "
                      << change);
  const auto arena = new_arena(2 * kMiB);
  const auto ring = new_ring({.capacity = 4}, arena);
  const std::uint64_t bytes = used_bytes(*arena);
  const auto reader = begin(ring, operation.words);
  if (operation.cut_off != 0)
    REQUIRE(killed_at_change(operation.cut_off, [&] { putting(operation.words, {2})(ring); }));
  SteppedChild child(change, [&] { operation.act(ring); });
  const Stepped stepped = child.step(further);
  child.kill_now();
  require_no_wait(*ring, *reader, operation);
  reader->close();
  require_whole(*ring, bytes);
  REQUIRE(ring->readers() == 0);
  return stepped;
}

}  // namespace

// guarantee: broadcast-kills
TEST_CASE("A kill at any instruction leaves a Broadcast consistent") {
  if (!can_step()) return;
  int kills = 0;
  for (const Operation& operation : operations()) {
    kills += kill_everywhere(48, [&](std::int64_t change, int further) { return kill_in(operation, change, further); });
  }
  CHECK(kills > 1'000);
}

#endif
