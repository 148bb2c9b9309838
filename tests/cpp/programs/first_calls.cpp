// Forks while another thread makes the first call of each kind in the process. Prints one line for each round: "ok", or
// the signal that ended the child. A child that hangs gets SIGALRM.
//
//   first_calls <rounds> <seconds until SIGALRM>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

constexpr auto kWithin = 1s;

// Makes one call of each kind. Results do not matter, since a child shares the ends with the thread of its parent.
void call_everything(int seed) {
  const std::string name = "first-" + std::to_string(getpid()) + "-" + std::to_string(seed);
  const auto arena = Arena::create({.max_bytes = 16 << 20});
  if (!arena) return;
  Queue queue = make_queue({.capacity = 4, .name = name, .arena = *arena});
  queue.put(Dict{{"text", std::string(2000, 'x')}, {"list", std::vector<int>{1, 2}}}, kWithin).ok();
  queue.get(kWithin).ok();
  Receiver receiver = queue.receiver();
  receiver.fileno().ok();
  receiver.take(0s).ok();
  const Latest latest = make_latest({.arena = *arena});
  latest.publish(1, kWithin).ok();
  const Broadcast broadcast = make_broadcast({.arena = *arena});
  broadcast.put(1, kWithin).ok();
  const ReplayBuffer buffer =
      make_replay({.capacity = 100, .columns = {{"x"}}, .limits = {.rate = ReplayRateLimit{}}, .arena = *arena});
  buffer.add(Dict{{"x", 1}}, kWithin).ok();
  buffer.sample(1, kWithin).ok();
  const auto array = arena->new_array(DType::kFloat64, {100}, kWithin);
  if (array) queue.put(*array, kWithin).ok();
  observe();
}

bool round(int number, unsigned seconds) {
  auto [sender, receiver] = make_pair({.capacity = 0});
  std::atomic<bool> begins{false};
  std::thread thread([&, &sender = sender] {
    begins = true;
    sender.put("from a thread", kWithin).ok();
    call_everything(0);
  });
  while (!begins) {
  }
  usleep(static_cast<useconds_t>(number * number * 20));
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    sender.put("from a child", kWithin).ok();
    sender.close();
    receiver.close();
    call_everything(1);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  thread.join();
  if (WIFSIGNALED(status)) {
    std::printf("round %d: signal %d\n", number, WTERMSIG(status));
  } else {
    std::printf("ok\n");
  }
  std::fflush(stdout);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 64;
  for (int number = 0; number < std::atoi(arguments[1]); ++number) {
    const pid_t program = fork();  // a process that has not made any call yet
    if (program == 0) _exit(round(number, static_cast<unsigned>(std::atoi(arguments[2]))) ? 0 : 1);
    int status = 0;
    waitpid(program, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 1;
  }
  return 0;
}
