// A process that writes values in turn into a word of shared memory, as a hostile process may at any time.
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
          prctl(PR_SET_PDEATHSIG, SIGKILL);  // the test may crash its parent
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

// Returns a plain word as an atomic one, so that Flips can write it.
inline std::atomic<std::uint64_t>& as_atomic(std::uint64_t& word) {
  return reinterpret_cast<std::atomic<std::uint64_t>&>(word);
}

}  // namespace shmtree::test
