// Runs a task on several threads that end with it.
#pragma once

#include <csignal>
#include <cstddef>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace shmtree::platform {

// Threads that start within this scope handle no signals.
class SignalsHeld {
 public:
  SignalsHeld() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

// Calls act(0) to act(parts - 1), which must not throw. The first call runs on this thread, each other one on its own
// thread, or on this one if no thread can be created. Throws std::bad_alloc before any call.
template <class Act>
void run_side_by_side(std::size_t parts, const Act& act) {
  std::vector<std::thread> threads;
  threads.reserve(parts);
  std::size_t part = 1;
  try {
    const SignalsHeld held;
    for (; part < parts; ++part) threads.emplace_back([&act, part]() noexcept { act(part); });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  act(0);
  for (; part < parts; ++part) act(part);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shmtree::platform
