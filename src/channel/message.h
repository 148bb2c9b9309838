// Messages that are about to be put, and messages that were received.
//
// Thread safety: none for one object, except Unreturned.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "channel/layout.h"
#include "memory/arena.h"
#include "platform/fork.h"
#include "shmtree/base/result.h"

namespace shmtree::channel {

using memory::Arena;
using memory::BlockRef;
using memory::Lease;
using memory::OwnedBlock;

// A message to put: a frame of at most Channel::inline_bytes(), or one written to the beginning of a block.
struct Outgoing {
  std::span<const std::byte> inline_frame{};
  OwnedBlock block{};
  std::uint64_t bytes = 0;           // size of the frame in the block
  std::uint64_t referred_bytes = 0;  // size of the blocks that it refers to; Sending sets it

  // Size of the frame, size of the blocks that it refers to, and the sum, with which the message counts.
  std::uint64_t size() const noexcept { return block.valid() ? bytes : inline_frame.size(); }
  std::uint64_t referred() const noexcept { return block.valid() ? referred_bytes : 0; }
  std::uint64_t counted_bytes() const noexcept { return block.valid() ? bytes + referred_bytes : inline_frame.size(); }
};

// A received message. It pins its block until it is destroyed; adopt() makes an additional Lease.
class Incoming {
 public:
  Incoming() noexcept = default;
  Incoming(Incoming&& other) noexcept { *this = std::move(other); }
  Incoming& operator=(Incoming&& other) noexcept;
  ~Incoming() { drop(); }

  std::uint64_t ticket() const noexcept { return ticket_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // Number of times that the message was taken or received, including this one.
  std::uint32_t attempts() const noexcept { return attempts_; }
  bool redelivered() const noexcept { return attempts_ > 1; }
  // True if an earlier receiver had the message. That process may still have views of it.
  bool came_back() const noexcept { return came_back_; }
  // True if that participant received the message. In a forked child, the parent's messages still belong to the parent.
  bool was_received_by(Identity identity) const noexcept { return receiver_ == identity; }
  bool in_block() const noexcept { return block_.id.value != 0; }
  BlockRef block() const noexcept { return block_; }
  // Returns the frame: a private copy of an inline frame, or else pinned shared memory. Empty if the channel's memory
  // is damaged; a valid frame is never empty.
  std::span<const std::byte> frame() const noexcept {
    return {data_, data_ == nullptr ? 0 : static_cast<std::size_t>(bytes_)};
  }
  // Returns the arena of the pinned block, or null if there is none.
  const Arena* held_in() const noexcept { return arena_.get(); }
  Result<Lease> adopt();
  void drop() noexcept {
    if (const std::shared_ptr<Arena> arena = std::exchange(arena_, nullptr)) arena->holders().drop(block_);
  }
  // Counts one more receipt of the same object.
  void count_attempt() noexcept {
    failed_before_ = failed_builds();
    not_built_ = false;
    ++attempts_;
    came_back_ = true;
  }
  // Records that the receiver could not build the object: no memory, or SystemExit and the like from unpickling.
  // kMaxFailedBuilds limits how often this may happen.
  void set_not_built() noexcept { not_built_ = true; }
  // Records that the receiver has built the object.
  void set_built() noexcept {
    not_built_ = false;
    failed_before_ = 0;
  }
  // Returns the number of receivers in a row, including this one, that could not build the object.
  std::uint32_t failed_builds() const noexcept {
    return failed_before_ + (not_built_ && failed_before_ < kMaxFailedBuilds ? 1u : 0u);
  }
  // Writes the message to `slot` as it was in the ring.
  void write_to(RingSlot& slot) const noexcept;

 private:
  friend class RingHead;
  std::shared_ptr<Arena> arena_;  // set while this object pins the block
  const std::byte* data_ = nullptr;
  std::uint64_t ticket_ = 0;
  std::uint64_t bytes_ = 0;
  BlockRef block_{};
  Identity sender_ = memory::kNoIdentity;
  Identity receiver_ = memory::kNoIdentity;
  std::uint32_t attempts_ = 0;
  bool came_back_ = false;
  bool not_built_ = false;
  std::uint32_t failed_before_ = 0;  // failed builds of the receivers before this one
  std::byte inline_data_[kMaxInlineBytes];
};

// A received message that can be returned to the channel without allocating memory (Returns::give_back).
struct Received {
  Incoming message;
  std::unique_ptr<Received> next{};  // next message in a list of Unreturned
};

// Messages that this process received, and could neither build nor return to the channel (Returns). The lists are not
// in shared memory. A forked child inherits them, but the messages belong to the parent. Messages that are given up
// wait for memory for a record, and are not received again.
class Unreturned {
 public:
  explicit Unreturned(const Arena& arena) noexcept : arena_(arena) {}

  enum class Kind { kReceivable, kGivenUp };

  // Number of messages that can be received.
  std::uint64_t count() const noexcept { return count(Kind::kReceivable); }
  std::uint64_t count(Kind kind) const noexcept {
    const std::uint64_t count = list(kind).count.load(std::memory_order_relaxed);
    return count == 0 || owner_.load(std::memory_order_relaxed) != arena_.current_identity() ? 0 : count;
  }
  void add(std::unique_ptr<Received> received, Kind kind) noexcept;
  // Removes and returns the message with the lowest ticket. Null if there is none.
  std::unique_ptr<Received> take_first(Kind kind) noexcept;

 private:
  struct List {
    std::unique_ptr<Received> first;  // under mutex_; by ticket
    std::atomic<std::uint64_t> count{0};
  };
  List& list(Kind kind) noexcept { return kind == Kind::kReceivable ? receivable_ : given_up_; }
  const List& list(Kind kind) const noexcept { return kind == Kind::kReceivable ? receivable_ : given_up_; }

  const Arena& arena_;
  platform::ForkSafeMutex mutex_;
  List receivable_, given_up_;
  std::atomic<Identity> owner_{memory::kNoIdentity};
};

}  // namespace shmtree::channel
