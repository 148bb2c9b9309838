// Putting, as it is in every language: reserve memory, write the message there, commit it. What a language adds is its
// messages. A message has
//   bytes()     of its frame
//   write(out)  writes the frame; touches nothing but its sources and `out`, so no interpreter lock is needed
//   blocks()    the blocks that it refers to, in the order of the references; it holds them
//   is_ours()   whether what it gives away is this process's to give: not in a child that was forked since it began
//   settle()    it was put: what it gives away is given
// and takes back what it would have given when it goes without that.
//
// A child may be forked at any time before a message was put: in code of the user's that encoding runs, in a signal
// handler while the call waits. Then parent and child go on with it, and what it gives away only the parent has to
// give. So is_ours() is asked once the message is in a block: that has a writer, and goes into a channel only by it.
//
// Thread safety: none for a message or a batch; channels are anybody's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "channel/channel.h"
#include "endpoint/transfer.h"

namespace shmtree::endpoint {

// Of a message that is not ours.
inline Error not_ours() {
  return Error{Code::kInvalid,
               "this message gives away arrays of the process that forked while it was put: it is the "
               "parent's, and nothing was put by the child"};
}

// The ticket. Errors as of stage() and Sending::put(); nothing was put then. A part of each language's put(), which is
// what programs spend their time in.
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

// Small messages that are put together, in order; a large one when all before it have been.
class Batch {
 public:
  Batch(channel::Channel& channel, const platform::WaitContext& wait) noexcept : channel_(channel), wait_(wait) {}

  // `alone`: the message has to be there until it was put. What was added before may fail here, and then this is not
  // added.
  template <class Message>
  Status add(Message&& message, bool alone) {
    const bool small = message.bytes() <= channel_.inline_bytes() && message.blocks().empty() && !alone;
    if (!small) {
      Status before = flush();
      if (!before) return before;
    }
    Status staged = stage(message, channel_, scratch_[waiting_], out_[waiting_], wait_);
    if (!staged) return staged;
    if (!small && !message.is_ours()) return not_ours();
    ++waiting_;
    if (small) return waiting_ < kMost ? success() : flush();
    Status went = flush();
    if (went) message.settle();
    return went;
  }
  // From the return on nothing waits any more: what did not go never does.
  Status flush() {
    if (waiting_ == 0) return success();
    const std::size_t count = std::exchange(waiting_, 0);
    Status went = channel_.sending().put_many({out_, count}, wait_);
    sent_ += went ? count : went.error().completed;
    return went;
  }
  std::uint64_t sent() const noexcept { return sent_; }

 private:
  static constexpr std::size_t kMost = 32;
  channel::Channel& channel_;
  platform::WaitContext wait_;
  std::uint64_t sent_ = 0;
  std::size_t waiting_ = 0;
  channel::Outgoing out_[kMost];
  InlineFrame scratch_[kMost];
};

}  // namespace shmtree::endpoint
