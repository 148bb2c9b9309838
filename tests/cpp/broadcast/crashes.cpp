// Publishers and readers that are killed or stopped anywhere: no message is torn, duplicated or lost, and no other
// process is blocked.
#include <atomic>
#include <thread>

#include "support/broadcast_survivors.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: broadcast-kills
TEST_CASE("A put killed at any store is complete or has no effect") {
  for (const std::size_t words : {kSmallWords, kBlockWords}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      const auto arena = new_arena();
      const auto ring = new_ring({.capacity = 3}, arena);
      const std::uint64_t bytes = used_bytes(*arena);
      for (std::uint64_t i = 0; i < 5; ++i) put(*ring, i, words).value();
      const auto reader = subscribe(ring);
      put(*ring, 5, words).value();
      killed = killed_at_change(stores, [&] { put(*ring, 6, words).value(); });
      INFO("killed at change " << stores << ", " << words << " words");
      arena->participants().check(0);
      REQUIRE(put(*ring, 7, words).ok());
      REQUIRE(check_ring(*ring) == "");
      const auto numbers = all_of(*reader);
      REQUIRE((numbers == std::vector<std::uint64_t>{5, 6, 7} || numbers == std::vector<std::uint64_t>{5, 7}));
      reader->close();
      require_whole(*ring, bytes);
    }
    CHECK(stores > 10);
  }
}

// guarantee: lossy-subscriber-memory
TEST_CASE("A dropping put killed at any store leaves a valid Broadcast") {
  constexpr std::size_t kWords = kMiB / 2 / 8;
  std::int64_t stores = 1;
  for (bool killed = true; killed; ++stores) {
    const auto arena = new_arena(4 * kMiB);
    const auto ring = new_ring({.capacity = 16}, arena);
    const auto slow = subscribe(ring, Policy::kSkip, true);
    std::uint64_t number = 0;
    while (ring->oldest() == 0) put(*ring, number++, kWords).value();
    killed = killed_at_change(stores, [&] {
      for (int i = 0; i < 2; ++i) put(*ring, 1000, kWords).value();
    });
    INFO("killed at change " << stores);
    arena->participants().check(0);
    for (std::uint64_t i = 1001; i < 1021; ++i) REQUIRE(put(*ring, i, kWords).ok());
    REQUIRE(check_ring(*ring) == "");
    const auto numbers = all_of(*slow);
    REQUIRE_FALSE(numbers.empty());
    REQUIRE(numbers.back() == 1020);
    REQUIRE(std::is_sorted(numbers.begin(), numbers.end()));
    arena->reconcile(patience()).value();
    REQUIRE(check_arena(*arena) == "");
  }
  CHECK(stores > 20);
}

// guarantee: broadcast-kills
TEST_CASE("A subscriber killed at any store blocks and leaks nothing") {
  for (const std::size_t words : {kSmallWords, kBlockWords}) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      const auto arena = new_arena();
      const auto ring = new_ring({.capacity = 2, .history = 2}, arena);
      put(*ring, 1, words).value();
      put(*ring, 2, words).value();
      killed = killed_at_change(stores, [&] {
        const auto reader = subscribe(ring, Policy::kBlock, true);
        for (int i = 0; i < 2; ++i) next(*reader).value();
      });
      INFO("killed at change " << stores << ", " << words << " words");
      for (std::uint64_t i = 3; i < 10; ++i) REQUIRE(put(*ring, i, words).ok());
      arena->participants().check(0);
      arena->reconcile(patience()).value();
      REQUIRE(all_of(*subscribe(ring, Policy::kSkip, true)) == std::vector<std::uint64_t>{8, 9});
      REQUIRE(check_ring(*ring) == "");
      REQUIRE(check_arena(*arena) == "");
    }
    CHECK(stores > 10);
  }
}

// guarantee: broadcast-kills
TEST_CASE("A stopped skipping subscriber blocks no put and resumes") {
  const auto ring = new_ring({.capacity = 4});
  const Gate ready;
  Child child([&] {
    const auto reader = subscribe(ring, Policy::kSkip);
    ready.open();
    raise(SIGSTOP);
    std::uint64_t last = 0;
    while (last != 99) {
      const auto number = next(*reader, patience());
      if (!number || *number < last) return false;
      last = *number;
    }
    return reader->missed() > 0;
  });
  ready.wait();
  child.wait_until_stopped();
  for (std::uint64_t i = 0; i < 100; ++i) put(*ring, i, i % 2 == 0 ? kSmallWords : kBlockWords).value();
  child.signal(SIGCONT);
  CHECK(child.succeeded());
}

// guarantee: broadcast-stopped-put
TEST_CASE("A process stopped in a small put delays only its own ring") {
  std::int64_t stores = 1, kept_the_lock = 0;
  for (bool stopped = true; stopped; ++stores) {
    const auto arena = new_arena();
    const auto ring = new_ring({.capacity = 3}, arena), other = new_ring({.capacity = 3}, arena);
    put(*ring, 0, kSmallWords).value();
    put(*other, 0, kBlockWords).value();
    const pid_t child = fork();
    if (child == 0) {
      alarm(280);
      put(*ring, 1, kSmallWords).value();  // gives the child an identity, and makes it a publisher
      crash_signal = SIGSTOP;
      changes_until_crash.store(stores);
      put(*ring, 2, kSmallWords).value();
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, WUNTRACED) == child);
    stopped = WIFSTOPPED(status);
    INFO("stopped at change " << stores);
    CountedWaits waits;
    const auto patient = waits.until(Deadline::after_ns(20'000'000'000));
    REQUIRE(put(*other, 1, kSmallWords, patient).ok());
    REQUIRE(put(*other, 2, kBlockWords, patient).ok());
    REQUIRE(waits.blocks == 0);
    const auto late = put(*ring, 3, kSmallWords, patience(0));
    if (!late) {
      ++kept_the_lock;
      REQUIRE(late.code() == Code::kTimeout);
      REQUIRE(late.error().message.find(std::to_string(child)) != std::string::npos);
    }
    if (stopped) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
    }
    REQUIRE(put(*ring, 4, kBlockWords).ok());
    REQUIRE(check_ring(*ring) == "");
  }
  CHECK(kept_the_lock > 5);
  CHECK(kept_the_lock < stores);
}

// guarantee: broadcast-stopped-publisher
TEST_CASE("A publisher stopped at any store blocks no subscriber") {
  for (const std::size_t words : {kSmallWords, kBlockWords}) {
    std::int64_t stores = 1;
    for (bool stopped = true; stopped; ++stores) {
      const auto ring = new_ring({.capacity = 3});
      const auto reader = subscribe(ring);
      for (std::uint64_t i = 0; i < 2; ++i) put(*ring, i, words).value();
      const pid_t child = fork();
      if (child == 0) {
        alarm(280);
        crash_signal = SIGSTOP;
        changes_until_crash.store(stores);
        put(*ring, 2, words).value();
        _exit(0);
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, WUNTRACED) == child);
      stopped = WIFSTOPPED(status);
      INFO("stopped at change " << stores << ", " << words << " words");
      auto numbers = all_of(*reader);
      if (stopped) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
      }
      REQUIRE(numbers.size() >= 2);
      REQUIRE((numbers[0] == 0 && numbers[1] == 1));
      for (std::uint64_t number : all_of(*reader)) numbers.push_back(number);
      REQUIRE(put(*ring, 3, words).ok());
      REQUIRE(check_ring(*ring) == "");
    }
    CHECK(stores > 10);
  }
}

#endif

// guarantee: broadcast-order
TEST_CASE("Subscribers see whole messages in order during fast puts") {
  const std::uint64_t rounds = kThreadSanitizer || under_valgrind() ? 300 : 10'000;
  const auto arena = new_arena();
  const auto ring = new_ring({.capacity = 4}, arena);
  const std::uint64_t bytes = used_bytes(*arena);
  const auto put_many = [&](std::uint64_t publisher) {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      if (!put(*ring, publisher << 32 | i, i % 3 == 0 ? kBlockWords : kSmallWords)) return false;
    }
    return true;
  };
  // The numbers of each publisher only increase. A blocking reader gets all of them.
  const auto read_all = [&](Subscriber& reader, bool blocks) {
    std::uint64_t last[3] = {0, 0, 0}, count = 0;
    broadcast::Incoming message;
    while (last[1] != rounds || last[2] != rounds) {
      auto got = reader.get(message, patience(blocks ? 20'000 : 500));
      if (!got && got.code() == Code::kOverrun) continue;
      if (!got) return !blocks && got.code() == Code::kEmpty;
      const auto number = number_in(message);
      if (!number) return false;
      const std::uint64_t publisher = *number >> 32, i = *number & 0xffffffff;
      if (publisher > 2 || i <= last[publisher] || (blocks && i != last[publisher] + 1)) return false;
      last[publisher] = i;
      ++count;
    }
    return !blocks || count == 2 * rounds;
  };
  std::atomic<int> wrong{0};
  put(*ring, 1).value();  // keeps a publisher attached, so that the stream does not end before the child begins
  {
    std::vector<std::unique_ptr<Subscriber>> readers;
    for (const Policy policy : {Policy::kBlock, Policy::kBlock, Policy::kSkip, Policy::kLatest, Policy::kRaise}) {
      readers.push_back(subscribe(ring, policy));
    }
    auto theirs = subscribe(ring);
    Child reading([&] { return read_all(*theirs, true); });
    Child putting([&] { return put_many(2); });
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < readers.size(); ++i) {
      threads.emplace_back([&, i] { wrong += !read_all(*readers[i], i < 2); });
    }
    wrong += !put_many(1);
    wrong += !putting.succeeded();
    wrong += !reading.succeeded();
  }
  CHECK(wrong == 0);
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  subscribe(ring)->close();  // detects that the child is dead
  put(*ring, 1, kBlockWords).value();
  CHECK(check_ring(*ring) == "");
  CHECK(check_arena(*arena) == "");
  CHECK(used_bytes(*arena) == bytes);
}

// guarantee: broadcast-order
TEST_CASE("Lagging subscribers of a tiny ring see no torn message") {
  const std::uint64_t rounds = kThreadSanitizer || under_valgrind() ? 1'000 : 300'000;
  const auto ring = new_ring({.capacity = 1});
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> readers;
    for (const Policy policy : {Policy::kSkip, Policy::kSkip, Policy::kLatest}) {
      readers.emplace_back([&, policy] {
        const auto reader = subscribe(ring, policy);
        broadcast::Incoming message;
        while (!done) {
          const auto got = reader->get(message, no_wait());
          wrong += got.ok() && !number_in(message);
        }
      });
    }
    for (std::uint64_t i = 0; i < rounds; ++i) wrong += !put(*ring, i);
    done = true;
  }
  CHECK(wrong == 0);
  CHECK(check_ring(*ring) == "");
}
