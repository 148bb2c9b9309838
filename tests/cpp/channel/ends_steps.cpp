// A process checks, one instruction at a time, if an end is left, while another process passes that end on. In each
// case some process or a transfer has the end at any time. So the check must never report that it is left.
#include <functional>

#include "memory/transfers.h"
#include "support/channels.h"
#include "support/stepped_child.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr End kEnd = End::kSending;
constexpr int kLeft = 1, kAttached = 0;  // exit status of the checking process

// This process is a member of the receiving end. The sending end is attached here, or in transit in entry 1 of the
// transfers.
struct Passed {
  std::shared_ptr<Channel> channel = receiving_channel();
  std::uint64_t number = 0;

  void load() { channel->membership().join(kEnd).value(); }
  void end(std::uint64_t transfer) { channel->membership().end_transfer(transfer, kEnd); }
  void leave() { channel->membership().leave(kEnd); }
  std::uint64_t begin() { return channel->membership().begin_transfer(kEnd).value(); }
};

struct Way {
  const char* name;
  bool is_in_transit;  // at the beginning
  std::function<void(Passed&)> pass;
};

void receive(Passed& passed) {
  passed.load();
  passed.end(passed.number);
}
void give(Passed& passed) {
  passed.begin();
  passed.leave();
}
// The new transfer uses entry 0, which the check has already passed when it reads entry 1.
void receive_and_give(Passed& passed) {
  passed.load();
  passed.begin();
  passed.end(passed.number);
  passed.leave();
}

const Way kWays[] = {
    {"an end is loaded", true, receive},
    {"an end is pickled", false, give},
    {"an end is loaded and pickled again", true, receive_and_give},
};

// Steps the child, beginning with its store to `begins`.
Stepped check_at(const Way& way, int instructions) {
  INFO(way.name << " after " << instructions << " instructions of a check");
  Passed passed;
  const std::uint64_t before = passed.begin();
  passed.number = passed.begin();
  passed.end(before);
  if (!way.is_in_transit) {
    passed.load();
    passed.end(passed.number);
  }
  std::atomic<std::uint32_t> begins{0};
  SteppedChild child(0, [&] {
    if (!way.is_in_transit) passed.leave();  // leaves the end that the child has inherited
    changes_until_crash.store(1);
    store_relaxed(begins, 1u);
    _exit(passed.channel->ends().is_left(kEnd) ? kLeft : kAttached);
  });
  const Stepped stepped = child.step(instructions);
  REQUIRE(stepped != Stepped::kAtNextChange);
  way.pass(passed);
  REQUIRE(child.finish() == kAttached);
  return stepped;
}

}  // namespace

TEST_CASE("An end passed on during a check is never seen as left") {
  if (!can_step()) return;
  for (const Way& way : kWays) {
    int checks = 0;
    for (int i = 1; check_at(way, i) != Stepped::kEnded; i += 25) ++checks;
    CHECK(checks > 20);
  }
}

#endif
