// Waits for acks and for memory, and calls after a stop request. ends_and_promises.cpp has the waits of every end.
#include <chrono>
#include <stop_token>
#include <string>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;

namespace {

template <class T>
Code code_of(const Result<T>& result) {
  return result ? Code::kOs : result.code();
}

// Returns a channel with a capacity of 1, after this process has used both ends. A wait for an unused end would end at
// once.
std::pair<Sender, Receiver> used_pair() {
  auto pair = make_pair({.capacity = 1});
  pair.first.put(0, 0s).value();
  pair.second.get(0s).value();
  return pair;
}

}  // namespace

// guarantee: close-ends-waits
TEST_CASE("a call does nothing if a stop was requested before") {
  auto [sender, receiver] = used_pair();
  sender.put(1, 0s).value();
  std::stop_source source;
  source.request_stop();
  const std::stop_token stop = source.get_token();
  CHECK(sender.put(2, 0s, stop).code() == Code::kInterrupted);
  CHECK(sender.put_many(std::vector<Value>{2}, 0s, stop).code() == Code::kInterrupted);
  CHECK(sender.put_bytes(std::as_bytes(std::span("x")), 0s, stop).code() == Code::kInterrupted);
  CHECK(sender.new_array(DType::kFloat64, {3}, 0s, stop).code() == Code::kInterrupted);
  CHECK(sender.wait_for_all_ack(0s, stop).code() == Code::kInterrupted);
  CHECK(sender.flush(0s, stop).code() == Code::kInterrupted);
  CHECK(receiver.get(0s, stop).code() == Code::kInterrupted);
  CHECK(receiver.get_many(2, 0s, stop).code() == Code::kInterrupted);
  CHECK(receiver.take(0s, stop).code() == Code::kInterrupted);
  CHECK(wait(std::span(&receiver, 1), 0s, stop).code() == Code::kInterrupted);
  CHECK(receiver.get(0s).value().as<int>() == 1);
  CHECK(receiver.get(0s).code() == Code::kEmpty);
  const Arena arena = Arena::create({.max_bytes = 16 << 20}).value();
  CHECK(arena.new_array(DType::kFloat64, {3}, 0s, stop).code() == Code::kInterrupted);
  const Queue queue = make_queue({.arena = arena});
  CHECK(queue.put(1, 0s, stop).code() == Code::kInterrupted);
  CHECK(queue.join(0s, stop).code() == Code::kInterrupted);
  CHECK(queue.size() == 0);
  const Latest latest = make_latest({.arena = arena});
  CHECK(latest.publish(1, 0s, stop).code() == Code::kInterrupted);
  CHECK(latest.get(0, 0s, stop).code() == Code::kInterrupted);
  const Broadcast broadcast = make_broadcast({.arena = arena});
  const Subscriber subscriber = broadcast.subscribe().value();
  CHECK(broadcast.put(1, 0s, stop).code() == Code::kInterrupted);
  broadcast.put(1, 0s).value();
  CHECK(subscriber.get(0s, stop).code() == Code::kInterrupted);
  CHECK(subscriber.get(0s).value().as<int>() == 1);
}

// guarantee: close-ends-waits
TEST_CASE("wait_for_ack of a closed sender ends with the last open end") {
  auto [sender, receiver] = used_pair();
  sender.put(1).value();
  sender.close();
  Status stopped = success(), closed = success();
  Caller first([&, to = sender](const std::stop_token& stop) { stopped = to.wait_for_all_ack({}, stop); });
  Caller second([&, to = sender](const std::stop_token&) { closed = to.wait_for_ack(1); });
  first.stop();
  first.join();
  CHECK(stopped.code() == Code::kInterrupted);
  receiver.close();
  second.join();
  CHECK(closed.code() == Code::kClosed);
}

TEST_CASE("wait_for_all_ack after close waits while a receiver is open") {
  auto [sender, receiver] = used_pair();
  sender.put(1).value();
  sender.close();
  Status acked = Error{};
  Caller waiting([&, to = sender](const std::stop_token&) { acked = to.wait_for_all_ack(); });
  receiver.get().value();
  waiting.join();
  CHECK(acked.ok());
}

// guarantee: close-ends-waits
TEST_CASE("a wait for memory ends on close or stop request") {
  const Arena arena = Arena::create({.max_bytes = 4 << 20}).value();
  auto [sender, receiver] = make_pair({.capacity = 0, .arena = arena});
  sender.put(0, 0s).value();
  receiver.get(0s).value();
  while (sender.put(std::vector<double>(1 << 15), 0s)) {
  }
  const auto wanted = [] { return std::vector<std::int64_t>{3 << 17}; };
  Code stopped = Code::kOs, at_arena = Code::kOs, closed = Code::kOs;
  Caller first([&, to = sender](const std::stop_token& stop) {
    stopped = code_of(to.new_array(DType::kFloat64, wanted(), std::nullopt, stop));
  });
  Caller second([&](const std::stop_token& stop) {
    at_arena = code_of(arena.new_array(DType::kFloat64, wanted(), std::nullopt, stop));
  });
  Caller third([&, to = sender](const std::stop_token&) { closed = code_of(to.new_array(DType::kFloat64, wanted())); });
  first.stop();
  second.stop();
  first.join();
  second.join();
  sender.close();
  third.join();
  CHECK(stopped == Code::kInterrupted);
  CHECK(at_arena == Code::kInterrupted);
  CHECK(closed == Code::kClosed);
}
