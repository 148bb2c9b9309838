// A participant killed between any two stores to shared memory, in every operation of a channel, and at random.
// Survivors put and get as if nothing had happened.
#include <unistd.h>

#include <csignal>
#include <functional>
#include <map>

#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

#if defined(SHMTREE_CRASH_POINTS)

// Kills a child before the n-th store of `act`, for every n. `prepare` fills the channel. `contents_are_right` checks
// the messages that the survivor finds before its own.
void kill_at_every_change(ChannelOptions options, const std::function<void(Channel&)>& prepare,
                          const std::function<void(Channel&)>& act,
                          const std::function<bool(const Numbers&)>& contents_are_right) {
  std::int64_t n = 1;
  const std::int64_t step = under_valgrind() ? 17 : 1;  // each child costs valgrind 0.1 s
  for (bool killed = true; killed; n += step) {
    REQUIRE(n < 5'000);
    auto arena = new_arena(32 * kMiB);
    auto channel = new_channel(arena, options);
    prepare(*channel);
    killed = killed_at_change(n, [&] { act(*channel); });
    INFO("killed before change " << n);
    survive_with(*channel, contents_are_right);
    channel.reset();
    arena->participants().check(0);
    REQUIRE(arena->reconcile(patience()).ok());
    REQUIRE(used_bytes(*arena) == 0);
  }
  REQUIRE(n > 5);
}

#endif

}  // namespace

#if defined(SHMTREE_CRASH_POINTS)

TEST_CASE("A put of an inline message is atomic if the sender is killed") {
  kill_at_every_change(unlimited(), putting(0, 3, 4), putting(3, 1, 4), run_of(0, 3, 4));
}

// guarantee: put-is-atomic
TEST_CASE("A put of a block is atomic if the sender is killed") {
  kill_at_every_change(unlimited(), putting(0, 3, 700), putting(3, 2, 700), run_of(0, 3, 5));
}

TEST_CASE("A sender killed while the ring grows loses no queued message") {
  kill_at_every_change(unlimited(), putting(0, 7, 4), putting(7, 3, 4), run_of(0, 7, 10));
}

// guarantee: put-is-atomic
TEST_CASE("A sender killed in put_many leaves a prefix of its messages") {
  kill_at_every_change(
      unlimited(), putting(0, 6, 4),
      [](Channel& channel) {
        Message a(channel, 6), b(channel, 7), c(channel, 8, 100), d(channel, 9);
        Outgoing batch[4]{std::move(a.out), std::move(b.out), std::move(c.out), std::move(d.out)};
        channel.sending().put_many(batch, patience()).value();
      },
      run_of(0, 6, 10));
}

// guarantee: ray-known-puts
TEST_CASE("A killed sender counts a put exactly if it took place") {
  for (const std::size_t words : {4u, 700u}) {
    Channel* made = nullptr;
    kill_at_every_change(
        unlimited(),
        [&](Channel& channel) {
          made = &channel;
          putting(0, 6, words)(channel);
        },
        [&](Channel& channel) {
          channel.count_puts();
          putting(6, 4, words)(channel);
        },
        [&](const Numbers& numbers) { return run_of(0, 6, 10)(numbers) && numbers.size() == 6 + made->counted(); });
  }
}

TEST_CASE("A receiver killed in get loses at most that message") {
  for (const std::size_t words : {4u, 700u}) {
    kill_at_every_change(
        unlimited(), putting(0, 5, words), [](Channel& channel) { get(channel).value(); }, tail_of(5, 4));
  }
}

TEST_CASE("A receiver killed in receive_run leaves a tail of messages") {
  kill_at_every_change(
      unlimited(), putting(0, 12, 4),
      [](Channel& channel) {
        const auto accept = [](std::span<const std::byte>) noexcept { return true; };
        REQUIRE(channel.receiving().receive_run(10, accept) == 10);
      },
      tail_of(12, 2));
}

TEST_CASE("A receiver killed in give_back loses at most that message") {
  for (const std::size_t words : {4u, 700u}) {
    kill_at_every_change(
        unlimited(), putting(0, 5, words),
        [](Channel& channel) {
          auto place = std::make_unique<channel::Received>();
          channel.receiving().get(place->message, patience()).value();
          channel.returns().give_back(std::move(place));
        },
        tail_of(5, 4));
  }
}

TEST_CASE("A receiver killed across segments loses at most its own gets") {
  kill_at_every_change(
      unlimited(), [](Channel& channel) { putting(0, 20, 4)(channel); },
      [](Channel& channel) {
        for (int i = 0; i < 10; ++i) get(channel).value();
      },
      tail_of(20, 10));
}

TEST_CASE("A taker killed anywhere loses nothing") {
  for (const std::size_t words : {4u, 700u}) {
    kill_at_every_change(
        unlimited(), putting(0, 5, words),
        [](Channel& channel) {
          Delivery first = take(channel).value();
          Delivery second = take(channel).value();
          _exit(0);  // same as a kill
        },
        run_of(0, 5, 5));
  }
}

TEST_CASE("A taker killed while its records grow loses nothing") {
  kill_at_every_change(
      unlimited(), putting(0, 10, 4),
      [](Channel& channel) {
        std::vector<Delivery> deliveries;
        for (int i = 0; i < 9; ++i) deliveries.push_back(take(channel).value());
        _exit(0);  // same as a kill
      },
      run_of(0, 10, 10));
}

TEST_CASE("An ack is atomic if the taker is killed") {
  for (const std::size_t words : {4u, 700u}) {
    kill_at_every_change(
        unlimited(), putting(0, 3, words), [](Channel& channel) { take(channel).value().ack(patience()).value(); },
        tail_of(3, 2));
  }
}

TEST_CASE("A taker killed in nack loses nothing") {
  for (const std::size_t words : {4u, 700u}) {
    kill_at_every_change(
        unlimited(), putting(0, 3, words), [](Channel& channel) { take(channel).value().nack(patience()).value(); },
        run_of(0, 3, 3));
  }
}

TEST_CASE("A taker killed in a nack after a failed build loses nothing") {
  const auto fail = [](Channel& channel) {
    Delivery delivery = take(channel).value();
    delivery.message().set_not_built();
    delivery.nack(patience()).value();
  };
  kill_at_every_change(unlimited(), putting(0, 3, 700), fail, run_of(0, 3, 3));
  const auto prepare = [&fail](Channel& channel) {  // up to the last failure that is allowed
    putting(0, 3, 700)(channel);
    for (std::uint32_t i = 1; i < channel::kMaxFailedBuilds; ++i) fail(channel);
  };
  kill_at_every_change(unlimited(), prepare, fail, tail_of(3, 2));
}

TEST_CASE("A receiver killed in get loses at most one nacked message") {
  for (const std::size_t words : {4u, 700u}) {
    kill_at_every_change(
        unlimited(),
        [words](Channel& channel) {
          putting(0, 3, words)(channel);
          take(channel).value().nack(patience()).value();
        },
        [](Channel& channel) { get(channel).value(); }, tail_of(3, 2));
  }
}

TEST_CASE("A taker killed while it takes a nacked message loses nothing") {
  kill_at_every_change(
      unlimited(),
      [](Channel& channel) {
        putting(0, 3, 700)(channel);
        take(channel).value().nack(patience()).value();
      },
      [](Channel& channel) {
        Delivery delivery = take(channel).value();
        _exit(0);  // same as a kill
      },
      run_of(0, 3, 3));
}

TEST_CASE("A process killed while it creates a channel leaks no memory") {
  for (std::int64_t n = 1;; ++n) {
    auto arena = new_arena();
    const bool killed = killed_at_change(n, [&] { new_channel(arena); });
    INFO("killed before change " << n);
    arena->participants().check(0);
    REQUIRE(arena->reconcile(patience()).ok());
    REQUIRE(used_bytes(*arena) == 0);
    REQUIRE(check_arena(*arena) == "");
    if (!killed) break;
  }
}

TEST_CASE("Receivers see the stream end after a kill in an end transfer") {
  for (std::int64_t n = 1;; ++n) {
    auto channel = Channel::create(new_arena(), {}).value();
    channel->membership().join(End::kReceiving).value();
    const bool killed = killed_at_change(n, [&] {
      channel->membership().join(End::kSending).value();
      const std::uint64_t number = channel->membership().begin_transfer(End::kSending).value();
      channel->membership().end_transfer(number, End::kSending);
      channel->membership().leave(End::kSending);
    });
    INFO("killed before change " << n);
    // The receiver of a transfer may still end it. Here this process does.
    for (auto& transfer : channel->arena()->header().transfers) {
      channel->membership().end_transfer(transfer.state.load(), End::kSending);
    }
    const auto after = code_of(get(*channel, patience(n < 4 ? 30 : n < 6 ? 2'000 : 20'000)));
    // Before its first store as a sender, the child was not attached to this end.
    REQUIRE((after == Code::kPeerDied || after == Code::kClosed || (n < 6 && after == Code::kEmpty)));
    if (!killed) break;
  }
}

TEST_CASE("A kill while opening or leaving a channel leaks nothing") {
  auto arena = new_arena();
  Gate made, done;
  Child maker([&] {
    auto channel = new_channel(arena, unlimited());
    made.open(memory::pack(channel->block()));
    done.wait();
    return get(*channel).value() == 1 && get(*channel, no_wait()).ok() == false;
  });
  const memory::BlockRef block = memory::unpack(made.wait());
  const std::uint64_t used = used_bytes(*arena);
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    REQUIRE(n < 1'000);
    killed = killed_at_change(n, [&] {
      auto channel = Channel::open(arena, block, patience()).value();
      channel->membership().join(End::kSending).value();
      channel->membership().leave(End::kSending);
    });
    INFO("killed before change " << n);
    arena->participants().check(0);
    REQUIRE(arena->reconcile(patience()).ok());
    REQUIRE(check_arena(*arena) == "");
    REQUIRE(used_bytes(*arena) == used);
    REQUIRE(arena->inspector().stats().participants == 2);
  }
  REQUIRE(n > 5);
  put(*Channel::open(arena, block, patience()).value(), 1).value();
  done.open();
  REQUIRE(maker.succeeded());
}

TEST_CASE("A kill around a fork in parent or child leaks nothing") {
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    REQUIRE(n < 1'000);
    auto arena = new_arena();
    auto channel = new_channel(arena, unlimited());
    putting(0, 3, 700)(*channel);
    int all_gone[2];
    REQUIRE(pipe(all_gone) == 0);
    killed = killed_at_change(n, [&] {
      Incoming message = get_message(*channel, patience()).value();
      const Lease lease = message.adopt().value();
      const pid_t child = fork();
      if (child == 0) {
        get_message(*channel, patience()).value();
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFSIGNALED(status)) kill(getpid(), SIGKILL);
    });
    close(all_gone[1]);
    char nothing = 0;
    REQUIRE(read(all_gone[0], &nothing, 1) == 0);  // the child of a killed process has exited too
    close(all_gone[0]);
    INFO("killed before change " << n);
    survive_with(*channel, tail_of(3, 1));
    channel.reset();
    do {  // an exiting process closes its end of the pipe first, and releases its lock a moment later
      arena->participants().check(0);
      REQUIRE(arena->reconcile(patience()).ok());
    } while (arena->inspector().stats().participants > 1 && usleep(1'000) == 0);
    REQUIRE(used_bytes(*arena) == 0);
  }
  REQUIRE(n > 20);
}

TEST_CASE("A reconcile killed anywhere is finished by the next") {
  const std::int64_t step = under_valgrind() || kThreadSanitizer ? 41 : 3;
  for (std::int64_t n = 1;; n += step) {
    auto arena = new_arena();
    auto channel = new_channel(arena, unlimited());
    putting(0, 12, 4)(*channel);
    putting(12, 4, 700)(*channel);
    Child victim([&] {
      Delivery first = take(*channel).value();
      Delivery second = take(*channel).value();
      kill(getpid(), SIGKILL);
      return true;
    });
    REQUIRE(victim.was_killed());
    const bool killed = killed_at_change(n, [&] {
      arena->participants().check(0);
      arena->reconcile(patience()).value();
    });
    INFO("killed before change " << n);
    survive_with(*channel, run_of(0, 16, 16));
    if (!killed) break;
  }
}

#endif

// guarantee: kill-anywhere
TEST_CASE("Random kills lose no message of survivors and no memory") {
  const std::uint64_t seed = 20260101;
  INFO("seed " << seed);
  std::uint64_t random = seed;
  const auto next = [&random] { return (random = random * 6364136223846793005u + 1442695040888963407u) >> 33; };
  auto arena = new_arena(64 * kMiB);
  auto channel = new_channel(arena, with_capacity(32));
  put(*channel, 0).value();
  get(*channel).value();
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  auto results = new_channel(arena, with_capacity(0));
  // One sender and one receiver survive. Each message of the sender arrives once, even if a process that took it dies.
  Gate stop;
  Child sender([&] {
    std::uint64_t count = 0;
    while (count % 64 != 0 || !stop.is_open()) {
      ++count;
      if (!put(*channel, count, count % 4 == 0 ? 200 : 5, patience(60'000)).ok()) return false;
    }
    return put(*results, count).ok();
  });
  Child receiver([&] {
    std::vector<bool> seen;
    std::uint64_t count = 0, total = kTorn;
    std::map<std::uint64_t, std::uint64_t> last;
    while (count != total) {
      if (total == kTorn) {
        auto said = get(*results, no_wait());
        if (said) total = *said;
        if (count == total) break;
      }
      auto message = get_message(*channel, patience(total == kTorn ? 50 : 60'000));
      if (!message && message.code() == Code::kEmpty && total == kTorn) continue;
      if (!message) return false;
      const std::uint64_t number = number_in(message->frame());
      if (number == kTorn) return false;
      // Returned messages are redelivered. The others keep their sender's order.
      if (!message->redelivered() && last[number >> 32] >= number) return false;
      last[number >> 32] = std::max(last[number >> 32], number);
      if (number >> 32 != 0) continue;
      if (seen.size() <= number) seen.resize(number * 2);
      if (seen[number]) return false;
      seen[number] = true;
      ++count;
    }
    return true;
  });
  const auto victim = [&](std::uint64_t victim_number) {
    for (std::uint64_t i = 1;; ++i) {
      if (victim_number % 2 == 0) {
        put(*channel, victim_number << 32 | i, i % 3 == 0 ? 300 : 9).ok();
      } else {
        auto delivery = take(*channel);
        if (delivery) delivery->nack(patience()).ok();  // a death before the nack has the same effect
      }
    }
    return true;
  };
  const std::uint64_t victims = under_valgrind() ? 10 : kThreadSanitizer || kAddressSanitizer ? 100 : 300;
  for (std::uint64_t victim_number = 1; victim_number <= victims; ++victim_number) {
    Child killed([&] { return victim(victim_number); });
    const timespec moment{0, static_cast<long>(next() % 5'000'000)};  // not a synchronisation: any instant will do
    nanosleep(&moment, nullptr);
    killed.kill_and_wait();
  }
  stop.open();
  REQUIRE(sender.succeeded());
  REQUIRE(receiver.succeeded());
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(check_arena(*arena) == "");
  drain(*channel);
  REQUIRE(channel->size() == 0);
  channel.reset();
  results.reset();
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(check_arena(*arena) == "");
  REQUIRE(used_bytes(*arena) == 0);
}
