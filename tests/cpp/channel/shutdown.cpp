// Features of queues: counted tasks, shutdown, reservations, and a descriptor that is readable while there is space.

#include <atomic>
#include <thread>

#include "platform/clock.h"
#include "platform/wait_policy.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::shared_ptr<Channel> new_queue(std::uint64_t capacity = 0) {
  return new_channel(new_arena(), with_capacity(capacity, Ending::kNever));
}
// Returns a queue of `count` messages, with the first one rejected.
std::shared_ptr<Channel> queue_with_rejected(std::uint64_t count) {
  ChannelOptions options = with_capacity(0, Ending::kNever);
  options.max_attempts = 1;
  auto queue = new_channel(new_arena(), options);
  for (std::uint64_t i = 0; i < count; ++i) put(*queue, i).value();
  take(*queue).value().nack(patience()).value();
  return queue;
}

}  // namespace

TEST_CASE("join returns once every message is reported as done") {
  auto queue = new_queue();
  REQUIRE(queue->tasks().join(no_wait()).ok());
  for (std::uint64_t i = 0; i < 3; ++i) put(*queue, i).value();
  drain(*queue);
  REQUIRE(queue->tasks().unfinished() == 3);
  queue->tasks().done().value();
  queue->tasks().done().value();
  REQUIRE(code_of(queue->tasks().join(no_wait())) == Code::kTimeout);
  Child last([&] { return queue->tasks().done().ok(); });
  REQUIRE(queue->tasks().join(patience()).ok());
  REQUIRE(last.succeeded());
  REQUIRE(code_of(queue->tasks().done()) == Code::kInvalid);
  REQUIRE(queue->stats().unfinished == 0);
}

// guarantee: queue-counts
TEST_CASE("A dead letter counts as a done task until it is requeued") {
  auto queue = queue_with_rejected(2);
  REQUIRE(queue->tasks().unfinished() == 1);
  queue->tasks().done().value();
  REQUIRE(queue->tasks().join(no_wait()).ok());
  REQUIRE(code_of(queue->tasks().done()) == Code::kInvalid);
  {
    auto looked_at = queue->dead_letters(patience()).value();
    REQUIRE(queue->tasks().unfinished() == 0);
    looked_at.at(0).requeue(patience()).value();
  }
  REQUIRE(queue->tasks().unfinished() == 1);
  queue->tasks().done().value();
  REQUIRE(queue->stats().unfinished == 0);
}

TEST_CASE("An acked dead letter stays a done task") {
  const bool is_shut_down = GENERATE(false, true);
  auto queue = queue_with_rejected(2);
  if (is_shut_down) queue->tasks().shut_down(true, patience()).value();
  const std::uint64_t unfinished = is_shut_down ? 0 : 1;
  REQUIRE(queue->tasks().unfinished() == unfinished);
  queue->dead_letters(patience()).value().at(0).ack(patience()).value();
  REQUIRE(queue->tasks().unfinished() == unfinished);
}

TEST_CASE("Rejecting a message ends a join that waits for it") {
  ChannelOptions options = with_capacity(0, Ending::kNever);
  options.max_attempts = 1;
  auto queue = new_channel(new_arena(), options);
  put(*queue, 1).value();
  Child worker([&] {
    take(*queue).value().nack(patience()).value();
    return true;
  });
  REQUIRE(queue->tasks().join(patience(60'000)).ok());
  REQUIRE(worker.succeeded());
}

TEST_CASE("A shut down queue delivers the rest and accepts no more") {
  auto queue = new_queue(2);
  put(*queue, 1).value();
  put(*queue, 2, 200).value();
  queue->tasks().shut_down(false, patience()).value();
  REQUIRE(code_of(put(*queue, 3)) == Code::kShutDown);
  REQUIRE_FALSE(queue->sending().has_space());
  REQUIRE(queue->watchers().can_put());  // true, since a put would not block
  REQUIRE(get(*queue).value() == 1);
  {
    Delivery delivery = take(*queue).value();
    REQUIRE(number_in(delivery) == 2);
  }
  REQUIRE(get(*queue).value() == 2);  // it was redelivered
  REQUIRE(code_of(get(*queue)) == Code::kShutDown);
  REQUIRE(code_of(take(*queue)) == Code::kShutDown);
}

TEST_CASE("Immediate shutdown drops and frees queued messages as done") {
  auto queue = new_queue();
  for (std::uint64_t i = 0; i < 20; ++i) put(*queue, i, 1'000).value();
  get(*queue).value();
  Delivery returned = take(*queue).value();
  returned.nack(patience()).value();
  const std::uint64_t before = used_bytes(*queue->arena());
  queue->tasks().shut_down(true, patience()).value();
  REQUIRE(queue->size() == 0);
  REQUIRE(used_bytes(*queue->arena()) < before);
  REQUIRE(queue->stats().queued_bytes == 0);
  REQUIRE(code_of(get(*queue, no_wait())) == Code::kShutDown);
  REQUIRE(code_of(take(*queue, no_wait())) == Code::kShutDown);
  REQUIRE(queue->tasks().unfinished() == 1);  // the message that was received
  queue->tasks().done().value();
  REQUIRE(code_of(queue->tasks().done()) == Code::kInvalid);
  REQUIRE(queue->tasks().join(no_wait()).ok());
  REQUIRE(check_arena(*queue->arena()) == "");
}

TEST_CASE("A shutdown ends the waits of other processes") {
  for (const bool discard : {false, true}) {
    auto empty = new_queue(1), full = new_channel(empty->arena(), with_capacity(1, Ending::kNever));
    put(*full, 1).value();
    Child getting([&] { return code_of(get(*empty, patience(60'000))) == Code::kShutDown; });
    Child putting([&] { return code_of(put(*full, 2, 1, patience(60'000))) == Code::kShutDown; });
    Child taking([&] { return code_of(take(*empty, patience(60'000))) == Code::kShutDown; });
    empty->tasks().shut_down(discard, patience()).value();
    full->tasks().shut_down(discard, patience()).value();
    REQUIRE(getting.succeeded());
    REQUIRE(putting.succeeded());
    REQUIRE(taking.succeeded());
  }
}

TEST_CASE("Messages put before a shutdown are received exactly once") {
  constexpr std::uint64_t kMax = 100'000;
  auto queue = new_queue(16);
  std::atomic<std::uint64_t> sent{0}, received{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 1; i < kMax; ++i) {
        auto put_one = put(*queue, i);
        if (!put_one) {
          if (put_one.code() != Code::kShutDown) ++wrong;
          return;
        }
        ++sent;
      }
    });
    threads.emplace_back([&] {
      for (;;) {
        auto got = get(*queue);
        if (!got) {
          if (got.code() != Code::kShutDown) ++wrong;
          return;
        }
        ++received;
      }
    });
  }
  while (received < 200) std::this_thread::yield();
  queue->tasks().shut_down(false, patience()).value();
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
  REQUIRE(received == sent);
}

TEST_CASE("A reserved end is usable by others again after its release") {
  auto queue = new_queue(1);
  queue->tasks().reserve(End::kReceiving, no_wait()).value();
  REQUIRE(code_of(queue->tasks().reserve(End::kReceiving, no_wait())) == Code::kTimeout);
  put(*queue, 1).value();
  Child other([&] {
    return code_of(get(*queue, no_wait())) == Code::kEmpty && code_of(take(*queue, no_wait())) == Code::kEmpty &&
           queue->size() == 1;
  });
  REQUIRE(other.succeeded());
  REQUIRE(get(*queue, no_wait()).value() == 1);
  Child waiting([&] { return get(*queue, patience(60'000)).value() == 2; });
  put(*queue, 2).value();
  REQUIRE(queue->tasks().release(End::kReceiving));
  REQUIRE_FALSE(queue->tasks().release(End::kReceiving));
  REQUIRE(waiting.succeeded());

  queue->tasks().reserve(End::kSending, no_wait()).value();
  Child sender([&] { return code_of(put(*queue, 3, 1, no_wait())) == Code::kFull; });
  REQUIRE(sender.succeeded());
  put(*queue, 3).value();
  REQUIRE(queue->tasks().release(End::kSending));
}

TEST_CASE("A reservation ends with the process that made it") {
  auto queue = new_queue();
  put(*queue, 1).value();
  Gate up;
  Child holder([&] {
    queue->tasks().reserve(End::kReceiving, no_wait()).value();
    up.open();
    pause();
    return true;
  });
  up.wait();
  REQUIRE(code_of(get(*queue, no_wait())) == Code::kEmpty);
  holder.kill_and_wait();
  REQUIRE(get(*queue, patience(60'000)).value() == 1);
  queue->tasks().reserve(End::kReceiving, patience(60'000)).value();
}

TEST_CASE("The send descriptor is readable exactly while there is space") {
  auto queue = new_queue(2);
  const int fd = queue->watchers().wake_fd(End::kSending).value();
  REQUIRE(fd != queue->watchers().wake_fd(End::kReceiving).value());
  REQUIRE(readable(fd));
  put(*queue, 1).value();
  REQUIRE(readable(fd));
  put(*queue, 2).value();
  REQUIRE_FALSE(readable(fd));
  Child receiver([&] { return get(*queue).value() == 1; });
  REQUIRE(receiver.succeeded());
  REQUIRE(readable(fd));
  put(*queue, 3).value();
  REQUIRE_FALSE(readable(fd));
  queue->tasks().shut_down(false, patience()).value();
  REQUIRE(readable(fd));
}

TEST_CASE("shut_down works although the owner of a lock has died") {
  for (const bool discard : {false, true}) {
    for (const End which : {End::kSending, End::kReceiving}) {
      auto queue = new_queue();
      put(*queue, 1).value();
      const memory::Identity dead = queue->arena()->reconciler().reserve_slot().value().identity;
      ChannelHeader& header = header_of(*queue);
      (which == End::kSending ? header.senders_lock : header.receivers_lock) = memory::kHeld | dead;
      REQUIRE(queue->tasks().shut_down(discard, patience()).ok());
      REQUIRE(get(*queue, no_wait()).ok() == !discard);
      REQUIRE(code_of(get(*queue, no_wait())) == Code::kShutDown);
    }
  }
}

TEST_CASE("A descriptor ignores a message that was received already") {
  auto queue = new_queue(), answers = new_channel(queue->arena(), with_capacity(0, Ending::kNever));
  const int fd = queue->watchers().wake_fd(End::kReceiving).value();
  const std::uint64_t rounds = under_valgrind() ? 10 : 300;
  int told = 0;
  Child sender([&] {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      if (!put(*queue, i).ok() || get(*answers, patience(60'000)).value() != i) return false;
    }
    return true;
  });
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const std::int64_t began = monotonic_ns();
    REQUIRE(get(*queue, patience(60'000)).value() == i);
    // A sender without a processor announces its message late, after the receiver has stopped waiting for that.
    const bool was_outwaited = monotonic_ns() - began >= wait_policy::kAnnouncedWakeNs;
    if (!was_outwaited) told += readable(fd, 1);
    put(*answers, i).value();
  }
  REQUIRE(sender.succeeded());
  REQUIRE(told == 0);
}

#if defined(SHMTREE_CRASH_POINTS)

TEST_CASE("A queue is open or shut down after a kill and loses no task") {
  for (std::int64_t n = 1, killed = 1; killed != 0; ++n) {
    REQUIRE(n < 1'000);
    auto queue = new_queue();
    for (std::uint64_t i = 0; i < 10; ++i) put(*queue, i, i % 2 == 0 ? 200 : 1).value();
    get(*queue).value();
    queue->tasks().done().value();
    killed = killed_at_change(n, [&] { queue->tasks().shut_down(true, patience()).value(); }) ? 1 : 0;
    INFO("killed before change " << n);
    queue->arena()->participants().check(0);
    REQUIRE(queue->arena()->reconcile(patience()).ok());
    if (!header_of(*queue).shutdown.load() != 0) {
      REQUIRE(queue->size() == 9);
      REQUIRE(put(*queue, 1).ok());
      continue;
    }
    if (queue->tasks().unfinished() != 0) {  // the shutdown has only begun to refuse puts
      REQUIRE(queue->tasks().unfinished() == 9);
      REQUIRE(queue->size() == 9);
      REQUIRE(code_of(put(*queue, 1)) == Code::kShutDown);
      queue->tasks().shut_down(true, patience()).value();
    }
    REQUIRE(code_of(get(*queue, no_wait())) == Code::kShutDown);
    REQUIRE(queue->stats().queued_bytes == 0);
    REQUIRE(queue->tasks().join(no_wait()).ok());
    REQUIRE(check_arena(*queue->arena()) == "");
  }
}

TEST_CASE("A kill in reserve or release leaves the end usable") {
  std::int64_t n = 1;
  for (bool killed = true; killed; ++n) {
    REQUIRE(n < 100);
    auto queue = new_queue(1);
    put(*queue, 1).value();
    killed = killed_at_change(n, [&] {
      for (const End which : {End::kReceiving, End::kSending}) {
        queue->tasks().reserve(which, patience()).value();
        queue->tasks().release(which);
      }
    });
    INFO("killed before change " << n);
    queue->arena()->participants().check(0);
    REQUIRE(queue->arena()->reconcile(patience()).ok());
    REQUIRE(get(*queue, no_wait()).value() == 1);
    REQUIRE(put(*queue, 2, 1, no_wait()).ok());
    REQUIRE(check_arena(*queue->arena()) == "");
  }
  REQUIRE(n > 4);
}

// guarantee: queue-counts
TEST_CASE("A kill in ack or requeue of a dead letter miscounts no task") {
  enum class Doing { kAck, kRequeue };
  const Doing doing = GENERATE(Doing::kAck, Doing::kRequeue);
  for (std::int64_t n = 1, killed = 1; killed != 0; ++n) {
    REQUIRE(n < 100);
    auto queue = queue_with_rejected(1);
    killed = killed_at_change(n,
                              [&] {
                                Delivery delivery = std::move(queue->dead_letters(patience()).value().at(0));
                                const auto settle = doing == Doing::kAck ? &Delivery::ack : &Delivery::requeue;
                                (delivery.*settle)(patience()).value();
                              })
                 ? 1
                 : 0;
    queue->arena()->participants().check(0);
    REQUIRE(queue->arena()->reconcile(patience()).ok());
    const std::uint64_t unfinished = queue->tasks().unfinished();
    const bool may_be_unfinished = doing == Doing::kRequeue ? queue->stats().dead_letters == 0 : killed != 0;
    REQUIRE(unfinished <= (may_be_unfinished ? 1 : 0));
    for (std::uint64_t i = 0; i < unfinished; ++i) queue->tasks().done().value();
    REQUIRE(queue->tasks().join(no_wait()).ok());
    REQUIRE(check_arena(*queue->arena()) == "");
  }
}

TEST_CASE("done() is atomic if its process is killed") {
  for (std::int64_t n = 1, killed = 1; killed != 0; ++n) {
    REQUIRE(n < 100);
    auto queue = new_queue();
    put(*queue, 1).value();
    put(*queue, 2).value();
    killed = killed_at_change(n, [&] { queue->tasks().done().value(); }) ? 1 : 0;
    const std::uint64_t unfinished = queue->tasks().unfinished();
    REQUIRE((unfinished == 1 || unfinished == 2));
    for (std::uint64_t i = 0; i < unfinished; ++i) queue->tasks().done().value();
    REQUIRE(queue->tasks().join(no_wait()).ok());
  }
}

#endif
