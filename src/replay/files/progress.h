// Reports how far a save or load is, to a function of the program.
#pragma once

#include <cstdint>
#include <functional>

namespace shmtree::replay {

// Gets the bytes done and the bytes in total. If it throws, the save or load ends, and the exception reaches its
// caller. In a child that the hook forks, the save or load throws std::runtime_error.
using ProgressHook = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Counts bytes, and calls the hook at the start, at most every 50 ms, and at the end. Without a hook, it does nothing.
//
// Invariants: `done` and `total` never decrease, and `done` is at most `total`.
//
// Thread safety: one thread at a time.
class ProgressMeter {
 public:
  // `hook` must outlive the meter.
  explicit ProgressMeter(const ProgressHook& hook) noexcept : hook_(hook) {}

  bool is_on() const noexcept { return static_cast<bool>(hook_); }
  // Adds bytes that are to be written or read. The first call reports that nothing is done yet.
  void expect(std::uint64_t bytes);
  // Adds bytes that are done.
  void add(std::uint64_t bytes) {
    if (is_on()) [[unlikely]]
      count(bytes);
  }
  // Reports that all bytes are done.
  void finish();

 private:
  void count(std::uint64_t bytes);
  void report();

  const ProgressHook& hook_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  std::int64_t next_ns_ = 0;  // time of the next report; 0: there was none
};

}  // namespace shmtree::replay
