// Inherited state of a forked child, and futexes between processes.
#include "support/process.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <thread>

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/fork.h"
#include "platform/futex.h"
#include "platform/machine.h"
#include "support/catch2.h"

using namespace shmtree::platform;
using namespace shmtree::test;

namespace {

int g_calls = 0;
void count_call() {
  ++g_calls;
}

std::atomic<std::uint32_t>* shared_word() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (page) std::atomic<std::uint32_t>(0);
}

}  // namespace

TEST_CASE("A fork runs the handlers on both sides") {
  static ForkHandlers one{&count_call, &count_call, &count_call, &count_call}, two = one;
  for (ForkHandlers* handlers : {&one, &two, &one}) add_fork_handlers(*handlers);
  g_calls = 0;
  Child child([] { return g_calls == 6; });
  CHECK(child.succeeded());
  CHECK(g_calls == 6);
}

TEST_CASE("Fork-safe mutexes are free in a forked child") {
  static ForkHandlers none;
  add_fork_handlers(none);
  ForkSafeMutex mutex;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      mutex.lock();
      mutex.unlock();
      std::this_thread::yield();  // memcheck runs one thread at a time
    }
  });
  bool all = true;
  for (int i = 0; i < 20; ++i) {
    Child child([&] { return mutex.try_lock(); });
    all = all && child.succeeded();
  }
  stop = true;
  busy.join();
  CHECK(all);
}

TEST_CASE("A child has the process stamp after fork but not after clone") {
  static ForkHandlers none;
  add_fork_handlers(none);
  REQUIRE(process_stamp() != 0);
  Child child([] { return process_stamp() != 0; });
  CHECK(child.succeeded());
  if (kThreadSanitizer) {
    WARN("ThreadSanitizer does not survive a clone that it does not see");
    return;
  }
  const long cloned = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (cloned == 0) syscall(SYS_exit_group, process_stamp() == 0 ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(static_cast<pid_t>(cloned), &status, 0) == cloned);
  CHECK(status == 0);
}

TEST_CASE("A futex wakes a waiter in another process") {
  std::atomic<std::uint32_t>* word = shared_word();
  Child child([&] {
    while (word->load() == 0) futex_wait(*word, 0, 10'000'000'000);
    return true;
  });
  while (true) {
    word->store(1);
    if (futex_wake(*word, 1) == 1) break;
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      break;
  }
  CHECK(child.succeeded());
}

TEST_CASE("A futex wait returns at once if the word has changed") {
  std::atomic<std::uint32_t> word{1};
  const std::int64_t began = monotonic_ns();
  futex_wait(word, 0, 60'000'000'000);
  CHECK(monotonic_ns() - began < 30'000'000'000);
}

TEST_CASE("own_thread_count() counts each thread") {
  const std::uint32_t before = own_thread_count();
  CHECK(before >= 1);
  std::atomic<bool> is_over{false};
  std::thread one([&] { is_over.wait(false); }), two([&] { is_over.wait(false); });
  CHECK(own_thread_count() == before + 2);
  is_over = true;
  is_over.notify_all();
  one.join();
  two.join();
}
