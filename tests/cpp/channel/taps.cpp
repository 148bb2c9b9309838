// Taps: a tap sees each message that is put, takes none, and blocks no process.
#include <unistd.h>

#include <csignal>

#include "support/crash_states.h"
#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

using channel::Tap;

constexpr std::size_t kInline = 4, kBlock = 700;  // words

std::shared_ptr<Tap> new_tap(Channel& channel) {
  return channel.tap(Tap::Wants::kMessages, patience()).value();
}
// Returns the messages that the tap can see now, and releases them.
Numbers seen_by(Tap& tap) {
  Numbers numbers;
  for (;;) {
    const auto seen = tap.take(3);
    for (const Tap::Seen& one : seen) numbers.push_back(number_in(one.frame));
    tap.release();
    if (seen.empty()) return numbers;
  }
}

}  // namespace

TEST_CASE("A tap sees later messages and takes none from receivers") {
  for (const std::size_t words : {kInline, kBlock}) {
    auto channel = new_channel(new_arena(), unlimited());
    put(*channel, 1, words).value();
    auto tap = new_tap(*channel);
    for (std::uint64_t i = 2; i <= 20; ++i) put(*channel, i, words).value();
    CHECK(run_of(2, 19, 19)(seen_by(*tap)));
    CHECK(tap->missed() == 0);
    CHECK(channel->size() == 20);
    CHECK(run_of(1, 20, 20)(drain(*channel)));
    CHECK(seen_by(*tap).empty());
  }
}

TEST_CASE("A tap sees messages that receivers have already released") {
  auto arena = new_arena();
  auto channel = new_channel(arena, unlimited());
  auto tap = new_tap(*channel);
  const std::uint64_t bytes = used_bytes(*arena);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    put(*channel, i, kBlock).value();
    CHECK(get(*channel).value() == i);
  }
  CHECK(used_bytes(*arena) >= bytes + 20 * kBlock * 8);
  CHECK(run_of(1, 20, 20)(seen_by(*tap)));
  CHECK(used_bytes(*arena) == bytes);
  CHECK(channel::check(*arena) == "");
}

TEST_CASE("A message that a tap released stays whole for its receiver") {
  auto arena = new_arena();
  auto channel = new_channel(arena, unlimited());
  auto tap = new_tap(*channel);
  const std::uint64_t bytes = used_bytes(*arena);
  put(*channel, 1, kBlock).value();
  CHECK(run_of(1, 1, 1)(seen_by(*tap)));
  arena->reconcile(patience()).value();
  put(*channel, 2, kBlock).value();  // must not overwrite the first message
  CHECK(run_of(1, 2, 2)(drain(*channel)));
  CHECK(run_of(2, 1, 1)(seen_by(*tap)));
  CHECK(used_bytes(*arena) == bytes);
}

TEST_CASE("A nacked message survives its release by a tap") {
  auto channel = new_channel(new_arena(), unlimited());
  auto tap = new_tap(*channel);
  put(*channel, 1, kBlock).value();
  take(*channel).value().nack(patience()).value();
  CHECK(run_of(1, 1, 1)(seen_by(*tap)));
  CHECK(get(*channel).value() == 1);
}

// guarantee: taps-do-not-disturb
TEST_CASE("An idle tap blocks no put and counts missed messages") {
  for (const std::size_t words : {kInline, kBlock}) {
    auto arena = new_arena();
    auto channel = new_channel(arena, with_capacity(1));
    auto tap = new_tap(*channel);
    const std::uint64_t count = 3'000;
    for (std::uint64_t i = 0; i < count; ++i) {
      put(*channel, i, words, no_wait()).value();
      REQUIRE(get(*channel, no_wait()).value() == i);
    }
    CHECK(arena->pool().free_bytes() >= arena->pool().max_bytes() / 2);
    const Numbers seen = seen_by(*tap);
    CHECK(tap->missed() == count - seen.size());
    CHECK(run_of(0, 100, count - 1)(seen));
    put(*channel, count, words).value();
    CHECK(run_of(count, 1, 1)(seen_by(*tap)));
  }
}

TEST_CASE("A tap sees a large message if nothing else is kept for it") {
  auto arena = new_arena(8 * kMiB);
  auto channel = new_channel(arena, unlimited());
  auto tap = new_tap(*channel);
  for (std::uint64_t i = 0; i < 4; ++i) {
    put(*channel, i, 2 * kMiB / 8).value();
    CHECK(get(*channel).value() == i);
    CHECK(run_of(i, 1, 1)(seen_by(*tap)));
  }
}

TEST_CASE("A channel has one tap until that is closed or killed") {
  auto channel = new_channel(new_arena());
  auto tap = new_tap(*channel);
  CHECK(code_of(channel->tap(Tap::Wants::kMessages, patience())) == Code::kInvalid);
  tap.reset();
  Gate tapped;
  Child child([&] {
    auto theirs = channel->tap(Tap::Wants::kMessages, patience());
    tapped.open(theirs.ok());
    pause();
    return true;
  });
  CHECK(tapped.wait() == 1);
  CHECK(code_of(channel->tap(Tap::Wants::kMessages, patience())) == Code::kInvalid);
  child.kill_and_wait();
  auto mine = new_tap(*channel);
  put(*channel, 1, kBlock).value();
  CHECK(run_of(1, 1, 1)(seen_by(*mine)));
}

TEST_CASE("A stopped tap sees no later puts and ends when drained") {
  auto channel = new_channel(new_arena());
  auto tap = new_tap(*channel);
  put(*channel, 1, kBlock).value();
  CHECK_FALSE(tap->is_over(patience()));
  tap->stop(patience()).value();
  CHECK_FALSE(tap->is_over(patience()));
  put(*channel, 2, kBlock).value();
  CHECK(run_of(1, 1, 1)(seen_by(*tap)));
  CHECK(tap->is_over(patience()));
}

TEST_CASE("A tap ends with the stream and does not keep it open") {
  auto channel = new_channel(new_arena());
  auto tap = new_tap(*channel);
  put(*channel, 1).value();
  channel->membership().leave(End::kSending);
  CHECK_FALSE(tap->is_over(patience()));
  CHECK(get(*channel).value() == 1);
  CHECK(code_of(get(*channel)) == Code::kClosed);
  CHECK(run_of(1, 1, 1)(seen_by(*tap)));
  CHECK(tap->is_over(patience()));
}

TEST_CASE("A tap process stopped by a signal blocks no other process") {
  auto channel = new_channel(new_arena(), with_capacity(1));
  Gate tapped;
  Child child([&] {
    auto theirs = channel->tap(Tap::Wants::kMessages, patience()).value();
    tapped.open();
    raise(SIGSTOP);
    return true;
  });
  tapped.wait();
  child.wait_until_stopped();
  for (std::uint64_t i = 0; i < 3'000; ++i) {
    put(*channel, i, kBlock, no_wait()).value();
    REQUIRE(get(*channel, no_wait()).value() == i);
  }
  child.signal(SIGCONT);
  CHECK(child.succeeded());
  CHECK(channel::check(*channel->arena()) == "");
}

TEST_CASE("Damaged tap notes are counted as missed") {
  auto channel = new_channel(new_arena(), unlimited());
  auto tap = new_tap(*channel);
  const std::uint64_t packed = header_of(*channel).tap.load();
  auto* notes = channel->arena()->blocks().address(memory::unpack(packed).id) + sizeof(channel::TapHeader);
  const std::uint64_t each = channel::tap_note_bytes(header_of(*channel).slot_bytes, false);
  for (std::uint64_t i = 0; i < 4; ++i) put(*channel, i).value();
  const auto note = [&](std::uint64_t number) { return reinterpret_cast<channel::TapNote*>(notes + number * each); };
  note(0)->frame_bytes = ~0ull;
  note(1)->block = ~0ull;
  note(2)->ticket = 77;
  CHECK(run_of(3, 1, 1)(seen_by(*tap)));
  CHECK(tap->missed() == 3);
  header_of(*channel).tap = ~0ull;
  put(*channel, 4).value();
  CHECK(run_of(0, 5, 5)(drain(*channel)));
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: taps-do-not-disturb
TEST_CASE("A tap sees a killed put exactly if it took place") {
  for (const std::size_t words : {kInline, kBlock}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      auto arena = new_arena();
      auto channel = new_channel(arena, unlimited());
      auto tap = new_tap(*channel);
      const std::uint64_t bytes = used_bytes(*arena);
      put(*channel, 0, words).value();
      killed = killed_at_change(stores, [&] { put(*channel, 1, words).value(); });
      INFO("killed before change " << stores << " with " << words << " words");
      put(*channel, 2, words).value();
      const Numbers received = drain(*channel), seen = seen_by(*tap);
      REQUIRE(received == seen);
      REQUIRE((received == Numbers{0, 1, 2} || received == Numbers{0, 2}));
      REQUIRE(tap->missed() == 0);
      notice_deaths(*channel);
      REQUIRE(used_bytes(*arena) == bytes);
      REQUIRE(channel::check(*arena) == "");
    }
    CHECK(stores > 10);
  }
}

// guarantee: taps-do-not-disturb
TEST_CASE("A killed tap leaks nothing and blocks no other process") {
  for (const std::size_t words : {kInline, kBlock}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      auto arena = new_arena();
      auto channel = new_channel(arena, unlimited());
      put(*channel, 0, words).value();
      drain(*channel);
      const std::uint64_t bytes = used_bytes(*arena);
      killed = killed_at_change(stores, [&] {
        auto tap = channel->tap(Tap::Wants::kMessages, patience()).value();
        for (std::uint64_t i = 1; i <= 3; ++i) put(*channel, i, words).value();
        if (!run_of(1, 3, 3)(seen_by(*tap))) ::kill(getpid(), SIGABRT);
        put(*channel, 4, words).value();
        tap.reset();
      });
      INFO("killed before change " << stores << " with " << words << " words");
      put(*channel, 5, words, no_wait()).value();
      REQUIRE(drain(*channel).back() == 5);
      notice_deaths(*channel);
      REQUIRE(header_of(*channel).tap.load() == 0);
      REQUIRE(used_bytes(*arena) == bytes);
      REQUIRE(channel::check(*arena) == "");
    }
    CHECK(stores > 30);
  }
}

TEST_CASE("A killed receiver of a tapped channel loses no other message") {
  std::int64_t stores = 1;
  for (bool killed = true; killed; ++stores) {
    auto arena = new_arena();
    auto channel = new_channel(arena, unlimited());
    auto tap = new_tap(*channel);
    const std::uint64_t bytes = used_bytes(*arena);
    for (std::uint64_t i = 0; i < 3; ++i) put(*channel, i, kBlock).value();
    killed = killed_at_change(stores, [&] { get(*channel).value(); });
    INFO("killed before change " << stores);
    REQUIRE(run_of(0, 3, 3)(seen_by(*tap)));
    notice_deaths(*channel);
    REQUIRE(tail_of(3, 2)(drain(*channel)));
    REQUIRE(used_bytes(*arena) == bytes);
    REQUIRE(channel::check(*arena) == "");
  }
  CHECK(stores > 3);
}

#endif

TEST_CASE("Recovery survives a damaged slot size of a tapped channel") {
  const std::uint64_t damaged = GENERATE(std::uint64_t{0}, std::uint64_t{7}, (std::uint64_t{1} << 54) - 32,
                                         ~std::uint64_t{63}, std::uint64_t{1} << 63);
  auto arena = new_arena();
  auto channel = new_channel(arena, with_capacity(0));
  auto tap = new_tap(*channel);
  for (std::uint64_t i = 0; i < 12; ++i) put(*channel, i, i % 4 == 3 ? 300 : 3).value();
  ChannelHeader& header = header_of(*channel);
  auto* notes = reinterpret_cast<channel::TapHeader*>(arena->blocks().address(memory::unpack(header.tap.load()).id));
  notes->count = 1024;
  const std::uint64_t before = std::exchange(header.slot_bytes, damaged);
  Child child([&] {
    memory::request_recovery(arena->header());
    return arena->reconcile(patience()).ok();
  });
  CHECK(child.succeeded());
  header.slot_bytes = before;
}
