// A thread that is known to sleep in a call.
#pragma once

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <stop_token>
#include <string>
#include <thread>

#include "support/catch2.h"

namespace shmtree::test {

// A thread that makes one call. The constructor returns when the thread sleeps in it.
class Caller {
 public:
  template <class Call>
  explicit Caller(Call call)
      : thread_([this, call](const std::stop_token& stop) {
          id_ = gettid();
          call(stop);
          done_ = true;
        }) {
    const auto state = [this] {
      std::ifstream file("/proc/self/task/" + std::to_string(id_) + "/stat");
      std::string text;
      std::getline(file, text);
      return text.substr(text.rfind(')') + 1, 2);
    };
    while (!done_ && (id_ == 0 || state() != " S")) std::this_thread::yield();
    REQUIRE_FALSE(done_);
  }
  void stop() { thread_.request_stop(); }
  void join() { thread_.join(); }

 private:
  std::atomic<int> id_{0};
  std::atomic<bool> done_{false};
  std::jthread thread_;
};

}  // namespace shmtree::test
