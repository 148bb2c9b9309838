// Processes that are attached to an end, and how other processes detect that one of them detached.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("get waits on a channel that has had no sender") {
  auto channel = receiving_channel();
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
}

TEST_CASE("The stream closes once drained after the last sender left") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  channel->membership().join(End::kSending).value();
  channel->membership().leave(End::kSending);
  REQUIRE_FALSE(channel->ends().is_over(End::kSending));
  channel->membership().leave(End::kSending);
  REQUIRE(channel->ends().is_over(End::kSending));
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  REQUIRE(code_of(take(*channel)) == Code::kClosed);
}

// guarantee: unused-end-warning
TEST_CASE("Ends count attached processes and list unused ones") {
  using Pids = std::vector<int>;
  auto channel = new_channel(new_arena());
  channel::Ends& ends = channel->ends();
  for (const End end : channel::kEnds) {
    REQUIRE(ends.attached(end) == 1);
    REQUIRE(ends.unused_pids(end) == Pids{getpid()});
    REQUIRE(ends.is_forgotten(end));
  }
  REQUIRE(code_of(get(*channel, patience(1))) == Code::kEmpty);
  REQUIRE(ends.member_count(End::kSending) == 1);
  REQUIRE(ends.attached(End::kSending) == 0);
  REQUIRE(ends.unused_pids(End::kSending).empty());
  for (const End end : channel::kEnds) REQUIRE_FALSE(ends.is_forgotten(end));
  put(*channel, 1).value();
  for (const End end : channel::kEnds) {
    REQUIRE(ends.attached(end) == 1);
    REQUIRE(ends.unused_pids(end).empty());
    REQUIRE_FALSE(ends.is_forgotten(end));
  }
}

TEST_CASE("A full channel without receivers reports closed to senders") {
  auto channel = new_channel(new_arena(), with_capacity(2));
  channel->membership().leave(End::kReceiving);
  put(*channel, 1).value();
  put(*channel, 2).value();
  REQUIRE(code_of(put(*channel, 3)) == Code::kClosed);
  REQUIRE(code_of(channel->sending().wait_for_space(8, patience())) == Code::kClosed);
  REQUIRE(code_of(channel->acks().wait({}, patience())) == Code::kClosed);
}

TEST_CASE("A new sender reopens a closed channel") {
  auto channel = new_channel(new_arena());
  channel->membership().leave(End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  channel->membership().join(End::kSending).value();
  put(*channel, 4).value();
  REQUIRE(get(*channel).value() == 4);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
}

// guarantee: end-of-all-threads
TEST_CASE("Joining an end while a thread leaves it keeps membership") {
  constexpr int kRounds = 20'000;
  auto channel = new_channel(new_arena());
  std::atomic<int> round{0}, left{0};
  std::thread leaver([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round != i) std::this_thread::yield();
      channel->membership().leave(End::kReceiving);
      left = i;
    }
  });
  int not_a_member = 0;
  for (int i = 1; i <= kRounds; ++i) {
    round = i;
    channel->membership().join(End::kReceiving).value();
    while (left != i) std::this_thread::yield();
    not_a_member += channel->stats().receivers == 0;
  }
  leaver.join();
  CHECK(not_a_member == 0);
  channel->membership().leave(End::kReceiving);
  CHECK(channel->stats().receivers == 0);
}

TEST_CASE("A process that only receives does not count as a sender") {
  auto channel = new_channel(new_arena());  // this process has the sending end, and never sends
  Child sender([&] { return put(*channel, 1).ok(); });
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(sender.succeeded());
  REQUIRE(code_of(get(*channel, patience())) == Code::kPeerDied);  // the child ended with _exit, without closing
}

TEST_CASE("A child that calls leave_all has closed its end") {
  auto channel = new_channel(new_arena());
  Child sender([&] {
    const bool went = put(*channel, 1).ok();
    Channel::leave_all();
    return went;
  });
  REQUIRE(sender.succeeded());
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(code_of(get(*channel, patience())) == Code::kClosed);
}

TEST_CASE("Dead senders are reported once when no sender is left") {
  auto channel = receiving_channel();
  Peer first(*channel), second(*channel);
  first.child.kill_and_wait();
  notice_deaths(*channel);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  second.child.kill_and_wait();
  auto died = get(*channel);
  REQUIRE(code_of(died) == Code::kPeerDied);
  REQUIRE(std::set<int>(died.error().pids.begin(), died.error().pids.end()) ==
          std::set<int>{first.child.pid(), second.child.pid()});
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A blocked put reports that its receivers were killed") {
  auto channel = Channel::create(new_arena(), with_capacity(1)).value();
  channel->membership().join(End::kSending).value();
  channel->membership().join(End::kReceiving).value();
  ReceivingPeer receiver(*channel);
  channel->membership().leave(End::kReceiving);
  put(*channel, 2).value();
  receiver.child.signal(SIGKILL);
  auto died = put(*channel, 3);
  REQUIRE(code_of(died) == Code::kPeerDied);
  REQUIRE(died.error().pids == std::vector<int>{receiver.child.pid()});
  REQUIRE(code_of(channel->acks().wait({}, patience())) == Code::kClosed);
}

// guarantee: peer-died
TEST_CASE("A killed process is dead before it is reaped") {
  auto channel = receiving_channel();
  Peer sender(*channel);
  sender.child.signal(SIGKILL);  // killed, but not reaped
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

// guarantee: stopped-is-alive
TEST_CASE("A stopped process is alive") {
  auto channel = receiving_channel();
  channel->membership().join(End::kSending).value();
  Gate up;
  Child sender([&] {
    put(*channel, 1).value();
    up.open();
    raise(SIGSTOP);
    put(*channel, 2).value();
    Channel::leave_all();
    return true;
  });
  up.wait();
  sender.wait_until_stopped();
  get(*channel).value();
  REQUIRE(code_of(get(*channel, patience(20))) == Code::kEmpty);
  sender.signal(SIGCONT);
  REQUIRE(get(*channel).value() == 2);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

// guarantee: stopped-is-alive
TEST_CASE("A process is alive after its first thread has ended") {
  if (kThreadSanitizer || under_valgrind()) return;  // their runtimes end the process with its first thread
  auto channel = receiving_channel();
  channel->membership().join(End::kSending).value();
  Gate go;
  Child sender([&]() -> bool {
    std::thread([&] {
      put(*channel, 1).value();
      go.wait();
      put(*channel, 2).value();
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // ends this thread only, without unwinding it
    return false;
  });
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(code_of(get(*channel, patience(20))) == Code::kEmpty);
  go.open();
  REQUIRE(get(*channel).value() == 2);
}

TEST_CASE("give_to makes a process a member before it starts") {
  auto channel = receiving_channel();
  memory::ReservedSlot slot = channel->arena()->reconciler().reserve_slot().value();
  channel->membership().give_to(slot.identity, End::kSending);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  slot.lock.reset();  // the process never started
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

TEST_CASE("A queue does not end for a process with both of its ends") {
  auto channel = receiving_channel(with_capacity(8, Ending::kNever));
  channel->membership().join(End::kSending).value();
  Child other([&] {
    put(*channel, 1).value();
    return true;
  });
  REQUIRE(other.succeeded());
  REQUIRE(get(*channel).value() == 1);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  REQUIRE_FALSE(channel->ends().is_over(End::kSending));
  REQUIRE_FALSE(channel->watchers().ready());
}

// guarantee: pool-exit
TEST_CASE("A queue ends when the last member of a left end exits") {
  const End end = GENERATE(End::kSending, End::kReceiving);
  const bool is_killed = GENERATE(false, true);
  auto channel = new_channel(new_arena(), with_capacity(1, Ending::kNever));
  Gate up, go;
  Child other([&] {  // uses neither end
    up.open();
    go.wait();
    return true;
  });
  up.wait();
  put(*channel, 1).value();
  channel->membership().leave(end);
  const auto wait = [&](const WaitContext& for_how_long) {
    return end == End::kSending ? code_of(get(*channel, for_how_long)) : code_of(put(*channel, 2, 1, for_how_long));
  };
  if (end == End::kSending) get(*channel).value();
  REQUIRE(wait(patience(10)) == (end == End::kSending ? Code::kEmpty : Code::kFull));
  REQUIRE_FALSE(channel->ends().is_over(end));
  if (is_killed) other.kill_and_wait();
  if (!is_killed) go.open();
  REQUIRE(wait(patience()) == Code::kClosed);
  REQUIRE(channel->ends().is_over(end));
  channel->membership().join(end).value();
  REQUIRE(wait(patience(10)) == (end == End::kSending ? Code::kEmpty : Code::kFull));
}

TEST_CASE("A queue without senders stays open while reserved") {
  auto queue = new_channel(new_arena(), with_capacity(0, Ending::kNever));
  put(*queue, 1).value();
  queue->tasks().reserve(End::kReceiving, no_wait()).value();
  queue->membership().leave(End::kSending);
  Child other([&] { return code_of(get(*queue, no_wait())) == Code::kEmpty && !queue->ready(); });
  REQUIRE(other.succeeded());
  Child waiting([&] { return code_of(get(*queue, patience(60'000))) == Code::kClosed; });
  REQUIRE(get(*queue).value() == 1);
  REQUIRE(waiting.succeeded());
}

TEST_CASE("A kWait stream ends once a dead sender had a successor") {
  auto channel = receiving_channel(with_capacity(8, Ending::kWait));
  Peer sender(*channel);
  sender.child.kill_and_wait();
  REQUIRE(code_of(get(*channel, patience(300))) == Code::kEmpty);
  Child successor([&] {
    put(*channel, 2).value();
    Channel::leave_all();
    return true;
  });
  REQUIRE(get(*channel).value() == 2);
  REQUIRE(successor.succeeded());
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A kWait stream ends when all senders have closed") {
  auto channel = receiving_channel(with_capacity(8, Ending::kWait));
  channel->membership().join(End::kSending).value();
  channel->membership().leave(End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A blocked get ends when the last sender leaves") {
  auto channel = new_channel(new_arena());
  Child receiver([&] {
    channel->membership().leave(End::kSending);
    return get(*channel).value() == 1 && code_of(get(*channel)) == Code::kClosed;
  });
  put(*channel, 1).value();
  channel->acks().wait({}, patience()).value();
  channel->membership().leave(End::kSending);
  REQUIRE(receiver.succeeded());
}

TEST_CASE("The descriptor is readable exactly while get would succeed") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  REQUIRE(channel->watchers().wake_fd(End::kReceiving).value() == fd);
  REQUIRE_FALSE(readable(fd));
  put(*channel, 1).value();
  put(*channel, 2).value();
  REQUIRE(readable(fd));
  get(*channel).value();
  REQUIRE(readable(fd));
  get(*channel).value();
  REQUIRE_FALSE(readable(fd));
  {
    Delivery given_back = [&] {
      put(*channel, 3).value();
      return take(*channel).value();
    }();
    REQUIRE_FALSE(readable(fd));
  }
  REQUIRE(readable(fd));
  drain(*channel);
  REQUIRE_FALSE(readable(fd));
}

TEST_CASE("A new descriptor is readable if messages are queued") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  REQUIRE(readable(channel->watchers().wake_fd(End::kReceiving).value()));
}

TEST_CASE("get clears a descriptor after another process gets it") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  put(*channel, 0).value();
  get(*channel).value();
  Child other([&] { return put(*channel, 1).ok() && get(*channel).ok(); });
  REQUIRE(other.succeeded());
  REQUIRE(code_of(get(*channel, no_wait())) != Code::kOs);
  REQUIRE_FALSE(readable(fd));
}

TEST_CASE("The descriptor stays readable at the end of the stream") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  channel->membership().leave(End::kSending);
  REQUIRE(readable(fd));
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  REQUIRE(readable(fd));
  channel->membership().join(End::kSending).value();
  put(*channel, 1).value();
  get(*channel).value();
  REQUIRE_FALSE(readable(fd));
}

TEST_CASE("The descriptor is readable once a sender death is detected") {
  auto channel = receiving_channel();
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  Peer sender(*channel);
  REQUIRE_FALSE(readable(fd));
  sender.child.kill_and_wait();
  Child other([&] {
    notice_deaths(*channel);
    Channel::leave_all();
    return true;
  });
  REQUIRE(other.succeeded());
  REQUIRE(readable(fd));
  REQUIRE(code_of(get(*channel)) == Code::kPeerDied);
}

TEST_CASE("A forked child has a descriptor of its own") {
  auto channel = new_channel(new_arena());
  const int fd = channel->watchers().wake_fd(End::kReceiving).value();
  Gate up;
  Child child([&] {
    const int mine = channel->watchers().wake_fd(End::kReceiving).value();
    up.open();
    pollfd entry{mine, POLLIN, 0};
    return poll(&entry, 1, 60'000) == 1 && get(*channel).value() == 1;
  });
  up.wait();
  put(*channel, 1).value();
  REQUIRE(readable(fd));
  REQUIRE(child.succeeded());
}
