#include "replay/files/progress.h"

#include <algorithm>
#include <stdexcept>

#include "platform/clock.h"
#include "platform/machine.h"

namespace shmtree::replay {

namespace {

constexpr std::int64_t kIntervalNs = 50'000'000;

}  // namespace

void ProgressMeter::expect(std::uint64_t bytes) {
  total_ += bytes;
  if (is_on() && next_ns_ == 0) report();
}

void ProgressMeter::count(std::uint64_t bytes) {
  done_ = std::min(done_ + bytes, total_);
  if (platform::monotonic_ns() >= next_ns_) report();
}

void ProgressMeter::finish() {
  done_ = total_;
  if (is_on()) report();
}

// A child that the hook forks has the parent's descriptors, so it must not continue with the files.
void ProgressMeter::report() {
  const int process = platform::process_id();
  hook_(done_, total_);
  if (platform::process_id() != process) throw std::runtime_error("progress forked; only the parent continues");
  next_ns_ = platform::monotonic_ns() + kIntervalNs;  // after the call, so that a slow hook does not slow each piece
}

}  // namespace shmtree::replay
