// How deep a walk over a frame or a value has come, and whether the thread's stack allows for more.
#pragma once

#include <algorithm>
#include <cstddef>

#include "platform/stack.h"
#include "shmtree/kind.h"

namespace shmtree::format {

// The stack is measured every few levels, and only on the way down to a level that no earlier part of this walk has
// reached; so flat messages never ask.
class Depth {
 public:
  enum class Why { kTooDeep, kNoStack };

  // Each true needs one leave().
  bool enter() noexcept { return level_ < allowed_ ? (++level_, true) : enter_deeper(); }
  void leave() noexcept { --level_; }
  void back_to(std::size_t level) noexcept { level_ = level; }
  std::size_t level() const noexcept { return level_; }
  // After an enter() that was false.
  Why why() const noexcept { return level_ < kMaxDepth ? Why::kNoStack : Why::kTooDeep; }

 private:
  // The most that one level takes, with the Python calls of it: walks of builds without optimisation take 3 KiB.
  static constexpr std::size_t kLevelBytes = 4096;
  // For what is called on the lowest level: functions of Python, destructors.
  static constexpr std::size_t kReserveBytes = 20 << 10;
  static constexpr std::size_t kLevelsAtOnce = 4;

  [[gnu::noinline, gnu::cold]] bool enter_deeper() noexcept {
    if (level_ >= kMaxDepth || !platform::has_stack(kReserveBytes + kLevelsAtOnce * kLevelBytes)) return false;
    allowed_ = std::min(level_ + kLevelsAtOnce, kMaxDepth);
    ++level_;
    return true;
  }

  std::size_t level_ = 0;
  std::size_t allowed_ = 4;
};

}  // namespace shmtree::format
