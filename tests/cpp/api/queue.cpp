// Queues: both ends of a channel that never ends, and its count of unfinished tasks.
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/held_child.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;
using shmtree::test::HeldChild;

namespace {

Queue new_queue(std::uint64_t capacity = 0) {
  return make_queue({.capacity = capacity, .arena = Arena::create({.max_bytes = 16 << 20}).value()});
}

}  // namespace

TEST_CASE("a queue returns messages in order and reports its size") {
  const Queue queue = new_queue(3);
  CHECK(queue.empty());
  CHECK(queue.put("one").value() == 0);
  queue.put_many(std::vector<int>{2, 3}).value();
  CHECK((queue.size() == 3 && queue.full() && queue.capacity() == 3));
  CHECK(queue.put(4, 0s).code() == Code::kFull);
  CHECK(queue.get().value().as<std::string>() == "one");
  CHECK(queue.get_many(5).value().size() == 2);
  CHECK(queue.get(0s).code() == Code::kEmpty);
  CHECK(queue.stats().value().put == 3);
  CHECK_FALSE(new_queue().full());
}

TEST_CASE("a queue takes kWait and kRaise for the death of a peer") {
  CHECK_THROWS_WITH(make_queue({.on_peer_death = OnPeerDeath::kEach}),
                    "on_peer_death is 'each'; it must be 'wait' or 'raise'");
}

// guarantee: queue-peer-died
TEST_CASE("a child killed before it stores its pid is not in pids") {
  const Queue queue = make_queue({.on_peer_death = OnPeerDeath::kRaise});
  queue.put("from the parent").value();
  HeldChild killed([] { return 0; });
  killed.kill();
  CHECK(queue.get(30s).value().as<std::string>() == "from the parent");
  const auto told = queue.get(30s);
  REQUIRE(told.code() == Code::kPeerDied);
  CHECK(told.error().pids.empty());
  CHECK(told.error().message.ends_with("these died without closing: a process that was killed while it started"));
}

TEST_CASE("join returns once every put message is done") {
  const Queue queue = new_queue();
  queue.join(0s).value();
  queue.put_many(std::vector<int>{1, 2}).value();
  CHECK(queue.task_done().ok());
  CHECK(queue.unfinished_tasks() == 1);
  CHECK(queue.join(0s).code() == Code::kTimeout);
  Status joined = Error{};
  Caller waiting([&](const std::stop_token&) { joined = queue.join(); });
  queue.task_done().value();
  waiting.join();
  CHECK(joined.ok());
  CHECK(queue.task_done().code() == Code::kInvalid);
}

TEST_CASE("join ends by stop request or by close of the last queue") {
  Queue queue = new_queue();
  queue.put(1).value();
  Status joined = Error{};
  {
    std::stop_source stop;
    Caller waiting([&](const std::stop_token&) { joined = queue.join(std::nullopt, stop.get_token()); });
    stop.request_stop();
    waiting.join();
    CHECK(joined.code() == Code::kInterrupted);
  }
  Caller waiting([&](const std::stop_token&) { joined = queue.join(); });
  queue.close();
  waiting.join();
  CHECK(joined.code() == Code::kClosed);
  CHECK(queue.join().code() == Code::kClosed);
  CHECK(queue.task_done().code() == Code::kClosed);
  CHECK((queue.closed() && queue.unfinished_tasks() == 0 && queue.capacity() == 0));
}

// guarantee: queue-languages
TEST_CASE("join continues after close while another process is attached") {
  Queue queue = new_queue();
  queue.put(1).value();
  auto [sender, receiver] = make_pair();
  Child other([&, queue] {
    queue.get(30s).value();
    sender.put("has it").value();
    while (queue.sender().stats().value().senders > 1) std::this_thread::yield();
    return queue.task_done().ok();
  });
  receiver.get(30s).value();
  Status joined = Error{};
  Caller waiting([&](const std::stop_token&) { joined = queue.join(30s); });
  queue.close();
  waiting.join();
  CHECK(joined.ok());
  CHECK(other.succeeded());
}

TEST_CASE("a shut down queue refuses puts and ends when drained") {
  const Queue queue = new_queue();
  queue.put_many(std::vector<int>{1, 2}).value();
  queue.shutdown().value();
  CHECK(queue.put(3).code() == Code::kShutDown);
  int sum = 0;
  for (const Item& item : queue) sum += item.as<int>();
  CHECK(sum == 3);
  CHECK(queue.get().code() == Code::kShutDown);
  const Queue other = new_queue();
  other.put(1).value();
  other.shutdown(true).value();
  CHECK(other.get().code() == Code::kShutDown);
  other.join(30s).value();
}

// guarantee: end-after-unacked
TEST_CASE("a shut down queue waits for unacked messages") {
  const Queue queue = new_queue(), taken = new_queue(), go = new_queue();
  queue.put("job").value();
  Child taker([&] {
    TakenItem job = queue.receiver().take().value();
    taken.put(true).value();
    go.get(30s).value();
    return job.nack().ok();
  });
  taken.get(30s).value();
  queue.shutdown().value();
  CHECK(queue.get(0s).code() == Code::kEmpty);
  CHECK(wait(std::span(&queue.receiver(), 1), 0s).value().empty());
  go.put(true).value();
  CHECK(queue.get(30s).value().as<std::string>() == "job");
  CHECK(taker.succeeded());
  CHECK(queue.get(30s).code() == Code::kShutDown);
}

// guarantee: queue-languages
TEST_CASE("only open_queue and Queue::open open a queue") {
  const std::string name = "api-queue-" + std::to_string(getpid());
  const Queue queue = make_queue({.name = name});
  CHECK(open_receiver(name).code() == Code::kInvalid);
  CHECK(Sender::open(queue.sender().handle().value()).code() == Code::kInvalid);
  const Result<Receiver> refused = Receiver::open(queue.receiver().handle().value());
  CHECK(refused.error().message == "this is the handle of a queue: open it with Queue::open()");
  CHECK(Queue::open(queue.sender().handle().value()).ok());
  auto [sender, receiver] = make_pair();
  const std::string handle = receiver.handle().value();
  CHECK(Queue::open(handle).code() == Code::kInvalid);
  CHECK(Receiver::open(handle).ok());  // the handle is still good for a receiver
}

TEST_CASE("the ends of a queue can send structs and take messages") {
  const Queue queue = new_queue();
  queue.sender().put_struct(7).value();
  CHECK(queue.receiver().get_struct<int>().value() == 7);
  queue.put("job").value();
  {
    const TakenItem taken = queue.receiver().take().value();
    CHECK(taken.item().as<std::string>() == "job");
  }
  CHECK(queue.receiver().take().value().redelivered());
  CHECK(wait(std::span(&queue.receiver(), 1)).value().size() == 1);
}
