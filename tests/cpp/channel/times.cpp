// Taps for times: when each message was put and received, and by which thread, without the messages.
#include <unistd.h>

#include <csignal>
#include <thread>

#include "platform/clock.h"
#include "support/crash_states.h"
#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

using channel::Tap;
using Times = Tap::Times;

constexpr std::size_t kInline = 4, kBlock = 700;  // words

std::shared_ptr<Tap> new_tap(Channel& channel) {
  return channel.tap(Tap::Wants::kTimes, patience()).value();
}
// Returns the times that the tap can see now, and releases them.
std::vector<Times> times_by(Tap& tap, bool also_queued = false) {
  std::vector<Times> all;
  for (;;) {
    const auto some = tap.take_times(3, also_queued);
    tap.release();
    if (some.empty()) return all;
    all.insert(all.end(), some.begin(), some.end());
  }
}

bool is_received_here(const Times& one) {
  const int thread = gettid();
  return one.put_pid == getpid() && one.put_thread == thread && one.got_pid == getpid() && one.got_thread == thread &&
         one.put_ns > 0 && one.put_ns <= one.got_ns && one.got_ns <= platform::monotonic_ns();
}

}  // namespace

TEST_CASE("A times tap reports put and get times and keeps no messages") {
  for (const std::size_t words : {kInline, kBlock}) {
    auto arena = new_arena();
    auto channel = new_channel(arena, unlimited());
    put(*channel, 0, words).value();
    auto tap = new_tap(*channel);
    const std::uint64_t bytes = used_bytes(*arena);
    for (std::uint64_t i = 1; i <= 20; ++i) put(*channel, i, words).value();
    CHECK(times_by(*tap).empty());
    CHECK(run_of(0, 11, 11)([&] {
      Numbers got;
      for (int i = 0; i <= 10; ++i) got.push_back(get(*channel).value());
      return got;
    }()));
    const auto received = times_by(*tap);
    REQUIRE(received.size() == 10);  // no time of message 0, which was put before the tap was attached
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(received[i].ticket == i + 1);
      CHECK(is_received_here(received[i]));
      CHECK((i == 0 || received[i - 1].got_ns <= received[i].got_ns));
    }
    CHECK(tap->take(10).empty());
    const auto queued = times_by(*tap, true);
    REQUIRE(queued.size() == 10);
    CHECK(std::ranges::all_of(queued, [](const Times& one) { return one.put_ns > 0 && one.got_ns == 0; }));
    CHECK(run_of(11, 10, 10)(drain(*channel)));
    CHECK(used_bytes(*arena) < bytes + kBlock * 8);  // the ring may have grown
    CHECK(tap->missed() == 0);
    CHECK(channel::check(*arena) == "");
  }
}

TEST_CASE("The first take or drop of a message counts as its receipt") {
  auto options = with_capacity(2);
  options.drop_oldest = true;
  auto channel = new_channel(new_arena(), options);
  auto tap = new_tap(*channel);
  put(*channel, 0).value();
  take(*channel).value().nack(patience()).value();
  CHECK(get(*channel).value() == 0);
  for (std::uint64_t i = 1; i <= 4; ++i) put(*channel, i).value();
  const auto received = times_by(*tap);
  REQUIRE(received.size() == 3);
  CHECK(std::ranges::all_of(received, is_received_here));
}

TEST_CASE("Times name the process and thread of put and get") {
  auto channel = new_channel(new_arena(), unlimited());
  auto tap = new_tap(*channel);
  int thread = 0;
  std::thread([&] {
    thread = gettid();
    put(*channel, 1).value();
  }).join();
  Child child([&] { return get(*channel).value() == 1; });
  const int pid = child.pid();
  CHECK(child.succeeded());
  const auto times = times_by(*tap);
  REQUIRE(times.size() == 1);
  CHECK(times[0].put_pid == getpid());
  CHECK(times[0].put_thread == thread);
  CHECK(times[0].got_pid == pid);
  CHECK(times[0].got_thread == pid);
}

TEST_CASE("An idle times tap blocks no put and counts missed times") {
  auto channel = new_channel(new_arena(), with_capacity(1));
  auto tap = new_tap(*channel);
  const std::uint64_t count = 40'000;
  for (std::uint64_t i = 0; i < count; ++i) {
    put(*channel, i, kInline, no_wait()).value();
    REQUIRE(get(*channel, no_wait()).value() == i);
  }
  const auto seen = times_by(*tap);
  CHECK(seen.size() >= 1'000);
  CHECK(tap->missed() == count - seen.size());
}

TEST_CASE("Receipts are not timed after the times tap has closed") {
  auto channel = new_channel(new_arena(), unlimited());
  auto tap = new_tap(*channel);
  CHECK(header_of(*channel).timed.load() == 1);
  CHECK(code_of(channel->tap(Tap::Wants::kMessages, patience())) == Code::kInvalid);
  tap.reset();
  CHECK(header_of(*channel).timed.load() == 0);
  auto messages = channel->tap(Tap::Wants::kMessages, patience()).value();
  CHECK(header_of(*channel).timed.load() == 0);
  CHECK(messages->take_times(10, true).empty());
}

TEST_CASE("A wrong timed flag does not affect put and get") {
  auto channel = new_channel(new_arena(), unlimited());
  header_of(*channel).timed = 1;
  put(*channel, 1).value();
  CHECK(get(*channel).value() == 1);
  auto tap = channel->tap(Tap::Wants::kMessages, patience()).value();
  header_of(*channel).timed = 77;
  put(*channel, 2).value();
  CHECK(get(*channel).value() == 2);
  CHECK(tap->take(10).size() == 1);
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: taps-do-not-disturb
TEST_CASE("A killed put or get is timed exactly if it took place") {
  for (const std::size_t words : {kInline, kBlock}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      auto arena = new_arena();
      auto channel = new_channel(arena, unlimited());
      auto tap = new_tap(*channel);
      const std::uint64_t bytes = used_bytes(*arena);
      put(*channel, 0, words).value();
      killed = killed_at_change(stores, [&] {
        put(*channel, 1, words).value();
        get(*channel).value();
      });
      INFO("killed before change " << stores << " with " << words << " words");
      notice_deaths(*channel);
      put(*channel, 2, words).value();
      const std::size_t received = drain(*channel).size();
      const auto times = times_by(*tap);
      const std::uint64_t there = header_of(*channel).head.load();
      REQUIRE(times.size() == there);
      REQUIRE((received == there || received + 1 == there));
      REQUIRE(tap->missed() == 0);
      for (const Times& one : times) {
        REQUIRE(one.put_ns > 0);
        REQUIRE(one.put_ns <= one.got_ns);
      }
      REQUIRE(used_bytes(*arena) == bytes);
      REQUIRE(channel::check(*arena) == "");
    }
    CHECK(stores > 10);
  }
}

// guarantee: taps-do-not-disturb
TEST_CASE("A killed times tap leaks nothing and blocks no process") {
  std::int64_t stores = 1;
  for (bool killed = true; killed; ++stores) {
    auto arena = new_arena();
    auto channel = new_channel(arena, unlimited());
    put(*channel, 0, kBlock).value();
    drain(*channel);
    const std::uint64_t bytes = used_bytes(*arena);
    killed = killed_at_change(stores, [&] {
      auto tap = new_tap(*channel);
      for (std::uint64_t i = 1; i <= 3; ++i) put(*channel, i, kBlock).value();
      get(*channel).value();
      if (times_by(*tap).size() != 1 || times_by(*tap, true).size() != 2) ::kill(getpid(), SIGABRT);
      put(*channel, 4, kBlock).value();
      tap.reset();
    });
    INFO("killed before change " << stores);
    put(*channel, 5, kBlock, no_wait()).value();
    REQUIRE(drain(*channel).back() == 5);
    notice_deaths(*channel);
    REQUIRE(header_of(*channel).tap.load() == 0);
    REQUIRE(header_of(*channel).timed.load() == 0);
    REQUIRE(used_bytes(*arena) == bytes);
    REQUIRE(channel::check(*arena) == "");
  }
  CHECK(stores > 30);
}

TEST_CASE("A tap can begin and end after any kill with a channel lock") {
  for (const bool begins : {true, false}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      auto arena = new_arena();
      auto channel = new_channel(arena, unlimited());
      auto tap = begins ? nullptr : new_tap(*channel);
      put(*channel, 0, kBlock).value();
      killed = killed_at_change(stores, [&] {
        put(*channel, 1, kBlock).value();
        get(*channel).value();
      });
      INFO("killed before change " << stores);
      if (begins) tap = new_tap(*channel);
      tap.reset();
      REQUIRE(header_of(*channel).tap.load() == 0);
      REQUIRE(header_of(*channel).timed.load() == 0);
      put(*channel, 2, kBlock, no_wait()).value();
      REQUIRE(drain(*channel).back() == 2);
      REQUIRE(channel::check(*arena) == "");
    }
    CHECK(stores > 10);
  }
}

#endif
