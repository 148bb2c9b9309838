// Channels that report each death, and streams that are kept open.
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

ChannelOptions keeping_open() {
  ChannelOptions options;
  options.keep_open = channel::KeepOpen::kReceivers;
  return options;
}

}  // namespace

// guarantee: each-death-once
TEST_CASE("Each sender death is reported once while others remain") {
  auto channel = receiving_channel(with_capacity(8, Ending::kEach));
  Peer first(*channel), second(*channel);
  const int pid = first.child.pid();
  first.child.kill_and_wait();
  auto told = get(*channel);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids == std::vector<int>{pid});
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  second.child.kill_and_wait();
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("An error says that more peers died than it lists") {
  auto channel = receiving_channel(with_capacity(8, Ending::kEach));
  Peer sender(*channel);
  auto& killed = header_of(*channel).ends[End::kSending].killed;
  std::vector<int> listed;
  for (int pid = 1; pid < 20; ++pid) {
    channel::add_killed(killed, pid);
    if (pid < 16) listed.push_back(pid);
  }
  const auto told = get(*channel);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids == listed);
  REQUIRE(told.error().message.ends_with(", 15 and others"));
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
}

TEST_CASE("Only pids of processes are added to the pids of an error") {
  Error error{.code = Code::kPeerDied, .message = "these died:"};
  for (const int pid : {0, 7, -1, 8}) memory::append_killed(error, pid);  // kill(0) and kill(-1) signal other processes
  CHECK(error.pids == std::vector<int>{7, 8});
  CHECK(error.message ==
        "these died: a process that was killed while it started, 7, a process that was killed while it started, 8");
}

// guarantee: each-death-once
TEST_CASE("A death is reported although messages keep arriving") {
  auto channel = new_channel(new_arena(), with_capacity(0, Ending::kEach));
  Peer sender(*channel);
  sender.child.kill_and_wait();
  bool told = false;
  while (!told) {
    put(*channel, 1).value();
    told = code_of(get(*channel)) == Code::kPeerDied;
  }
  REQUIRE(get(*channel).value() == 1);
}

// guarantee: each-death-once
TEST_CASE("put reports the death of a receiver while others remain") {
  auto channel = new_channel(new_arena(), with_capacity(2, Ending::kEach));
  ReceivingPeer receiver(*channel);
  receiver.child.kill_and_wait();
  while (code_of(put(*channel, 2)) != Code::kPeerDied) get(*channel).value();
  put(*channel, 3).value();
}

// guarantee: keep-open
TEST_CASE("A keep_open stream waits for senders after the last leaves") {
  auto channel = receiving_channel(keeping_open());
  channel->membership().join(End::kSending).value();
  put(*channel, 1).value();
  channel->membership().leave(End::kSending);
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  REQUIRE_FALSE(channel->ready());
  channel->membership().join(End::kSending).value();
  put(*channel, 2).value();
  REQUIRE(get(*channel).value() == 2);
}

// guarantee: keep-open
TEST_CASE("A keep_open stream reports no death of a sender") {
  auto channel = receiving_channel(keeping_open());
  Peer sender(*channel);
  sender.child.kill_and_wait();
  REQUIRE(code_of(get(*channel, patience(400))) == Code::kEmpty);
}

// guarantee: keep-open
TEST_CASE("Senders of a keep_open stream see that no receiver is left") {
  auto channel = new_channel(new_arena(), keeping_open());
  REQUIRE(channel->sending().check_receivers().ok());
  put(*channel, 1).value();
  channel->membership().leave(End::kReceiving);
  REQUIRE(code_of(channel->sending().check_receivers()) == Code::kClosed);
}

namespace {

ChannelOptions keeping_both_open(Ending ending = Ending::kRaise) {
  ChannelOptions options = with_capacity(1, ending);
  options.keep_open = channel::KeepOpen::kBoth;
  return options;
}

}  // namespace

// guarantee: keep-open-both
TEST_CASE("A put and an ack wait for the next receiver after an exit") {
  const Ending ending = GENERATE(Ending::kRaise, Ending::kWait, Ending::kEach);
  auto channel = new_channel(new_arena(), keeping_both_open(ending));
  put(*channel, 1).value();
  channel->membership().leave(End::kReceiving);
  REQUIRE(code_of(put(*channel, 2, 1, patience(10))) == Code::kFull);
  REQUIRE(code_of(channel->acks().wait(std::nullopt, patience(10))) == Code::kTimeout);
  REQUIRE(channel->sending().check_receivers().ok());
  std::thread successor([&] {
    channel->membership().join(End::kReceiving).value();
    get(*channel).value();
  });
  put(*channel, 2, 1, patience(60'000)).value();
  successor.join();
}

// guarantee: keep-open-both
TEST_CASE("A put and an ack wait for the next receiver after a kill") {
  const Ending ending = GENERATE(Ending::kRaise, Ending::kWait);
  auto channel = new_channel(new_arena(), keeping_both_open(ending));
  ReceivingPeer receiver(*channel);
  channel->membership().leave(End::kReceiving);
  receiver.child.kill_and_wait();
  put(*channel, 2).value();
  REQUIRE(code_of(put(*channel, 3, 1, patience(400))) == Code::kFull);
  REQUIRE(code_of(channel->acks().wait(std::nullopt, patience(10))) == Code::kTimeout);
}

TEST_CASE("Senders that wait for receivers see each death with kEach") {
  auto channel = new_channel(new_arena(), keeping_both_open(Ending::kEach));
  put(*channel, 1).value();
  channel->membership().leave(End::kReceiving);
  channel->ends().note_killed(End::kReceiving, 7);
  REQUIRE(code_of(put(*channel, 2, 1, patience(10))) == Code::kPeerDied);
  REQUIRE(code_of(put(*channel, 2, 1, patience(10))) == Code::kFull);
}

// guarantee: wait-for-peers
TEST_CASE("wait_for_receivers returns once enough are attached") {
  auto channel = new_channel(new_arena(), ChannelOptions{});
  // This process sends, so it does not count as a receiver.
  const Status none = channel->sending().wait_for_receivers(1, patience(10));
  REQUIRE(code_of(none) == Code::kTimeout);
  REQUIRE(none.error().message == "0 of 1 receivers were attached within the timeout");
  std::thread receiving([&] { get(*channel, patience(60'000)).value(); });
  channel->sending().wait_for_receivers(1, patience(60'000)).value();
  put(*channel, 1).value();
  receiving.join();
}

// guarantee: wait-for-peers
TEST_CASE("wait_for_receivers does not count a killed process") {
  auto channel = new_channel(new_arena(), ChannelOptions{});
  channel->membership().mark_used(End::kSending, channel->arena()->identity().value());
  ReceivingPeer receiver(*channel);
  channel->sending().wait_for_receivers(1, patience(0)).value();
  receiver.child.kill_and_wait();
  REQUIRE(code_of(channel->sending().wait_for_receivers(1, patience(0))) == Code::kTimeout);
}

TEST_CASE("Each death is reported once by concurrent threads") {
  auto channel = new_channel(new_arena(), with_capacity(0, Ending::kEach));
  constexpr int kNoting = 3, kEachNotes = 5, kRounds = 300;
  std::vector<std::atomic<int>> told(kNoting * kEachNotes + 1);
  std::atomic<bool> done{false};
  const auto tell = [&] {
    const Status attended = channel->ends().check_open(End::kSending);
    if (attended) return;
    for (const int pid : attended.error().pids) ++told[static_cast<std::size_t>(pid)];
  };
  std::vector<std::thread> telling;
  for (int i = 0; i < 2; ++i) {
    telling.emplace_back([&] {
      while (!done) tell();
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> noting;
    for (int i = 0; i < kNoting; ++i) {
      noting.emplace_back([&, i] {
        for (int n = 1; n <= kEachNotes; ++n) channel->ends().note_killed(End::kSending, i * kEachNotes + n);
      });
    }
    for (auto& thread : noting) thread.join();
    while (channel->ends().has_killed_members(End::kSending)) std::this_thread::yield();
  }
  done = true;
  for (auto& thread : telling) thread.join();
  for (std::size_t pid = 1; pid < told.size(); ++pid) REQUIRE(told[pid] == kRounds);
}

// guarantee: each-death-once
TEST_CASE("A thread reports no end if another reports the deaths") {
  auto channel = new_channel(new_arena(), with_capacity(0, Ending::kEach));  // this process stays attached to both ends
  constexpr int kRounds = 2'000;
  const bool sending = GENERATE(false, true);
  const End peers = sending ? End::kReceiving : End::kSending;
  std::atomic<int> told{0}, others{0};
  std::atomic<bool> done{false};
  const auto tell = [&] {
    while (!done) {
      const Status attended = channel->ends().check_open(peers);
      if (attended) {
        std::this_thread::yield();
      } else {
        ++(attended.code() == Code::kPeerDied ? told : others);
      }
    }
  };
  std::thread first(tell), second(tell);
  for (int round = 0; round < kRounds; ++round) {
    channel->ends().note_killed(peers, 1);
    while (channel->ends().has_killed_members(peers)) std::this_thread::yield();
  }
  done = true;
  first.join();
  second.join();
  CHECK(told == kRounds);
  CHECK(others == 0);
}

TEST_CASE("A call continues if another thread has reported the deaths") {
  auto channel = new_channel(new_arena(), with_capacity(0, Ending::kEach));
  channel::Ends& ends = channel->ends();
  ends.note_killed(End::kSending, 7);
  REQUIRE(ends.has_deaths_to_report(End::kSending));           // one thread finds a death,
  REQUIRE(ends.take_deaths(End::kSending)->pids.at(0) == 7);   // and another thread reports it
  REQUIRE_FALSE(ends.take_deaths(End::kSending).has_value());  // before the first one does
  REQUIRE(ends.check_open(End::kSending).ok());
}
