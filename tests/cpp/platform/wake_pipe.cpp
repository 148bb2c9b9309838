// Wake pipes: which bytes reach a listener, and which pipes a sender opens and writes to.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "platform/wake_sender.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::platform;
using namespace shmtree::test;

namespace {

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}
bool is_readable(const WakePipe& pipe) {
  return is_readable(pipe.number());
}
WakePipe new_pipe(WakeKind kind = WakeKind::kBytes) {
  return WakePipe::open(kind).value();
}
WakeText text_of(char letter) {
  WakeText text{};
  text.fill(letter);
  return text;
}
template <class... Rest>
bool send_wake(int pid, WakeAddress address, Rest... rest) {
  static const WakeSender sender;
  return sender.send(pid, address, rest...);
}
bool send_text(const WakePipe& pipe, const WakeText& text) {
  return send_wake(getpid(), pipe.address(), std::string_view(text.data(), text.size()));
}
// Returns an address for any descriptor of this process, as a hostile participant would make it.
WakeAddress false_address_of(int number) {
  struct stat status {};
  REQUIRE(fstat(number, &status) == 0);
  return make_wake_address(static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(status.st_ino));
}
bool is_socket(const WakePipe& pipe) {
  return number_of(pipe.address()) == kSocketNumber;
}

// Opens a pipe, reports its address, and sleeps. Does not return.
bool listen_until_killed(Gate& opened) {
  const WakePipe pipe = new_pipe();
  opened.open(pipe.address());
  while (pause() != 0) {
  }
  return false;
}

}  // namespace

TEST_CASE("A wake-up makes its pipe readable until it is drained") {
  const WakePipe pipe = new_pipe();
  CHECK_FALSE(is_readable(pipe));
  CHECK(send_wake(getpid(), pipe.address()));
  CHECK(is_readable(pipe));
  pipe.drain();
  CHECK_FALSE(is_readable(pipe));
  pipe.wake();
  CHECK(is_readable(pipe));
}

TEST_CASE("A wake-up reaches the pipe of another process") {
  const WakePipe pipe = new_pipe();
  const int pid = getpid();
  Child child([&] {
    const WakeAddress address = pipe.address();
    close(pipe.number());  // the child's copy of the descriptor
    return send_wake(pid, address) && send_wake(pid, address);
  });
  CHECK(child.succeeded());
  CHECK(is_readable(pipe));
}

TEST_CASE("A pipe that is full of wake-ups takes more without blocking") {
  const WakePipe pipe = new_pipe();
  for (int i = 0; i < 70'000; ++i) REQUIRE(send_wake(getpid(), pipe.address()));
  pipe.drain();
  CHECK_FALSE(is_readable(pipe));
}

TEST_CASE("A pipe that was made blocking does not block drain") {
  const WakePipe pipe = new_pipe();
  const int flags = fcntl(pipe.number(), F_GETFL);
  REQUIRE(fcntl(pipe.number(), F_SETFL, flags & ~O_NONBLOCK) == 0);
  Child child([&] {
    alarm(60);
    pipe.drain();
    return !is_readable(pipe);
  });
  CHECK(child.succeeded());
}

// guarantee: wake-namespaces
TEST_CASE("A listener that is stopped with a full pipe blocks no sender") {
  Gate told;
  Child listener([&] { return listen_until_killed(told); });
  const WakeAddress address = told.wait();
  listener.signal(SIGSTOP);
  listener.wait_until_stopped();
  for (int i = 0; i < 10'000; ++i) REQUIRE(send_wake(listener.pid(), address));
}

TEST_CASE("A wake-up for a closed pipe fails and writes to no file") {
  WakePipe pipe = new_pipe();
  const WakeAddress address = pipe.address();
  const int number = pipe.number();
  pipe.close();
  CHECK_FALSE(send_wake(getpid(), address));
  int ends[2];
  REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
  REQUIRE(dup2(ends[0], number) == number);
  Child child([&] { return !send_wake(getppid(), address); });  // the child has not tried this pipe before
  CHECK(child.succeeded());
  CHECK_FALSE(is_readable(number));
  for (const int each : {ends[0], ends[1], number}) close(each);
}

TEST_CASE("A wake-up for a killed listener raises no signal") {
  Gate told;
  Child listener([&] { return listen_until_killed(told); });
  const WakeAddress address = told.wait();
  CHECK(send_wake(listener.pid(), address));
  const int pid = listener.pid();
  listener.kill_and_wait();
  for (int i = 0; i < 3; ++i) send_wake(pid, address);
}

TEST_CASE("A forked child takes no wake-up from the pipe of its parent") {
  const WakePipe pipe = new_pipe();
  const Gate started;
  Child child([&] {
    started.open();
    while (pause() != 0) {
    }
    return false;
  });
  started.wait();
  CHECK(send_wake(getpid(), pipe.address()));
  child.kill_and_wait();
  CHECK(is_readable(pipe));
}

TEST_CASE("A child of a dead listener is not woken instead of it") {
  Gate told;
  const Gate done;
  int successor = 0;
  WakeAddress address = 0;
  {
    Child listener([&] {
      const WakePipe pipe = new_pipe();
      const int child = fork();  // inherits the descriptor
      if (child == 0) {
        alarm(280);
        done.wait();
        _exit(is_readable(pipe) ? 1 : 0);
      }
      told.open(static_cast<std::uint64_t>(child));
      told.open(pipe.address());
      while (pause() != 0) {
      }
      return false;
    });
    successor = static_cast<int>(told.wait());
    address = told.wait();
    const int pid = listener.pid();
    listener.kill_and_wait();
    CHECK_FALSE(send_wake(pid, address));
  }
  // The child's descriptor of that number leads to the pipe. So a sender that takes the child's pid for the listener's
  // sends needless bytes to the child, and does no other harm.
  CHECK(send_wake(successor, address));
  done.open();
}

TEST_CASE("A request is taken only by a sender that reaches the pipe") {
  const WakePipe pipe = new_pipe();
  const WakeSender sender;
  int asked = 0;
  const auto take = [&]() noexcept { return ++asked == 1; };
  CHECK(sender.send_if(take, getpid(), pipe.address()));
  CHECK(is_readable(pipe));
  pipe.drain();
  CHECK(sender.send_if(take, getpid(), pipe.address()));  // another sender was first
  CHECK_FALSE(is_readable(pipe));
  WakePipe gone = new_pipe();
  const WakeAddress closed = gone.address();
  gone.close();
  CHECK_FALSE(sender.send_if(take, getpid(), closed));
  CHECK(asked == 2);
}

TEST_CASE("Texts arrive whole and in order and other bytes are reported") {
  const WakePipe pipe = new_pipe(WakeKind::kTexts);
  std::vector<WakeText> out(3);
  std::size_t received = 0;
  bool damaged = false;
  for (const char letter : {'a', 'b', 'c', 'd'}) REQUIRE(send_text(pipe, text_of(letter)));
  CHECK(pipe.receive(out, received, damaged));
  CHECK((received == 3 && out == std::vector{text_of('a'), text_of('b'), text_of('c')}));
  CHECK_FALSE(pipe.receive(out, received, damaged));
  CHECK((received == 1 && out[0] == text_of('d') && !damaged));
  pipe.wake();
  REQUIRE(send_text(pipe, text_of('e')));
  CHECK_FALSE(pipe.receive(out, received, damaged));
  CHECK((damaged && received == 0));
  CHECK_FALSE(is_readable(pipe));
}

TEST_CASE("A pipe accepts max_waiting_texts texts") {
  const WakePipe pipe = new_pipe(WakeKind::kTexts);
  const std::uint64_t max = pipe.max_waiting_texts();
  REQUIRE(max > 0);
  for (std::uint64_t i = 0; i < max + 10; ++i) REQUIRE(send_text(pipe, text_of('x')));
  std::vector<WakeText> out(max + 10);
  std::size_t received = 0;
  bool damaged = false;
  CHECK_FALSE(pipe.receive(out, received, damaged));
  CHECK((received == max && !damaged));
}

TEST_CASE("A sender reaches all pipes with an eighth of the descriptors") {
  std::vector<WakePipe> pipes;
  for (int i = 0; i < 40; ++i) pipes.push_back(new_pipe());
  const int pid = getpid();
  const std::size_t kept = kept_descriptors().size();
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 160, [&] {
    for (int round = 0; round < 2; ++round) {
      for (const WakePipe& pipe : pipes) {
        if (!send_wake(pid, pipe.address())) return false;
      }
    }
    return kept_descriptors().size() <= kept + 20;
  }));
  for (const WakePipe& pipe : pipes) CHECK(is_readable(pipe));
}

TEST_CASE("A sender reaches 400 pipes with at most 256 descriptors") {
  if (under_valgrind()) return;  // valgrind has its own descriptors
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 4096, [&] {
    std::vector<WakePipe> pipes;
    for (int i = 0; i < 400; ++i) pipes.push_back(new_pipe());
    const std::size_t kept = kept_descriptors().size();
    for (const WakePipe& pipe : pipes) {
      if (!send_wake(getpid(), pipe.address())) return false;
    }
    return kept_descriptors().size() <= kept + 256 &&
           std::ranges::all_of(pipes, [](const WakePipe& pipe) { return is_readable(pipe); });
  }));
}

TEST_CASE("Wake-ups work again once a descriptor is free") {
  if (under_valgrind()) return;  // valgrind has its own descriptors, and does not pass on the limit
  const WakePipe pipe = new_pipe();
  const int pid = getpid();
  Child child([&] {
    for (const int kept : kept_descriptors()) {
      if (kept != pipe.number()) close(kept);
    }
    const rlimit limit{64, 64};
    setrlimit(RLIMIT_NOFILE, &limit);
    std::vector<int> taken;
    for (int number = dup(0); number >= 0; number = dup(0)) taken.push_back(number);
    if (send_wake(pid, pipe.address()) || is_readable(pipe)) return false;
    close(taken[taken.size() - 1]);
    close(taken[taken.size() - 2]);  // a send needs two: one to find the pipe, one to open it
    return send_wake(pid, pipe.address()) && is_readable(pipe);
  });
  CHECK(child.succeeded());
}

TEST_CASE("A sender reopens its closed pipe and spares other files") {
  const WakePipe pipe = new_pipe();
  const int pid = getpid();
  Child child([&] {
    send_wake(pid, pipe.address());
    pipe.drain();
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0) return false;
    for (const int kept : kept_descriptors()) {
      if (kept != pipe.number()) dup2(ends[1], kept);
    }
    return send_wake(pid, pipe.address()) && is_readable(pipe) && !is_readable(ends[0]);
  });
  CHECK(child.succeeded());
}

// guarantee: wake-namespaces
TEST_CASE("A false address makes a sender open and write to nothing") {
  const std::string path = "/tmp/shmtree-test-fifo-" + std::to_string(getpid());
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const UniqueFd fifo(open(path.c_str(), O_RDWR | O_NONBLOCK));
  unlink(path.c_str());
  int ends[2];
  REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
  const UniqueFd reading(ends[0]), writing(ends[1]), null(open("/dev/null", O_RDWR));
  const WakePipe pipe = new_pipe();
  const int pid = getpid();
  const auto reaches_nothing = [&] {
    bool reached = send_wake(pid, pipe.address() ^ 1);
    for (const int number : {fifo.get(), reading.get(), writing.get(), null.get(), 0, 1, 2}) {
      reached = send_wake(pid, false_address_of(number)) || reached;
    }
    for (const int other : {0, -1, -pid, 1, 2'000'000'000}) reached = send_wake(other, pipe.address()) || reached;
    for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
      reached = send_wake(pid, address) || reached;
    }
    return !reached;
  };
  CHECK(reaches_nothing());
  Child child([&] { return reaches_nothing(); });
  CHECK(child.succeeded());
  for (const int number : {fifo.get(), reading.get(), pipe.number()}) CHECK_FALSE(is_readable(number));
}

TEST_CASE("Concurrent senders reach more pipes than they keep open") {
  const int rounds = kThreadSanitizer || under_valgrind() ? 20 : 200;
  CHECK(succeeds_with_limit(RLIMIT_NOFILE, 256, [&] {
    std::vector<WakePipe> pipes;
    for (int i = 0; i < 60; ++i) pipes.push_back(new_pipe());
    const int pid = getpid();
    Child child([&] {
      std::atomic<int> missed{0};
      std::vector<std::jthread> threads;
      for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&] {
          for (int round = 0; round < rounds; ++round) {
            for (const WakePipe& pipe : pipes) missed += !send_wake(pid, pipe.address());
          }
        });
      }
      threads.clear();
      return missed == 0;
    });
    return child.succeeded() && std::ranges::all_of(pipes, [](const WakePipe& pipe) { return is_readable(pipe); });
  }));
}

TEST_CASE("A process that is not dumpable is woken by a socket") {
  Gate told, sent;
  Child listener([&] {
    prctl(PR_SET_DUMPABLE, 0);
    const WakePipe pipe = new_pipe(), texts = new_pipe(WakeKind::kTexts);
    if (!is_socket(pipe) || !is_socket(texts)) return false;
    pipe.wake();
    if (!is_readable(pipe)) return false;
    pipe.drain();
    if (is_readable(pipe)) return false;
    told.open(pipe.address());
    told.open(texts.address());
    sent.wait();
    std::vector<WakeText> out(3);
    std::size_t received = 0;
    bool damaged = false;
    texts.receive(out, received, damaged);
    return is_readable(pipe) && received == 1 && out[0] == text_of('a') && !damaged;
  });
  const WakeAddress address = told.wait(), texts = told.wait();
  const WakeText text = text_of('a');
  for (int i = 0; i < 2000; ++i) REQUIRE(send_wake(listener.pid(), address));
  REQUIRE(send_wake(listener.pid(), texts, std::string_view(text.data(), text.size())));
  sent.open();
  CHECK(listener.succeeded());
  for (int i = 0; i < 3; ++i) CHECK_FALSE(send_wake(listener.pid(), address));
}
