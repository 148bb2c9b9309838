// Puts a message into a channel: reserves memory, writes the frame there, and commits it. Also writes messages to
// memory for a Latest or a Broadcast. Each language supplies a class of messages with
//   bytes()     returns the size of the frame.
//   write(out)  writes the frame. Reads only memory that the message keeps, so it needs no interpreter lock.
//   blocks()    returns the blocks that the message refers to and holds, in the order of the references.
//   is_ours()   returns true if this process may give away what the message gives away; a child forked since may not.
//   carry(), gives_ends()   if it may have transfers (HasTransfers).
//   settle()    is called after the put: from then on, the memory that the message gives away belongs to the receivers.
// The destructor of the message takes back memory that was not given away.
//
// User code may fork at any time before the put: code that the encoder calls, or a signal handler that runs while the
// call waits. Parent and child then both continue the call, but only the parent may give the memory away. So put()
// calls is_ours() after it has written the message to a block: only the process that wrote a block can put it into a
// channel.
//
// Thread safety: none for a message or a batch; any thread may use the channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "channel/channel.h"
#include "platform/copy.h"

namespace shmtree::endpoint {

// Memory for a small frame, from which put() copies it into the ring.
struct InlineFrame {
  alignas(64) std::byte bytes[channel::kMaxInlineBytes];
};

// Returns the size of a block that holds a frame and, at its end, the list of the blocks that the frame refers to.
std::uint64_t block_bytes(std::uint64_t frame_bytes, std::size_t referred) noexcept;
// Commits the pages of a cold block in one call, if the frame of `bytes` is large.
void make_pages(const memory::OwnedBlock& block, std::uint64_t bytes) noexcept;
// Writes the list of blocks behind the frame. kInvalid: more than kMaxReferences.
Status write_references(std::span<const memory::BlockRef> referred, memory::Arena& arena, memory::OwnedBlock& block,
                        const platform::WaitContext& wait);

// True for message classes that may transfer ends or memory (message_transfers.h). Such a class has
//   gives_ends()   returns true if the message has a transfer.
//   carry(arena, block)   is called once the message is written to that block.
template <class Message>
concept HasTransfers = requires(Message& message, memory::Arena& arena) {
  message.carry(arena, memory::BlockRef{});
};

// Returns true if the message can go without a block where frames of `inline_bytes` fit. A message with transfers has a
// block, since they end when the block is freed.
template <class Message>
bool fits_inline(Message& message, std::uint64_t inline_bytes) noexcept {
  if constexpr (HasTransfers<Message>) {
    if (message.gives_ends()) [[unlikely]]
      return false;
  }
  return message.bytes() <= inline_bytes && message.blocks().empty();
}

// Writes the message to a block of at least block_bytes(). Releases the interpreter lock (`wait.hooks`) for frames
// above 64 KiB.
template <class Message>
Status write_block(Message& message, memory::Arena& arena, memory::OwnedBlock& block,
                   const platform::WaitContext& wait) {
  const std::uint64_t bytes = message.bytes();
  {
    const platform::BlockingScope released(bytes > platform::kLongCopyBytes ? wait.hooks : nullptr);
    make_pages(block, bytes);
    message.write(block.data());
  }
  if constexpr (HasTransfers<Message>) message.carry(arena, block.ref());
  return message.blocks().empty() ? success() : write_references(message.blocks(), arena, block, wait);
}

// Prepares `out` for Sending::put(): writes a small message to `scratch`, which must live until the put, and any other
// message to a block that it reserves. Errors: those of Sending::reserve() and write_references(); kFull also if a
// stopped process holds the arena's lock.
template <class Message>
[[gnu::always_inline]] inline Status stage(Message& message, channel::Channel& channel, InlineFrame& scratch,
                                           channel::Outgoing& out, const platform::WaitContext& wait) {
  const std::uint64_t bytes = message.bytes();
  if (fits_inline(message, channel.inline_bytes())) {
    message.write(scratch.bytes);
    out.block.abandon();
    out.inline_frame = {scratch.bytes, static_cast<std::size_t>(bytes)};
    return success();
  }
  auto block = channel.sending().reserve(block_bytes(bytes, message.blocks().size()), wait);
  if (!block) return std::move(block).error();
  Status written = write_block(message, *channel.arena(), *block, wait);
  if (!written) return channel::in_time(std::move(written).error(), Code::kFull);
  out.block = std::move(*block);
  out.bytes = bytes;
  return success();
}

// Writes the message to a new block that a Latest, or a Broadcast, may name. Errors: those of Allocator::allocate() and
// write_references(); kTimeout, not kFull as in stage(), if a stopped process holds the arena's lock.
template <class Message>
Result<memory::OwnedBlock> stage_published(Message& message, memory::Arena& arena, const platform::WaitContext& wait) {
  auto block =
      arena.allocate(block_bytes(message.bytes(), message.blocks().size()), memory::BlockKind::kPublished, wait);
  if (!block) return std::move(block).error();
  Status written = write_block(message, arena, *block, wait);
  if (!written) return std::move(written).error();
  return block;
}

// Returns the error for a message for which is_ours() is false.
inline Error not_ours() {
  return Error{Code::kInvalid,
               "this process was forked while its parent put a message that gives arrays away: the parent puts "
               "it, and the child has put nothing"};
}

// Returns the ticket. Errors: those of stage() and Sending::put(), and not_ours(); after an error nothing was put.
// Always inlined: programs spend their time here.
template <class Message>
[[gnu::always_inline]] inline Result<std::uint64_t> put(channel::Channel& channel, Message&& message,
                                                        const platform::WaitContext& wait) {
  InlineFrame scratch;
  channel::Outgoing outgoing;
  Status staged = stage(message, channel, scratch, outgoing, wait);
  if (!staged) return std::move(staged).error();
  if (outgoing.block.valid() && !message.is_ours()) [[unlikely]]
    return not_ours();
  auto ticket = channel.sending().put(outgoing, wait);
  if (ticket) message.settle();
  return ticket;
}

// Collects small messages and puts them together, in order. Puts a large message by itself, after the collected ones.
class Batch {
 public:
  Batch(channel::Channel& channel, const platform::WaitContext& wait) noexcept : channel_(channel), wait_(wait) {}

  // `alone`: puts the message before this returns, because it does not outlive the call. If the put of earlier messages
  // fails, returns that error and does not add this one.
  template <class Message>
  Status add(Message&& message, bool alone) {
    const bool small = fits_inline(message, channel_.inline_bytes()) && !alone;
    if (!small) {
      Status before = flush();
      if (!before) return before;
    }
    Status staged = stage(message, channel_, scratch_[waiting_], out_[waiting_], wait_);
    if (!staged) return staged;
    if (!small && !message.is_ours()) return not_ours();
    ++waiting_;
    if (small) return waiting_ < kMax ? success() : flush();
    Status went = flush();
    if (went) message.settle();
    return went;
  }
  // Puts all collected messages. After an error, drops those that were not put.
  Status flush() {
    if (waiting_ == 0) return success();
    const std::size_t count = std::exchange(waiting_, 0);
    Status went = channel_.sending().put_many({out_, count}, wait_);
    sent_ += went ? count : went.error().completed;
    return went;
  }
  std::uint64_t sent() const noexcept { return sent_; }

 private:
  static constexpr std::size_t kMax = 32;
  channel::Channel& channel_;
  platform::WaitContext wait_;
  std::uint64_t sent_ = 0;
  std::size_t waiting_ = 0;
  channel::Outgoing out_[kMax];
  InlineFrame scratch_[kMax];
};

}  // namespace shmtree::endpoint
