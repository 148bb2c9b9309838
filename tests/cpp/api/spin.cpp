// The spin of ends: where it is set, and that waits which spin end as others do.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <stop_token>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

std::pair<Sender, Receiver> spinning_pair() {
  auto pair = make_pair({.capacity = 1});
  pair.first.set_spin(1h).value();
  pair.second.set_spin(1h).value();
  return pair;
}

}  // namespace

TEST_CASE("ends begin with the spin of their arena") {
  const Arena arena = Arena::create({.max_bytes = 16 << 20, .spin = 3ms}).value();
  const auto [sender, receiver] = make_pair({.arena = arena});
  const Broadcast broadcast = make_broadcast({.arena = arena});
  CHECK(sender.spin() == 3ms);
  CHECK(receiver.spin() == 3ms);
  CHECK(make_queue({.arena = arena}).spin() == 3ms);
  CHECK(broadcast.spin() == 3ms);
  CHECK(broadcast.subscribe().value().spin() == 3ms);
  CHECK(make_latest({.arena = arena}).spin() == 3ms);
}

TEST_CASE("SHMTREE_SPIN sets the default spin, or is refused") {
  setenv("SHMTREE_SPIN", "0.002", 1);
  const auto made = Arena::create({.max_bytes = 16 << 20});
  const auto [sender, receiver] = make_pair({.arena = made.value()});
  setenv("SHMTREE_SPIN", "often", 1);
  const auto failed = Arena::create({.max_bytes = 16 << 20});
  unsetenv("SHMTREE_SPIN");
  CHECK(sender.spin() == 2ms);
  CHECK(failed.code() == Code::kInvalid);
}

TEST_CASE("set_spin applies to copies and refuses negative times") {
  auto [sender, receiver] = make_pair();
  const Receiver copy = receiver;
  receiver.set_spin(1ms).value();
  CHECK(copy.spin() == 1ms);
  CHECK(sender.spin() == 0ms);
  CHECK(receiver.set_spin(-1ns).code() == Code::kInvalid);
  CHECK(Arena::create({.max_bytes = 16 << 20, .spin = -1ns}).code() == Code::kInvalid);
  Latest latest = make_latest();
  const Latest moved = std::move(latest);
  CHECK(latest.set_spin(1ms).code() == Code::kClosed);
}

TEST_CASE("spinning ends of two processes pass messages on") {
  auto [sender, receiver] = spinning_pair();
  const pid_t child = fork();
  if (child == 0) {
    receiver.close();
    for (int i = 0; i < 2000; ++i) sender.put(i).value();
    sender.close();
    _exit(0);
  }
  sender.close();
  for (int i = 0; i < 2000; ++i) REQUIRE(receiver.get().value().as<int>() == i);
  CHECK(receiver.get().code() == Code::kClosed);
  waitpid(child, nullptr, 0);
}

TEST_CASE("a spinning wait ends at its timeout") {
  const auto [sender, receiver] = spinning_pair();
  CHECK(receiver.get(1ms).code() == Code::kEmpty);
  sender.put(0).value();
  CHECK(sender.put(1, 1ms).code() == Code::kFull);
}

TEST_CASE("a stop request ends a spinning wait") {
  const auto [sender, receiver] = spinning_pair();
  std::stop_source source;
  auto code = std::async([&] { return receiver.get(std::nullopt, source.get_token()).code(); });
  source.request_stop();
  CHECK(code.get() == Code::kInterrupted);
}

TEST_CASE("a close ends a spinning wait") {
  auto [sender, receiver] = spinning_pair();
  auto code = std::async([&] { return receiver.get().code(); });
  receiver.close();
  CHECK(code.get() == Code::kClosed);
}

TEST_CASE("a spinning wait reports the death of its peer") {
  auto [sender, receiver] = spinning_pair();
  const pid_t child = fork();
  if (child == 0) {
    receiver.close();
    sender.put(7).value();
    raise(SIGKILL);
  }
  sender.close();
  CHECK(receiver.get().value().as<int>() == 7);
  CHECK(receiver.get().code() == Code::kPeerDied);
  waitpid(child, nullptr, 0);
}
