// Ends that were moved from, and handles of the wrong kind.
#include <chrono>
#include <string>
#include <utility>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using shmtree::Code;

// guarantee: moved-from
TEST_CASE("a moved-from arena is empty and refuses new objects") {
  shmtree::Arena first = shmtree::Arena::create({.max_bytes = 4 << 20}).value();
  const shmtree::Arena second = std::move(first);
  CHECK(first.usage().max_bytes == 0);  // NOLINT(bugprone-use-after-move)
  CHECK(first.usage().used_bytes == 0);
  CHECK(first.trim() == 0);
  CHECK(first.new_array(shmtree::DType::kInt8, {4}, 0s).code() == Code::kInvalid);
  CHECK(first.new_array(shmtree::DType::kInt8, {4}, 0s, std::stop_token()).code() == Code::kInvalid);
  CHECK_THROWS_AS(shmtree::make_pair({.arena = first}), shmtree::BadResult);
  const shmtree::Arena copy = first;
  CHECK(copy.trim() == 0);
  first = second;
  CHECK(first.usage().max_bytes == 4 << 20);
  CHECK(first.new_array(shmtree::DType::kInt8, {4}, 0s).ok());
}

TEST_CASE("a moved-from TakenItem is empty and cannot be acked") {
  auto [sender, receiver] = shmtree::make_pair();
  sender.put(1, 0s).value();
  shmtree::TakenItem first = receiver.take(0s).value();
  shmtree::TakenItem second = std::move(first);
  CHECK(first.item().is_none());  // NOLINT(bugprone-use-after-move)
  CHECK(first.attempts() == 0);
  CHECK(first.ack().code() == Code::kInvalid);
  CHECK(first.nack().code() == Code::kInvalid);
  CHECK(first.requeue().code() == Code::kInvalid);
  CHECK(second.ack().ok());
}

// guarantee: moved-from
TEST_CASE("a handle of the other end is refused and stays valid") {
  auto [sender, receiver] = shmtree::make_pair();
  const std::string of_sender = sender.handle().value(), of_receiver = receiver.handle().value();
  const auto refused = shmtree::Sender::open(of_receiver);
  REQUIRE(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.find("receiving") != std::string::npos);
  CHECK(shmtree::Receiver::open(of_sender).code() == Code::kInvalid);
  CHECK(sender.stats().value().receivers_in_transit == 1);
  CHECK(shmtree::Sender::open(of_sender).ok());
  CHECK(shmtree::Receiver::open(of_receiver).ok());
}

TEST_CASE("new_array refuses more than 64 dimensions") {
  auto [sender, receiver] = shmtree::make_pair();
  CHECK(sender.new_array(shmtree::DType::kInt8, std::vector<std::int64_t>(64, 1)).ok());
  auto refused = sender.new_array(shmtree::DType::kInt8, std::vector<std::int64_t>(65, 1));
  REQUIRE(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.find("65 dimensions; it must have at most 64") != std::string::npos);
}

TEST_CASE("a moved-from batch is empty and a moved-from observer throws") {
  const shmtree::ReplayBuffer buffer = shmtree::make_replay({.capacity = 100, .columns = {{"x"}}});
  buffer.add(shmtree::Dict{{"x", 1}}, 0s).value();
  shmtree::ReplayBatch first = buffer.sample(1, 0s).value();
  const shmtree::ReplayBatch second = std::move(first);
  CHECK((first.size() == 0 && first.length() == 0));  // NOLINT(bugprone-use-after-move)
  CHECK((first.index().empty() && first.weight().empty() && first.probability().empty() && first.priority().empty()));
  CHECK((first.age().empty() && first.version().empty() && first.writer().empty() && first.step().empty()));
  CHECK((first.discount().empty() && first.mask().empty() && first.paths().empty()));
  CHECK(first.try_view("x").code() == Code::kClosed);
  CHECK(first.array_ref("x").code() == Code::kClosed);
  CHECK(second.size() == 1);

  const auto is_closed = [](const auto& call) {
    try {
      call();
    } catch (const shmtree::BadResult& error) {
      return error.error().code == Code::kClosed;
    }
    return false;
  };
  shmtree::Observer observer;
  shmtree::Observer other = std::move(observer);
  CHECK(is_closed([&] { observer.look(); }));  // NOLINT(bugprone-use-after-move)
  observer = std::move(other);
  observer.look();
}

TEST_CASE("options that are out of range are invalid") {
  const auto is_invalid = [](const auto& call) {
    try {
      call();
    } catch (const shmtree::BadResult& error) {
      return error.error().code == Code::kInvalid;
    }
    return false;
  };
  CHECK(is_invalid([] { shmtree::make_pair({.capacity = (std::uint64_t{1} << 63) + 1}); }));
  CHECK(is_invalid([] { shmtree::make_pair({.capacity = ~std::uint64_t{0}}); }));
  CHECK(is_invalid([] { shmtree::make_queue({.capacity = ~std::uint64_t{0}}); }));
  shmtree::make_pair({.capacity = std::uint64_t{1} << 63});
  CHECK(is_invalid([] { shmtree::make_pair({.on_peer_death = static_cast<shmtree::OnPeerDeath>(7)}); }));
  CHECK(is_invalid([] { shmtree::make_queue({.on_peer_death = shmtree::OnPeerDeath::kEach}); }));
  CHECK(is_invalid([] { shmtree::make_broadcast({.on_peer_death = shmtree::OnPeerDeath::kEach}); }));
  CHECK(is_invalid([] { shmtree::make_broadcast({.capacity = 0}); }));
  CHECK(is_invalid([] { shmtree::make_pair({.on_full = static_cast<shmtree::OnFull>(7)}); }));
  CHECK(is_invalid([] { shmtree::make_broadcast({.on_peer_death = static_cast<shmtree::OnPeerDeath>(7)}); }));
  const shmtree::Broadcast broadcast = shmtree::make_broadcast();
  CHECK(broadcast.subscribe({.on_lag = static_cast<shmtree::OnLag>(9)}).code() == Code::kInvalid);
  CHECK(broadcast.subscribe({.start = static_cast<shmtree::StartAt>(9)}).code() == Code::kInvalid);
  CHECK(is_invalid([] {
    const auto kind = static_cast<shmtree::ReplayKind>(99);
    shmtree::make_replay({.capacity = 10, .columns = {{"x"}}, .sampling = {.samplers = {{.kind = kind}}}});
  }));
}

TEST_CASE("update_priorities returns false for -1") {
  const shmtree::ReplayBuffer buffer = shmtree::make_replay(
      {.capacity = 100, .columns = {{"x"}}, .sampling = {.samplers = {{.kind = shmtree::ReplayKind::kPrioritized}}}});
  const std::int64_t row = buffer.add(shmtree::Dict{{"x", 1}}, 0s).value();
  const std::int64_t indices[] = {-1, row, -1};
  const double priorities[] = {2, 3, 4};
  CHECK(buffer.update_priorities(indices, priorities).value() == std::vector<bool>{false, true, false});
  CHECK(buffer.max_priority() == 3);
  const std::int64_t none[] = {-2};
  CHECK(buffer.update_priorities(none, std::span(priorities, 1)).code() == Code::kInvalid);
}

TEST_CASE("make_latest refuses a history above the maximum") {
  CHECK_THROWS_WITH(shmtree::make_latest({.history = 65'537}), "history is 65537 versions; it must be at most 65536");
}

TEST_CASE("readers refuse handles that are malformed or of another kind") {
  for (const char* text : {"", "0", "no handle"}) {
    CHECK(shmtree::Receiver::open(text).code() == Code::kInvalid);
    CHECK(shmtree::Subscriber::open(text).code() == Code::kInvalid);
  }
  const shmtree::Broadcast broadcast = shmtree::make_broadcast();
  CHECK(shmtree::Subscriber::open(broadcast.handle().value()).code() == Code::kIncompatible);
}
