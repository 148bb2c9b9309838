// Descriptors for poll loops. A death makes them readable, although no process checks for deaths.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <thread>

#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

// guarantee: fileno-at-last-death
TEST_CASE("A poll loop is woken by the death of the last sender") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  REQUIRE_FALSE(readable(fd));
  sender.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

// guarantee: fileno-at-last-death
TEST_CASE("get reports a death that the descriptor shows at once") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  sender.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
  channel->arena()->header().last_check_ns.store(platform::monotonic_ns());  // the last check was before the death
  REQUIRE(code_of(get(*channel, no_wait())) == Code::kPeerDied);
}

// guarantee: fileno-at-last-death
TEST_CASE("A poll loop wakes for the last sender death only") {
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

// guarantee: fileno-at-last-death
TEST_CASE("A poll loop is not woken by deaths that are not reported") {
  ChannelOptions kept_open = with_capacity(8);
  kept_open.keep_open = channel::KeepOpen::kReceivers;
  for (const ChannelOptions& options : {kept_open, with_capacity(8, Ending::kWait)}) {
    auto channel = receiving_channel(options);
    Peer sender(*channel);
    const int fd = channel->watchers().poll_fd(End::kReceiving).value();
    sender.child.kill_and_wait();
    REQUIRE(code_of(get(*channel, patience(400))) == Code::kEmpty);
    REQUIRE_FALSE(readable(fd));
  }
}

TEST_CASE("poll_fd is readable at once if the sender is already dead") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  sender.child.kill_and_wait();
  usleep(10'000);  // in this time no process has checked for deaths
  REQUIRE(readable(channel->watchers().poll_fd(End::kReceiving).value()));
}

// guarantee: fileno-at-last-death
TEST_CASE("A poll loop ignores the death of an unattached process") {
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

TEST_CASE("A poll loop watches senders that attached later") {
  auto channel = receiving_channel();
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  Peer sender(*channel);
  REQUIRE_FALSE(readable(fd));
  sender.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
  REQUIRE(channel->watchers().poll_fd(End::kReceiving).value() == fd);
}

TEST_CASE("poll_fd is readable for messages in a parent and its child") {
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

namespace {

bool writable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && entry.revents == POLLOUT;
}

}  // namespace

TEST_CASE("writable_fd is readable only while a message waits") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().writable_fd(End::kReceiving).value();
  for (int round = 0; round < 3; ++round) {
    REQUIRE_FALSE(readable(fd));
    REQUIRE(writable(fd));
    put(*channel, 1).value();
    put(*channel, 2).value();
    REQUIRE(readable(fd));
    REQUIRE(writable(fd));
    REQUIRE(get(*channel).value() == 1);
    REQUIRE(readable(fd));
    REQUIRE(get(*channel).value() == 2);
  }
  REQUIRE(channel->watchers().writable_fd(End::kReceiving).value() == fd);
  channel->membership().leave(End::kSending);
  REQUIRE(readable(fd));
}

// guarantee: fileno-at-last-death
TEST_CASE("The death of the last sender makes writable_fd readable") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  const int fd = channel->watchers().writable_fd(End::kReceiving).value();
  REQUIRE_FALSE(readable(fd));
  sender.child.kill_and_wait();
  REQUIRE(readable(fd, 60'000));
  REQUIRE(writable(fd));
}

TEST_CASE("writable_fd of a sender is readable when no receiver is left") {
  ChannelOptions options = with_capacity(0);
  options.is_pipe = true;
  auto channel = new_channel(new_arena(), options);
  const int fd = channel->watchers().writable_fd(End::kSending).value();
  for (std::uint64_t i = 0; i < 20; ++i) put(*channel, i).value();
  for (std::uint64_t i = 0; i < 20; ++i) get(*channel).value();
  REQUIRE_FALSE(readable(fd));
  REQUIRE(writable(fd));
  channel->membership().leave(End::kReceiving);
  REQUIRE(readable(fd));
  REQUIRE(writable(fd));
}

TEST_CASE("A forked child's writable_fd leaves that of its parent alone") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().writable_fd(End::kReceiving).value();
  Child child([&] {
    const int mine = channel->watchers().writable_fd(End::kReceiving).value();
    if (readable(mine)) return false;
    put(*channel, 1).value();
    return readable(mine, 60'000) && get(*channel).value() == 1 && !readable(mine);
  });
  REQUIRE(child.succeeded());
  REQUIRE(channel->watchers().writable_fd(End::kReceiving).value() == fd);
  REQUIRE_FALSE(readable(fd));
  put(*channel, 2).value();
  REQUIRE(readable(fd));
}

TEST_CASE("Leaving an end closes its poll descriptor") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().poll_fd(End::kReceiving).value();
  channel->membership().leave(End::kReceiving);
  REQUIRE(fcntl(fd, F_GETFD) == -1);
}

TEST_CASE("poll waits for a message or the end and consumes neither") {
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

TEST_CASE("poll leaves the death of senders to be reported by get") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  sender.child.kill_and_wait();
  REQUIRE(channel->receiving().poll(patience()).ok());
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

TEST_CASE("A concurrent poll does not take the message of a get") {
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
