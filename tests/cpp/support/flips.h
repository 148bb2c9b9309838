// A process that writes one value after the other into a word of shared memory, as a hostile one may at any time.
#pragma once

#include <sys/prctl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "support/process.h"

namespace shmtree::test {

class Flips {
 public:
  Flips(std::atomic<std::uint64_t>& word, std::initializer_list<std::uint64_t> values)
      : word_(word), first_(*values.begin()), writer_([this, &word, all = std::vector<std::uint64_t>(values)] {
          prctl(PR_SET_PDEATHSIG, SIGKILL);  // its parent may be what the test is about to crash
          began_.open();
          for (std::size_t i = 0;; ++i) word.store(all[i % all.size()], std::memory_order_relaxed);
          return true;
        }) {
    began_.wait();
  }
  ~Flips() {
    writer_.kill_and_wait();
    word_.store(first_);
  }
  Flips(const Flips&) = delete;
  Flips& operator=(const Flips&) = delete;

 private:
  std::atomic<std::uint64_t>& word_;
  std::uint64_t first_;
  Gate began_;
  Child writer_;
};

// A plain word, to be written so.
inline std::atomic<std::uint64_t>& as_atomic(std::uint64_t& word) {
  return reinterpret_cast<std::atomic<std::uint64_t>&>(word);
}

}  // namespace shmtree::test
