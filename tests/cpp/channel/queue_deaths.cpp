// Queues that report killed peers (Ending::kQueueRaise).
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "channel/wake_hub.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::shared_ptr<Channel> new_queue(std::uint64_t capacity = 0) {
  return new_channel(new_arena(), with_capacity(capacity, Ending::kQueueRaise));
}

// Receives messages until there is an error, and returns it.
Result<std::uint64_t> get_all(Channel& queue) {
  auto got = get(queue);
  while (got) got = get(queue);
  return got;
}

// A process that calls `act` and then waits until it is killed. The constructor waits for the call.
class Pausing {
 public:
  template <class Act>
  explicit Pausing(Act act)
      : child_([&] {
          act();
          up_.open();
          pause();
          return true;
        }) {
    up_.wait();
  }
  // Returns the pid of the killed process.
  int kill() {
    const int pid = child_.pid();
    child_.kill_and_wait();
    return pid;
  }

 private:
  Gate up_;
  Child child_;
};

#if defined(SHMTREE_CRASH_POINTS)
const std::int64_t kStep = under_valgrind() ? 17 : 1;  // each child costs valgrind 0.1 s
#endif

}  // namespace

// guarantee: queue-peer-died
TEST_CASE("get of a queue reports dead senders until one joins") {
  auto queue = new_queue();
  Pausing sender([&] { put(*queue, 1).value(); });
  const int pid = sender.kill();
  REQUIRE(get(*queue).value() == 1);
  for (int call = 0; call < 2; ++call) {
    auto told = get(*queue);
    REQUIRE(code_of(told) == Code::kPeerDied);
    REQUIRE(told.error().pids == std::vector<int>{pid});
  }
  REQUIRE(code_of(get(*queue, no_wait())) == Code::kPeerDied);
  REQUIRE(queue->ready());
  Gate joined, go;
  Child next([&] {
    joined.open();
    go.wait();
    put(*queue, 2).value();
    return true;
  });
  joined.wait();
  REQUIRE(code_of(get(*queue, patience(10))) == Code::kEmpty);
  REQUIRE_FALSE(queue->ready());
  go.open();
  REQUIRE(get(*queue).value() == 2);
  REQUIRE(next.succeeded());
}

// guarantee: queue-peer-died
TEST_CASE("put into a full queue reports dead receivers") {
  auto queue = new_queue(1);
  put(*queue, 1).value();
  Pausing receiver([&] { get(*queue).value(); });
  put(*queue, 2).value();
  const int pid = receiver.kill();
  auto told = put(*queue, 3);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids == std::vector<int>{pid});
  REQUIRE(get(*queue).value() == 2);  // this process may still use both ends
  put(*queue, 4).value();
}

// guarantee: queue-peer-died
TEST_CASE("A dead process that used only the other end is not reported") {
  auto queue = new_queue(1);
  put(*queue, 1).value();
  Pausing receiver([&] { get(*queue).value(); });
  receiver.kill();
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
}

TEST_CASE("A queue waits while a process that used neither end lives") {
  auto queue = new_queue();
  Peer first(*queue);
  Gate go;
  Child idle([&] {
    go.wait();
    return true;
  });
  first.child.kill_and_wait();
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
  go.open();
  REQUIRE(idle.succeeded());
  REQUIRE(code_of(get(*queue)) == Code::kPeerDied);
}

TEST_CASE("A queue waits after senders that have exited") {
  auto queue = new_queue();
  Child sender([&] {
    put(*queue, 1).value();
    Channel::leave_all();  // as at an ordinary exit; a Child ends by _exit()
    return true;
  });
  REQUIRE(sender.succeeded());
  REQUIRE(get(*queue).value() == 1);
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
}

TEST_CASE("A shutdown of a queue comes before its dead senders") {
  auto queue = new_queue();
  Peer sender(*queue);
  sender.child.kill_and_wait();
  REQUIRE(code_of(get(*queue)) == Code::kPeerDied);
  queue->tasks().shut_down(false, patience()).value();
  REQUIRE(code_of(get(*queue)) == Code::kShutDown);
}

TEST_CASE("A death is reported after another process exited cleanly") {
  auto queue = new_queue();
  Child exiting([&] {
    put(*queue, 1).value();
    Channel::leave_all();
    return true;
  });
  REQUIRE(exiting.succeeded());
  REQUIRE(get(*queue).value() == 1);
  Peer sender(*queue);
  const int pid = sender.child.pid();
  sender.child.kill_and_wait();
  auto told = get(*queue);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids == std::vector<int>{pid});
}

// guarantee: queue-peer-died
TEST_CASE("Each of several blocked receivers reports the last sender") {
  auto queue = new_queue();
  Gate waits, up;
  Child receiver([&] {
    if (code_of(get(*queue, no_wait())) != Code::kEmpty) return false;
    waits.open();
    return code_of(get_all(*queue)) == Code::kPeerDied;
  });
  waits.wait();
  Pausing sender([&] { put(*queue, 1).value(); });
  sender.kill();
  REQUIRE(code_of(get_all(*queue)) == Code::kPeerDied);
  REQUIRE(receiver.succeeded());
}

// guarantee: queue-peer-died
TEST_CASE("Each of several blocked senders reports the last receiver") {
  auto queue = new_queue(1);
  put(*queue, 1).value();
  Gate go;
  Pausing receiver([&] { get(*queue).value(); });
  put(*queue, 2).value();
  Child sender([&] {  // has never put before
    go.open();
    return code_of(put(*queue, 3)) == Code::kPeerDied;
  });
  go.wait();
  receiver.kill();
  REQUIRE(code_of(put(*queue, 4)) == Code::kPeerDied);
  REQUIRE(sender.succeeded());
}

TEST_CASE("A blocked get ends when the last other process leaves") {
  auto queue = new_queue();
  auto hub = channel::WakeHub::of_this_process().value();
  Gate go;
  Child idle([&] {
    go.wait();
    Channel::leave_all();
    return true;
  });
  {
    Peer sender(*queue);
    sender.child.kill_and_wait();
  }
  notice_deaths(*queue);
  REQUIRE(code_of(get(*queue, no_wait())) == Code::kEmpty);
  REQUIRE_FALSE(queue->watchers().await(End::kReceiving, *hub).value());
  go.open();
  REQUIRE(idle.succeeded());
  pollfd woken{hub->fd(), POLLIN, 0};
  REQUIRE(poll(&woken, 1, 0) == 1);  // a coroutine is woken by the process that left
  REQUIRE(code_of(get(*queue)) == Code::kPeerDied);
}

TEST_CASE("A stopped sender of a queue counts as alive") {
  auto queue = new_queue();
  Peer first(*queue), second(*queue);
  second.child.signal(SIGSTOP);
  second.child.wait_until_stopped();
  first.child.kill_and_wait();
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
  second.child.kill_and_wait();
  auto told = get(*queue);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids.size() == 2);
}

TEST_CASE("A child of a killed sender may still put") {
  auto queue = new_queue();
  Gate up, go, done;
  Child sender([&] {
    put(*queue, 1).value();
    Child child([&] {  // outlives its parent
      up.open();
      go.wait();
      put(*queue, 2).value();
      done.wait();
      return true;
    });
    pause();
    return true;
  });
  up.wait();
  sender.kill_and_wait();
  REQUIRE(get(*queue).value() == 1);
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
  go.open();
  REQUIRE(get(*queue).value() == 2);
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
  done.open();  // its end by _exit() counts as a death
  auto told = get(*queue);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids.size() == 2);
}

TEST_CASE("A queue in transit counts as a process that may put") {
  auto queue = new_queue();
  Peer sender(*queue);
  sender.child.kill_and_wait();
  REQUIRE(code_of(get(*queue)) == Code::kPeerDied);
  const std::uint64_t number = queue->membership().begin_transfer(End::kReceiving).value();
  REQUIRE(code_of(get(*queue, patience(400))) == Code::kEmpty);
  queue->membership().end_transfer(number, End::kReceiving);
  REQUIRE(code_of(get(*queue)) == Code::kPeerDied);
}

// The last word of the full list stands for all further deaths, and the queue still works.
TEST_CASE("A queue reports more dead senders than it lists") {
  auto queue = new_queue();
  for (std::uint32_t i = 0; i < channel::kMaxKilled + 2; ++i) {
    Peer sender(*queue);
    sender.child.kill_and_wait();
    notice_deaths(*queue);
  }
  auto told = get(*queue);
  REQUIRE(code_of(told) == Code::kPeerDied);
  REQUIRE(told.error().pids.size() == channel::kMaxKilled - 1);
  REQUIRE(told.error().message.ends_with(" and others"));
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: queue-peer-died
TEST_CASE("get ends after a sender was killed at any change of a put") {
  for (const std::size_t words : {4u, 700u}) {
    bool killed = true;
    for (std::int64_t n = 1; killed; n += kStep) {
      INFO("killed before change " << n);
      auto queue = new_queue();
      killed = killed_at_change(n, [&] { put(*queue, 1, words).value(); });
      auto told = get_all(*queue);
      REQUIRE(code_of(told) == Code::kPeerDied);
      REQUIRE(told.error().pids.size() == 1);
    }
  }
}

// guarantee: queue-peer-died
TEST_CASE("put ends after a receiver was killed at any change of a get") {
  bool killed = true;
  for (std::int64_t n = 1; killed; n += kStep) {
    INFO("killed before change " << n);
    auto queue = new_queue(1);
    put(*queue, 1).value();
    killed = killed_at_change(n, [&] { get(*queue).value(); });
    auto told = put(*queue, 2);
    if (told) told = put(*queue, 3);
    REQUIRE(code_of(told) == Code::kPeerDied);
    REQUIRE(told.error().pids.size() == 1);
  }
}

TEST_CASE("A death is reported if its recovery is killed at any change") {
  bool killed = true;
  for (std::int64_t n = 1; killed; n += kStep) {
    INFO("killed before change " << n);
    auto queue = new_queue();
    Peer sender(*queue);
    const int pid = sender.child.pid();
    sender.child.kill_and_wait();
    killed = killed_at_change(n, [&] { notice_deaths(*queue); });
    auto told = get(*queue);
    REQUIRE(code_of(told) == Code::kPeerDied);
    REQUIRE(std::ranges::count(told.error().pids, pid) == 1);
  }
}

#endif
