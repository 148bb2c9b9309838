// A waiting call is woken by the event that it waits for, and not by its periodic check. Periodic checks are for
// wake-ups that died with their sender.
#include <atomic>
#include <functional>
#include <thread>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

using memory::Event;

// Marks the event as if a thread slept there. Returns its sequence number.
std::uint32_t arm(Event& event) {
  event.waiters.store(1);
  return event.sequence.load();
}
bool was_woken(const Event& event, std::uint32_t since) {
  return event.waiters.load() == 0 && event.sequence.load() != since;
}

std::uint64_t fill_up(Channel& channel, std::size_t words = 1) {
  std::uint64_t count = 0;
  while (put(channel, count + 1, words, no_wait()).ok()) ++count;
  return count;
}

}  // namespace

// guarantee: no-lost-wake-up
TEST_CASE("Each receipt from a full channel wakes a waiting sender") {
  const std::uint64_t capacity = GENERATE(1, 2, 3, 4, 8, 64, 1000);
  const std::size_t words = GENERATE(1, 200);
  const int how = GENERATE(0, 1);
  auto channel = new_channel(new_arena(), with_capacity(capacity));
  REQUIRE(fill_up(*channel, words) == capacity);
  Event& space = header_of(*channel).space;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(capacity, 5); ++i) {
    const std::uint32_t since = arm(space);
    if (how == 0) REQUIRE(get_message(*channel, no_wait()).ok());
    if (how == 1) REQUIRE(take(*channel, no_wait()).value().ack(no_wait()).ok());
    REQUIRE(was_woken(space, since));
  }
}

// guarantee: no-lost-wake-up
TEST_CASE("A put wakes the next waiting sender while space is left") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  REQUIRE(fill_up(*channel) == 8);
  REQUIRE(get_several(*channel, 3).value().size() == 3);
  Event& space = header_of(*channel).space;
  for (const bool more : {true, true, false}) {
    const std::uint32_t since = arm(space);
    REQUIRE(put(*channel, 1, 1, no_wait()).ok());
    REQUIRE(was_woken(space, since) == more);
  }
}

TEST_CASE("A sender that found space wakes the next before it writes") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  Event& space = header_of(*channel).space;
  const std::uint32_t since = arm(space);
  REQUIRE(channel->sending().wait_for_space(100'000, no_wait()).ok());
  REQUIRE(was_woken(space, since));
}

TEST_CASE("Each receipt wakes waiters for bytes and for memory") {
  ChannelOptions options = with_capacity(0);
  options.max_bytes = 1000;
  auto channel = new_channel(new_arena(), options);
  REQUIRE(fill_up(*channel) == 125);
  Event &bytes = header_of(*channel).freed_bytes, &memory = channel->arena()->header().space;
  const std::uint32_t since_bytes = arm(bytes), since_memory = arm(memory);
  REQUIRE(get(*channel, no_wait()).ok());
  REQUIRE(was_woken(bytes, since_bytes));
  REQUIRE(was_woken(memory, since_memory));
}

// guarantee: no-lost-wake-up
TEST_CASE("Each receipt from a full arena makes space for one message") {
  const std::uint64_t capacity = GENERATE(0, 1'000, 100'000);
  auto arena = new_arena(1 * kMiB);
  auto channel = new_channel(arena, with_capacity(capacity));
  const std::uint64_t count = fill_up(*channel);
  REQUIRE(count > 600);
  REQUIRE(code_of(put(*channel, 0, 1, patience(5))) == Code::kFull);
  REQUIRE(code_of(channel->sending().wait_for_space(8, no_wait())) == Code::kFull);
  REQUIRE_FALSE(channel->sending().has_space());
  for (std::uint64_t i = 1; i <= 2 * count; ++i) {
    REQUIRE(get(*channel).value() == i);
    REQUIRE(channel->sending().has_space());
    REQUIRE(put(*channel, count + i, 1, no_wait()).ok());
  }
  REQUIRE(drain(*channel).size() == count);
  REQUIRE(fill_up(*channel) >= count);  // once there is memory again, the channel has no other limit
  REQUIRE(drain(*channel).size() >= count);
  REQUIRE(channel::check(*arena) == "");
}

// guarantee: no-lost-wake-up
TEST_CASE("A sender blocked on memory wakes once memory is freed") {
  constexpr int kRounds = 40, kLostMs = kRounds * 30;  // a lost wake-up costs 50 ms each
  constexpr std::size_t kWords = 12'500;               // 100 kB
  auto channel = new_channel(new_arena(1 * kMiB), with_capacity(0));
  const auto put_and_get = [&] {
    std::atomic<int> put_so_far{0};
    std::thread sender([&] {
      for (int i = 0; i < kRounds; ++i) {
        if (!channel->sending().wait_for_space(8 * kWords, patience()).ok() || !put(*channel, 1, kWords).ok()) return;
        ++put_so_far;
      }
    });
    int received = 0;
    for (int i = 0; i < kRounds; ++i) {
      while (put_so_far != kRounds && header_of(*channel).freed_bytes.waiters.load() == 0) std::this_thread::yield();
      received += get_message(*channel, patience()).ok();  // and frees it
    }
    sender.join();
    REQUIRE(received == kRounds);
    REQUIRE(put_so_far == kRounds);
  };
  REQUIRE(shortest_ms(kLostMs, put_and_get) < kLostMs);
}

TEST_CASE("Receiving a nacked message wakes a waiting sender") {
  auto channel = new_channel(new_arena(), with_capacity(3));
  REQUIRE(fill_up(*channel) == 3);
  for (int i = 0; i < 3; ++i) take(*channel, no_wait()).value().nack(no_wait()).value();
  Event& space = header_of(*channel).space;
  for (const bool takes : {false, true}) {
    const std::uint32_t since = arm(space);
    if (takes) REQUIRE(take(*channel, no_wait()).value().ack(no_wait()).ok());
    if (!takes) REQUIRE(get_message(*channel, no_wait()).ok());
    REQUIRE(was_woken(space, since));
  }
}

TEST_CASE("A nack wakes limited takers and a redelivery wakes receivers") {
  ChannelOptions options = with_capacity(8);
  options.max_attempts = 2;
  options.max_unacked = 1;
  auto channel = new_channel(new_arena(), options);
  put(*channel, 1).value();
  Event &acked = header_of(*channel).acked, &items = header_of(*channel).items;
  for (const bool comes_again : {true, false}) {
    Delivery delivery = take(*channel, no_wait()).value();
    const std::uint32_t since_acked = arm(acked), since_items = arm(items);
    REQUIRE(delivery.nack(no_wait()).ok());
    REQUIRE(was_woken(acked, since_acked));
    REQUIRE(was_woken(items, since_items) == comes_again);
  }
  std::vector<Delivery> dead_letters = channel->dead_letters(patience()).value();
  const std::uint32_t since = arm(items);
  REQUIRE(dead_letters[0].requeue(no_wait()).ok());
  REQUIRE(was_woken(items, since));
}

namespace {

// Hooks of a receiving call. They record its state at the moment when it has slept and a message is there.
class Woken final : public WaitHooks {
 public:
  Woken(Channel& channel, int fd) : channel_(channel), fd_(fd) {}
  void before_block() noexcept override {}
  void after_block() noexcept override {
    if (!channel_.ready()) return;
    woken = true;
    was_readable = was_readable || readable(fd_);
    if (loses.exchange(false)) get(channel_, no_wait()).value();  // as another process might
    if (then) then();
  }
  bool interrupted() noexcept override {
    was_readable_when_asked = readable(fd_);
    return interrupts && woken;
  }

  bool interrupts = false, woken = false, was_readable = false, was_readable_when_asked = false;
  std::atomic<bool> loses{false};
  std::function<void()> then;

 private:
  Channel& channel_;
  const int fd_;
};

// Gets a message that is put once the call sleeps. Repeats if the call found it with a periodic check.
void get_woken(Channel& channel, Woken& woken) {
  const bool loses = woken.loses;
  while (!woken.woken) {
    std::atomic<bool> ended{false};
    std::thread sender([&] {
      const auto put_once_it_sleeps = [&] {
        while (!ended && header_of(channel).items.waiters.load() == 0) std::this_thread::yield();
        if (!ended) put(channel, 1).value();
      };
      put_once_it_sleeps();
      while (!ended && woken.loses) std::this_thread::yield();
      if (loses) put_once_it_sleeps();
    });
    const auto got = get(channel, {patience().deadline, &woken});
    ended = true;
    sender.join();
    REQUIRE((woken.interrupts && woken.woken ? got.code() == Code::kInterrupted : got.value() == 1));
  }
}

}  // namespace

// guarantee: poll-and-gil
TEST_CASE("The descriptor ignores a message that a woken call claimed") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  Woken woken(*channel, fd);
  woken.loses = GENERATE(false, true);
  get_woken(*channel, woken);
  REQUIRE_FALSE(woken.was_readable);
  REQUIRE_FALSE(readable(fd));
  put(*channel, 2).value();
  REQUIRE(readable(fd));
}

TEST_CASE("A claimed message that is not received is readable again") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  Woken woken(*channel, fd);
  woken.interrupts = true;
  get_woken(*channel, woken);
  REQUIRE_FALSE(woken.was_readable);
  REQUIRE(woken.was_readable_when_asked);
  REQUIRE(readable(fd));
  REQUIRE(get(*channel).value() == 1);
  REQUIRE_FALSE(readable(fd));
}

TEST_CASE("A forked child has no claims of threads of its parent") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  Woken woken(*channel, fd);
  woken.then = [&] {
    Child child([&] { return readable(channel->watchers().wake_fd(End::kReceiving).value()); });
    REQUIRE(child.succeeded());
  };
  get_woken(*channel, woken);
}
