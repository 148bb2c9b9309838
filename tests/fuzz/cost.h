// Measures the cost of each execution of a target, and prints the largest when the program ends.
#pragma once

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace shmtree::fuzz {

// Measures the CPU time of this thread and the growth of the process's resident memory, from construction to
// destruction. Aborts if they exceed SHMTREE_FUZZ_MAX_MS or SHMTREE_FUZZ_MAX_MIB, if these are set, so that libFuzzer
// keeps the input.
class Cost {
 public:
  Cost() : run_(Run::of_process()) {
    run_.reset_peak();
    before_kib_ = peak_kib();
    began_ns_ = cpu_ns();
  }
  ~Cost() {
    const std::int64_t took_ns = cpu_ns() - began_ns_;
    const std::int64_t rose_kib = peak_kib() - before_kib_;
    run_.worst_ns = std::max(run_.worst_ns, took_ns);
    run_.worst_kib = std::max(run_.worst_kib, rose_kib);
    if (rose_kib <= run_.max_kib && took_ns <= run_.max_ns) return;
    std::fprintf(stderr, "too costly: %.1f ms, %lld KiB\n", static_cast<double>(took_ns) / 1e6,
                 static_cast<long long>(rose_kib));
    std::abort();
  }
  Cost(const Cost&) = delete;
  Cost& operator=(const Cost&) = delete;

 private:
  struct Run {
    std::int64_t worst_ns = 0, worst_kib = 0;
    std::int64_t max_ns = limit("SHMTREE_FUZZ_MAX_MS", 1'000'000), max_kib = limit("SHMTREE_FUZZ_MAX_MIB", 1024);
    int peaks = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

    Run() {
      // With constant thresholds, freed large blocks go back to the system, so each allocation of one counts again.
      mallopt(M_MMAP_THRESHOLD, 128 << 10);
      mallopt(M_TRIM_THRESHOLD, 1 << 20);
      std::atexit([] {
        const Run& run = of_process();
        std::fprintf(stderr, "worst: %.1f ms, %lld KiB\n", static_cast<double>(run.worst_ns) / 1e6,
                     static_cast<long long>(run.worst_kib));
      });
    }
    void reset_peak() const noexcept {
      if (pwrite(peaks, "5", 1, 0) != 1) std::abort();
    }
    static Run& of_process() {
      static Run& run = *new Run;
      return run;
    }
    static std::int64_t limit(const char* name, std::int64_t unit) noexcept {
      const char* text = std::getenv(name);
      return text == nullptr ? INT64_MAX : std::atoll(text) * unit;
    }
  };

  static std::int64_t cpu_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  static std::int64_t peak_kib() noexcept {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
  }

  Run& run_;
  std::int64_t before_kib_ = 0, began_ns_ = 0;
};

}  // namespace shmtree::fuzz
