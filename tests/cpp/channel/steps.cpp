// A participant killed between any two instructions: single-stepped with ptrace through the operations of a channel,
// and killed at well over a thousand places. Crash points are only before each store to shared memory. These kills
// happen anywhere, including the allocator, the C library, and around system calls.
//
// A step takes two context switches, so a child runs to a crash point and is stepped from there.
#include "support/stepped_child.h"
#include "support/survivors.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;

namespace {

struct Operation {
  const char* name;
  std::function<void(Channel&)> prepare, act;
  std::function<bool(const Numbers&)> contents_are_right;
  std::uint64_t max_attempts = 0;
};

constexpr std::size_t kInline = 4, kBlock = 200;  // words; a slot has no space for kBlock

// Prepares a channel that already has delivery records. Their creation has its own test.
std::function<void(Channel&)> after_a_take(std::function<void(Channel&)> more) {
  return [more](Channel& channel) {
    put(channel, 0).value();
    take(channel).value().ack(patience()).value();
    more(channel);
  };
}
void take_one(Channel& channel) {
  Delivery delivery = take(channel).value();
  _exit(0);  // same as a kill
}
void give_back_one(Channel& channel) {
  take(channel).value().nack(patience()).value();
}
void requeue_one(Channel& channel) {
  channel.dead_letters(patience()).value()[0].requeue(patience()).value();
}
void watch_for_a_while(Channel& channel) {
  channel.watchers().wake_fd(End::kReceiving).value();
  channel.watchers().close_fd(End::kReceiving);
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  for (const std::size_t words : {kInline, kBlock}) {
    const auto three = after_a_take(putting(0, 3, words));
    const auto three_and_one_back = [three](Channel& channel) {
      three(channel);
      give_back_one(channel);
    };
    all.push_back({"put", three, putting(3, 1, words), run_of(0, 3, 4)});
    all.push_back({"get", three, [](Channel& channel) { get_message(channel, patience()).value(); }, tail_of(3, 2)});
    all.push_back({"take", three, take_one, run_of(0, 3, 3)});
    all.push_back(
        {"ack", three, [](Channel& channel) { take(channel).value().ack(patience()).value(); }, tail_of(3, 2)});
    all.push_back({"nack", three, give_back_one, run_of(0, 3, 3)});
    all.push_back({"get of a returned message", three_and_one_back,
                   [](Channel& channel) { get_message(channel, patience()).value(); }, tail_of(3, 2)});
    all.push_back({"take of a returned message", three_and_one_back, take_one, run_of(0, 3, 3)});
    all.push_back({"nack after the last attempt", three_and_one_back, give_back_one, tail_of(3, 2), 2});
    all.push_back({"requeue", three_and_one_back, requeue_one, tail_of(3, 2), 1});
  }
  const auto watched = [](Channel& channel) {
    putting(0, 3, kInline)(channel);
    channel.watchers().wake_fd(End::kReceiving).value();
  };
  all.push_back({"a watch of an end, and its end", putting(0, 3, kInline), watch_for_a_while, run_of(0, 3, 3)});
  all.push_back({"put to an end that others watch", watched, putting(3, 1, kInline), run_of(0, 3, 4)});
  all.push_back({"growth of the ring", putting(0, 8, kInline), putting(8, 1, kInline), run_of(0, 8, 9)});
  return all;
}

Stepped kill_in(const Operation& operation, const std::shared_ptr<Arena>& arena, std::int64_t change, int further) {
  INFO(operation.name << ", killed " << further << " instructions after change " << change);
  ChannelOptions options = unlimited();
  options.max_attempts = operation.max_attempts;
  auto channel = new_channel(arena, options);
  operation.prepare(*channel);
  SteppedChild child(change, [&] { operation.act(*channel); });
  const Stepped stepped = child.step(further);
  child.kill_now();
  survive_with(*channel, operation.contents_are_right);
  channel.reset();
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(used_bytes(*arena) == 0);
  return stepped;
}

}  // namespace

// guarantee: kill-anywhere
TEST_CASE("A kill at any instruction leaves the channel intact") {
  if (!can_step()) return;
  auto arena = new_arena(32 * kMiB);
  int kills = 0;
  for (const Operation& operation : operations()) {
    kills += kill_everywhere(
        12, [&](std::int64_t change, int further) { return kill_in(operation, arena, change, further); });
  }
  REQUIRE(kills >= 1'000);
}

#endif
