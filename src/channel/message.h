// Messages on their way into a channel and out of it.
//
// Thread safety: none of these may be used by two threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "channel/layout.h"
#include "memory/arena.h"
#include "platform/waiting.h"
#include "shmtree/result.h"

namespace shmtree::channel {

using memory::Arena;
using memory::BlockRef;
using memory::Lease;
using memory::OwnedBlock;
using platform::WaitContext;

// A message to put: a frame of at most Channel::inline_bytes(), or one written to the beginning of a block.
struct Outgoing {
  std::span<const std::byte> inline_frame{};
  OwnedBlock block{};
  std::uint64_t bytes = 0;  // of the frame in the block

  std::uint64_t size() const noexcept { return block.valid() ? bytes : inline_frame.size(); }
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
  // Whether `who` received it: in a forked child what its parent received is the parent's.
  bool was_received_by(Identity who) const noexcept { return receiver_ == who; }
  bool in_block() const noexcept { return block_.id.value != 0; }
  BlockRef block() const noexcept { return block_; }
  // The frame: a private copy when it came inline, else shared memory that is held. Empty when the channel's memory was
  // damaged: a frame of no bytes is never valid.
  std::span<const std::byte> frame() const noexcept;
  Result<Lease> adopt();
  void drop() noexcept;

 private:
  friend class Channel;
  friend class Delivery;
  std::shared_ptr<Arena> arena_;  // set while the hold is ours
  const std::byte* data_ = nullptr;
  std::uint64_t ticket_ = 0;
  std::uint64_t bytes_ = 0;
  BlockRef block_{};
  Identity sender_ = memory::kNobody;
  Identity receiver_ = memory::kNobody;
  std::uint32_t attempts_ = 0;
  std::byte inline_data_[kMostInlineBytes];
};

// What those receive into who may have to give it back: Channel::give_back() needs no memory then.
struct Received {
  Incoming message;
  std::unique_ptr<Received> next{};  // of those that the channel keeps here
};

class Channel;

// A message taken. Goes back to the channel unless it is acknowledged: at nack(), at the end of the object, or when the
// process dies. It is rejected then if its attempts are used up, or if it was rejected before. requeue() gives it back
// as if it had never been taken. Code::kInvalid when it was settled already, or by a forked child, which has no part in
// it.
class Delivery {
 public:
  Delivery() noexcept = default;
  Delivery(Delivery&& other) noexcept { *this = std::move(other); }
  Delivery& operator=(Delivery&& other) noexcept;
  ~Delivery();

  Incoming& message() noexcept { return message_; }
  bool settled() const noexcept { return channel_ == nullptr; }
  // Not in a forked child, which does not hold the message, settled or not.
  bool is_of_this_process() const noexcept;
  Status ack(const WaitContext& wait) { return settle(Settling::kAck, wait); }
  Status nack(const WaitContext& wait) { return settle(Settling::kNack, wait); }
  Status requeue(const WaitContext& wait) { return settle(Settling::kRequeue, wait); }

 private:
  friend class Channel;
  enum class Settling { kAck, kNack, kRequeue };
  Status settle(Settling how, const WaitContext& wait);
  std::uint64_t word_after(Settling how) const noexcept;
  void give_up() noexcept;
  std::shared_ptr<Channel> channel_;
  Record* record_ = nullptr;
  std::uint64_t word_ = 0;  // the record's, while the message is ours
  Incoming message_;
};

}  // namespace shmtree::channel
