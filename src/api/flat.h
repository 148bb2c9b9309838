// Makes FlatItems and loans, and reads the origin of a FlatItem's bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "api/state.h"
#include "memory/reclaimer.h"
#include "shmtree/flat.h"
#include "value/codec.h"

namespace shmtree::detail {

struct FlatAccess {
  // `home` is the api::Received that has the bytes; null for a copy.
  static FlatItem make(std::shared_ptr<const void> hold, const void* home, std::span<const std::byte> bytes) noexcept {
    return {std::move(hold), home, bytes};
  }
  // False if the item was moved from or never had a message.
  static bool has_message(const FlatItem& item) noexcept { return item.hold_ != nullptr; }
  static const void* home(const FlatItem& item) noexcept { return item.home_; }
  // Returns true if the bytes may be given away, because this is the last FlatItem of its message. The acquire fence
  // orders the check after the reads of threads that released other FlatItems of the message.
  static value::Origin origin(const FlatItem& item) noexcept {
    const value::Origin origin{.home = item.home_, .to_give = item.hold_.use_count() == 1};
    std::atomic_thread_fence(std::memory_order_acquire);
    return origin;
  }
};

// Returns a copy of the bytes.
FlatItem flat_copy(std::span<const std::byte> bytes);
// True if the bytes are aligned like buffers of a frame, as viewed bytes must be.
bool is_aligned(std::span<const std::byte> bytes) noexcept;
// Returns the bytes of a message that has a tree but consists of bytes, bytearray or an array of uint8.
Result<std::span<const std::byte>> bytes_in(const Item& item);

// The memory of a loan. Only the process that allocated it may put it; a forked child may not.
struct LoanedBlock {
  std::shared_ptr<memory::Arena> arena;
  memory::BlockKind kind;  // kMessage: of a Sender; kPublished: of a Broadcast.
  memory::Identity writer = memory::kNoIdentity;
  memory::OwnedBlock block{};
  memory::Lease held{};  // Holds the memory instead of `block` after a put that failed.
  std::uint64_t frame_bytes = 0;
};
Result<Lent> lend(const std::shared_ptr<memory::Arena>& arena, memory::BlockKind kind, std::size_t bytes,
                  const platform::WaitContext& wait);
// Returns kInvalid if there is no loan, or if the loan cannot be put into this object.
Status check_loan(const LoanedBlock* lent, const std::shared_ptr<memory::Arena>& arena, memory::BlockKind kind);

}  // namespace shmtree::detail
