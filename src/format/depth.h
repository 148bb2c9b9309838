// Tracks the depth of a walk over a frame or a value, and limits it by the stack of the thread.
#pragma once

#include <algorithm>
#include <cstddef>

#include "platform/dcheck.h"
#include "platform/stack.h"
#include "shmtree/base/kind.h"

namespace shmtree::format {

// Measures the stack once every few levels, and only when the walk is deeper than ever before. So a walk over a flat
// message never measures it.
class Depth {
 public:
  enum class Why { kTooDeep, kNoStack };

  // Call leave() once for each call that returned true.
  bool enter() noexcept { return enter_measured() || enter_deeper(); }
  // Fast path of enter(): succeeds only within the depth that was already measured. If it returns false, call enter().
  bool enter_measured() noexcept { return level_ < allowed_ ? (++level_, true) : false; }
  void leave() noexcept {
    SHMTREE_DCHECK(level_ != 0);
    --level_;
  }
  void back_to(std::size_t level) noexcept {
    SHMTREE_DCHECK(level <= level_);
    level_ = level;
  }
  std::size_t level() const noexcept { return level_; }
  // Reason for which the last enter() returned false.
  Why why() const noexcept { return level_ < kMaxDepth ? Why::kNoStack : Why::kTooDeep; }

 private:
  // Upper bound of the stack that one level needs, including its Python calls. In builds without optimisation, a level
  // of a walk takes 3 KiB.
  static constexpr std::size_t kLevelBytes = 4096;
  // Stack that is left for the calls on the deepest level, such as Python functions and destructors.
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
