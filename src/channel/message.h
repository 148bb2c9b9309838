// Messages on their way into a channel and out of it.
//
// Thread safety: none of these may be used by two threads at once, but Unreturned.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "channel/control.h"
#include "platform/fork.h"
#include "shmtree/result.h"

namespace shmtree::channel {

// A message to put: a frame of at most Channel::inline_bytes(), or one written to the beginning of a block.
struct Outgoing {
  std::span<const std::byte> inline_frame{};
  OwnedBlock block{};
  std::uint64_t bytes = 0;           // of the frame in the block
  std::uint64_t referred_bytes = 0;  // of what the block refers to, for Sending to find out

  // Of the frame; of what it refers to; and what it counts with, which is both.
  std::uint64_t size() const noexcept { return block.valid() ? bytes : inline_frame.size(); }
  std::uint64_t referred() const noexcept { return block.valid() ? referred_bytes : 0; }
  std::uint64_t counted_bytes() const noexcept { return block.valid() ? bytes + referred_bytes : inline_frame.size(); }
};

// A message received. Its block is held until this object goes; adopt() makes a Lease besides.
class Incoming {
 public:
  Incoming() noexcept = default;
  Incoming(Incoming&& other) noexcept { *this = std::move(other); }
  Incoming& operator=(Incoming&& other) noexcept;
  ~Incoming() { drop(); }

  std::uint64_t ticket() const noexcept { return ticket_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  // How often it was taken or received, this time included.
  std::uint32_t attempts() const noexcept { return attempts_; }
  bool redelivered() const noexcept { return attempts_ > 1; }
  // Whether it was with somebody before, who may still have views of it.
  bool came_back() const noexcept { return came_back_; }
  // Whether `who` received it: in a forked child what its parent received is the parent's.
  bool was_received_by(Identity who) const noexcept { return receiver_ == who; }
  bool in_block() const noexcept { return block_.id.value != 0; }
  BlockRef block() const noexcept { return block_; }
  // The frame: a private copy when it came inline, else shared memory that is held. Empty when the channel's memory was
  // damaged: a frame of no bytes is never valid.
  std::span<const std::byte> frame() const noexcept {
    return {data_, data_ == nullptr ? 0 : static_cast<std::size_t>(bytes_)};
  }
  // The arena that its block is held in; null when it holds none.
  const Arena* held_in() const noexcept { return arena_.get(); }
  Result<Lease> adopt();
  void drop() noexcept {
    if (const std::shared_ptr<Arena> arena = std::exchange(arena_, nullptr)) arena->holders().drop(block_);
  }
  // It is received once more, in the same place.
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
  // Returns how many receivers in a row, this one included, had no memory to build the object.
  std::uint32_t failed_builds() const noexcept {
    return failed_before_ + (not_built_ && failed_before_ < kMaxFailedBuilds ? 1u : 0u);
  }
  // As it was in the ring.
  void write_to(RingSlot& slot) const noexcept;

 private:
  friend class RingHead;
  std::shared_ptr<Arena> arena_;  // set while the hold is ours
  const std::byte* data_ = nullptr;
  std::uint64_t ticket_ = 0;
  std::uint64_t bytes_ = 0;
  BlockRef block_{};
  Identity sender_ = memory::kNobody;
  Identity receiver_ = memory::kNobody;
  std::uint32_t attempts_ = 0;
  bool came_back_ = false;
  bool not_built_ = false;
  std::uint32_t failed_before_ = 0;  // failed builds of the receivers before this one
  std::byte inline_data_[kMostInlineBytes];
};

// What those receive into who may have to give it back: Returns::give_back() needs no memory then.
struct Received {
  Incoming message;
  std::unique_ptr<Received> next{};  // of those that the process keeps
};

// Messages that this process has received, and could neither build nor return to the channel (Returns). They are not in
// shared memory: a forked child inherits the lists, but the messages belong to the parent. Messages that are given up
// wait for memory for a record, and are not received again.
//
// Thread safety: any thread.
class Unreturned {
 public:
  explicit Unreturned(const Control& control) noexcept : control_(control) {}

  enum class Kind { kReceivable, kGivenUp };

  // Number of messages that can be received.
  std::uint64_t count() const noexcept { return count(Kind::kReceivable); }
  std::uint64_t count(Kind kind) const noexcept {
    const std::uint64_t count = list(kind).count.load(std::memory_order_relaxed);
    return count == 0 || owner_.load(std::memory_order_relaxed) != control_.arena.current_identity() ? 0 : count;
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

  const Control control_;
  platform::ForkSafeMutex mutex_;
  List receivable_, given_up_;
  std::atomic<Identity> owner_{memory::kNobody};
};

}  // namespace shmtree::channel
