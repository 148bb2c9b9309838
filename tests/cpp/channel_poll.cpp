// Descriptors for poll loops. A death makes them readable, although no process checks for deaths.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <thread>

#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("A poll loop is woken by the death of the last sender") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  REQUIRE_FALSE(readable(fd));
  sender.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

TEST_CASE("A poll loop is not woken by the death of one of two senders, and by that of the last") {
  auto channel = receiving_channel();
  Peer first(*channel), second(*channel);
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  first.child.kill_and_wait();
  REQUIRE_FALSE(readable(fd));  // there is nothing to report
  REQUIRE(code_of(get(*channel, patience(400))) == Code::kEmpty);
  REQUIRE_FALSE(readable(fd));
  second.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
}

TEST_CASE("A poll loop is not woken by deaths that are not told") {
  ChannelOptions kept_open = with_capacity(8);
  kept_open.keep_open = true;
  for (const ChannelOptions& options : {kept_open, with_capacity(8, Ending::kWait)}) {
    auto channel = receiving_channel(options);
    Peer sender(*channel);
    const int fd = channel->watchers().poll_fd(End::kReceiving).value();
    sender.child.kill_and_wait();
    REQUIRE(code_of(get(*channel, patience(400))) == Code::kEmpty);
    REQUIRE_FALSE(readable(fd));
  }
}

TEST_CASE("A sender that died before the descriptor was asked for makes it readable") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  sender.child.kill_and_wait();
  usleep(10'000);  // in this time no process has checked for deaths
  REQUIRE(readable(channel->watchers().poll_fd(End::kReceiving).value()));
}

TEST_CASE("A poll loop is not woken by the death of who has nothing to do with its channel") {
  auto arena = new_arena();
  auto channel = new_channel(arena), other = new_channel(arena);
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  Gate up;
  Child stranger([&] {
    channel->membership().leave(End::kSending);
    channel->membership().leave(End::kReceiving);
    up.open();
    pause();
    return true;
  });
  up.wait();
  stranger.kill_and_wait();
  arena->reconcile(patience()).value();
  REQUIRE_FALSE(readable(fd));
}

TEST_CASE("A poll loop watches who came since, once it has received something") {
  auto channel = receiving_channel();
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  Peer sender(*channel);
  REQUIRE_FALSE(readable(fd));
  sender.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
  REQUIRE(channel->watchers().poll_fd(End::kReceiving).value() == fd);
}

TEST_CASE("A poll loop's descriptor is readable for messages, and a forked child has its own") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  REQUIRE_FALSE(readable(fd));
  Gate up;
  Child child([&] {
    const int mine = channel->watchers().poll_fd(End::kReceiving).value();
    up.open();
    return readable(mine, 60'000) && get(*channel).value() == 1;
  });
  up.wait();
  put(*channel, 1).value();
  REQUIRE(readable(fd));
  REQUIRE(child.succeeded());
}

TEST_CASE("A poll loop's descriptor is gone with the end") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  channel->membership().leave(End::kReceiving);
  REQUIRE(fcntl(fd, F_GETFD) == -1);
}

TEST_CASE("Polling waits for a message, or for the end, and takes neither") {
  auto channel = new_channel(new_arena());
  REQUIRE(code_of(channel->receiving().poll(no_wait())) == Code::kEmpty);
  REQUIRE(code_of(channel->receiving().poll(patience(10))) == Code::kEmpty);
  put(*channel, 1).value();
  REQUIRE(channel->receiving().poll(patience()).ok());
  REQUIRE(get(*channel).value() == 1);
  channel->membership().leave(End::kSending);
  REQUIRE(channel->receiving().poll(patience()).ok());
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("Polling that finds the senders killed leaves it to be reported") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  sender.child.kill_and_wait();
  REQUIRE(channel->receiving().poll(patience()).ok());
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

TEST_CASE("Of two that wait for one message, the one that only polls leaves it to the other") {
  auto channel = new_channel(new_arena());
  for (std::uint64_t i = 0; i < 50; ++i) {
    std::thread polls([&] { channel->receiving().poll(patience()).value(); });
    std::thread gets([&] { get(*channel).value(); });
    put(*channel, i).value();
    gets.join();
    put(*channel, i).value();
    polls.join();
    get(*channel).value();
  }
}
