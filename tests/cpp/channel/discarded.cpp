// An immediate shutdown counts each message as done, exactly once, if no process can receive it any more.
#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::size_t kBlock = 400;

std::shared_ptr<Channel> queue_of(std::uint64_t count) {
  auto queue = new_channel(new_arena(), with_capacity(0, Ending::kNever));
  for (std::uint64_t i = 0; i < count; ++i) put(*queue, i, i % 2 == 0 ? kBlock : 1).value();
  return queue;
}
void shut_down(Channel& queue) {
  queue.tasks().shut_down(true, patience()).value();
}
void recover(Channel& queue) {
  queue.arena()->participants().check(0);
  REQUIRE(queue.arena()->reconcile(patience()).ok());
}
std::string leftovers(Channel& queue) {
  if (queue.stats().queued_bytes != 0) return "bytes are queued";
  if (queue.stats().returned != 0) return "something is returned";
  return channel::check(*queue.arena());
}

}  // namespace

// guarantee: immediate-shutdown
TEST_CASE("Immediate shutdown completes nacked messages and frees them") {
  auto queue = queue_of(4);
  const std::uint64_t before = used_bytes(*queue->arena());
  std::vector<Delivery> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(take(*queue).value());
  for (Delivery& delivery : taken) delivery.nack(patience()).value();
  taken.clear();
  shut_down(*queue);
  CHECK(queue->tasks().unfinished() == 0);
  CHECK(queue->tasks().join(no_wait()).ok());
  CHECK(code_of(queue->tasks().done()) == Code::kInvalid);
  CHECK(used_bytes(*queue->arena()) < before);
  CHECK(leftovers(*queue) == "");
  CHECK(queue->acks().wait({}, no_wait()).ok());
}

// guarantee: immediate-shutdown
TEST_CASE("A message returned after immediate shutdown counts as done") {
  enum class Doing { kNack, kRequeue, kDrop, kDie };
  const Doing doing = GENERATE(Doing::kNack, Doing::kRequeue, Doing::kDrop, Doing::kDie);
  auto queue = queue_of(2);
  Gate taken, go;
  Child taker([&] {
    std::vector<Delivery> deliveries;
    for (int i = 0; i < 2; ++i) deliveries.push_back(take(*queue).value());
    taken.open();
    go.wait();
    if (doing == Doing::kDie) kill(getpid(), SIGKILL);
    for (Delivery& delivery : deliveries) {
      if (doing == Doing::kNack) delivery.nack(patience()).value();
      if (doing == Doing::kRequeue) delivery.requeue(patience()).value();
    }
    deliveries.clear();
    return true;
  });
  taken.wait();
  shut_down(*queue);
  CHECK(queue->tasks().unfinished() == 2);
  CHECK(code_of(queue->tasks().join(no_wait())) == Code::kTimeout);
  go.open();
  CHECK(queue->tasks().join(patience(60'000)).ok());
  CHECK(queue->tasks().unfinished() == 0);
  taker.kill_and_wait();
  recover(*queue);
  CHECK(queue->tasks().unfinished() == 0);
  CHECK(leftovers(*queue) == "");
  CHECK(code_of(get(*queue, no_wait())) == Code::kShutDown);
}

TEST_CASE("A message acked after immediate shutdown is still a task") {
  auto queue = queue_of(3);
  Delivery first = take(*queue).value(), second = take(*queue).value();
  shut_down(*queue);
  first.ack(patience()).value();
  CHECK(queue->tasks().unfinished() == 2);
  second.nack(patience()).value();
  CHECK(queue->tasks().unfinished() == 1);
  queue->tasks().done().value();
  CHECK(queue->tasks().join(no_wait()).ok());
  CHECK(code_of(queue->tasks().done()) == Code::kInvalid);
}

TEST_CASE("An undecoded message counts as done after immediate shutdown") {
  auto queue = queue_of(2);
  auto place = std::make_unique<channel::Received>();
  queue->receiving().get(place->message, patience()).value();
  shut_down(*queue);
  CHECK(queue->tasks().unfinished() == 1);
  queue->returns().give_back(std::move(place));
  CHECK(queue->tasks().unfinished() == 0);
  CHECK(leftovers(*queue) == "");
}

TEST_CASE("Discarded messages free their record and stay counted") {
  auto queue = queue_of(2);
  Delivery one = take(*queue).value(), other = take(*queue).value();
  shut_down(*queue);
  one.nack(patience()).value();
  auto record = channel::state_of_record(record_of(*queue, 0).state.load());
  CHECK(record == RecordState::kFree);
  other.nack(patience()).value();
  memory::request_recovery(queue->arena()->header());
  recover(*queue);
  CHECK(queue->tasks().unfinished() == 0);
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: immediate-shutdown
TEST_CASE("A kill in an immediate shutdown counts all messages or none") {
  for (std::int64_t n = 1, killed = 1; killed != 0; ++n) {
    REQUIRE(n < 1'000);
    auto queue = queue_of(8);
    {
      std::vector<Delivery> back;
      for (int i = 0; i < 3; ++i) back.push_back(take(*queue).value());
    }
    killed = killed_at_change(n, [&] { shut_down(*queue); }) ? 1 : 0;
    INFO("killed before change " << n);
    const bool discarded = header_of(*queue).shutdown == 2;
    CHECK(queue->tasks().unfinished() == (discarded ? 0 : 8));  // with the store of `shutdown`, before any repair
    recover(*queue);
    CHECK(queue->tasks().unfinished() == (discarded ? 0 : 8));
    if (!discarded) shut_down(*queue);
    CHECK(queue->tasks().join(no_wait()).ok());
    CHECK(leftovers(*queue) == "");
    CHECK(queue->size() == 0);
  }
}

// guarantee: immediate-shutdown
TEST_CASE("A kill in nack after shutdown counts each message once") {
  for (std::int64_t n = 1, killed = 1; killed != 0; ++n) {
    REQUIRE(n < 1'000);
    auto queue = queue_of(3);
    Gate taken, go;
    Child other([&] {  // keeps one delivery
      Delivery delivery = take(*queue).value();
      taken.open();
      go.wait();
      return delivery.ack(patience()).ok();
    });
    taken.wait();
    Delivery mine = take(*queue).value();
    killed = killed_at_change(n,
                              [&] {
                                changes_until_crash.store(0);
                                Delivery its = take(*queue).value();
                                shut_down(*queue);
                                changes_until_crash.store(n);
                                its.nack(patience()).value();
                              })
                 ? 1
                 : 0;
    INFO("killed before change " << n);
    recover(*queue);
    CHECK(queue->tasks().unfinished() == 2);
    mine.nack(patience()).value();
    CHECK(queue->tasks().unfinished() == 1);
    go.open();
    REQUIRE(other.succeeded());
    queue->tasks().done().value();
    CHECK(queue->tasks().join(no_wait()).ok());
    CHECK(leftovers(*queue) == "");
  }
}

#endif
