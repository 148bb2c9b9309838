// How FlatItems are made, and what they lie in; what loans are.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "api/state.h"
#include "memory/owned_block.h"
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

// A copy of the bytes.
FlatItem flat_copy(std::span<const std::byte> bytes);
// As all that is viewed is.
bool is_aligned(std::span<const std::byte> bytes) noexcept;
// The bytes in a message that is made of bytes, though it has a tree.
Result<std::span<const std::byte>> bytes_in(const Item& item);

// Written, and then put, by one process: in a forked child it is the parent's.
struct LoanedBlock {
  std::shared_ptr<memory::Arena> arena;
  memory::BlockKind kind;  // kMessage: a Sender's; kPublished: a Broadcast's
  memory::Identity writer = memory::kNobody;
  memory::OwnedBlock block{};
  memory::Lease held{};  // in place of `block`, after a put that failed
  std::uint64_t frame_bytes = 0;
};
Result<Lent> lend(const std::shared_ptr<memory::Arena>& arena, memory::BlockKind kind, std::size_t bytes,
                  const platform::WaitContext& wait);
// kInvalid: there is none, or it is not one that is put here.
Status check_loan(const LoanedBlock* lent, const std::shared_ptr<memory::Arena>& arena, memory::BlockKind kind);

}  // namespace shmtree::detail
