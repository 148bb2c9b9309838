// Waits for a store that another thread is about to make without a wake-up, usually within one system call.
#pragma once

#include "platform/atomics.h"
#include "platform/clock.h"
#include "platform/wait_policy.h"

namespace shmtree::platform {

// Call pause() between two checks. It spins for about 20 us. After that the other thread has lost its core, or is
// stopped, so each pause sleeps briefly to let it run. A yield would not help: a busy process that gets the core would
// keep it for a time slice of milliseconds.
class BriefWait {
 public:
  void pause() noexcept {
    if (spins_ < wait_policy::kBriefSpins) {
      ++spins_;
      relax_cpu();
    } else {
      sleep_ns(1);  // the shortest sleep of the kernel, about 60 us
    }
  }

 private:
  int spins_ = 0;
};

}  // namespace shmtree::platform
