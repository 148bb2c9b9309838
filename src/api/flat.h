// How FlatItems are made, and what they lie in.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "shmtree/flat.h"
#include "value/codec.h"

namespace shmtree::detail {

struct FlatAccess {
  // `home` is the api::Received that the bytes lie in; null for a copy.
  static FlatItem make(std::shared_ptr<const void> hold, const void* home, std::span<const std::byte> bytes) noexcept {
    return {std::move(hold), home, bytes};
  }
  // Not one that was moved from, or never had any.
  static bool has_message(const FlatItem& item) noexcept { return item.hold_ != nullptr; }
  static const void* home(const FlatItem& item) noexcept { return item.home_; }
  // One that is the last of its message is given on. Who let go of another one before has read it: that is to be seen.
  static value::Origin origin(const FlatItem& item) noexcept {
    const value::Origin origin{.home = item.home_, .to_give = item.hold_.use_count() == 1};
    std::atomic_thread_fence(std::memory_order_acquire);
    return origin;
  }
};

}  // namespace shmtree::detail
