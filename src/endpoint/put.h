// Puts a message into a channel: reserves memory, writes the frame there, and commits it. Each language supplies a
// class of messages with
//   bytes()     returns the size of the frame.
//   write(out)  writes the frame. Reads only memory that the message keeps, so it needs no interpreter lock.
//   blocks()    returns the blocks that the message refers to and holds, in the order of the references.
//   is_ours()   returns true if this process may give away what the message gives away; a child forked since may not.
//   carry(), gives_ends()   if it may have transfers (staging.h).
//   settle()    is called after the put: what the message gives away is given.
// Its destructor takes back what was not given away.
//
// User code may fork at any time before the put: code that encoding calls, or a signal handler while the call waits.
// Parent and child then both continue, but only the parent may give the memory away. So put() calls is_ours() after it
// has written the message to a block: only the process that wrote a block can put it into a channel.
//
// Thread safety: none for a message or a batch; any thread may use the channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "channel/channel.h"
#include "endpoint/staging.h"

namespace shmtree::endpoint {

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

// Collects small messages and puts them together, in order. Puts a large message by itself, after those before it.
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
