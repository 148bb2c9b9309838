// Conditions that end the waits of a call before its deadline. A thread that closes an end, or requests a stop, wakes
// all waiters of the channel. Each waiter then checks its condition.
//
// Thread safety: the waits of several threads may use the same object.
#pragma once

#include <stop_token>
#include <utility>

#include "endpoint/port.h"
#include "platform/waiting.h"

namespace shmtree::endpoint {

// Base of the conditions. Does nothing around blocking calls.
class UntilDone : public platform::WaitHooks {
 public:
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept final { return ended(); }
};

// The end was closed, by any thread.
class UntilClosed : public UntilDone {
 public:
  UntilClosed(const Port& port, channel::End end) noexcept : port_(port), end_(end) {}
  bool ended() const noexcept override { return port_.closed(end_); }

 private:
  const Port& port_;
  channel::End end_;
};

// Ends waits for acks when this process has no end of the channel any more.
class UntilLeft : public UntilDone {
 public:
  explicit UntilLeft(channel::Channel& channel) noexcept : channel_(channel) {}
  bool ended() const noexcept override { return !channel_.membership().is_used_here(); }

 protected:
  channel::Channel& channel_;
};

// Ends waits for tasks when neither this process nor another one has the queue, so that no process can complete the
// tasks.
class UntilAlone : public UntilLeft {
 public:
  using UntilLeft::UntilLeft;
  bool ended() const noexcept override { return UntilLeft::ended() && !channel_.ends().has_users_at_either(); }
};

// Returns kInterrupted if a stop was requested before the call began.
inline Status check_stop(const std::stop_token& stop) {
  if (!stop.stop_requested()) [[likely]]
    return success();
  return Error{.code = Code::kInterrupted, .message = "a stop was requested through the stop_token before the call"};
}

// Adds a stop request to a condition. `channel` has the waiters, and must outlive this object. Null: the waiters are at
// an arena, and the request does not wake them.
template <class Until>
class OrStopped final : public Until {
 public:
  template <class... Arguments>
  OrStopped(const std::stop_token& stop, channel::Channel* channel, Arguments&&... arguments) noexcept
      : Until(std::forward<Arguments>(arguments)...), stop_(stop), wake_(stop, Wake{channel}) {}
  bool ended() const noexcept override { return stop_.stop_requested() || Until::ended(); }

 private:
  struct Wake {
    channel::Channel* channel;
    void operator()() const noexcept {
      if (channel != nullptr) channel->watchers().wake_all();
    }
  };
  const std::stop_token& stop_;
  std::stop_callback<Wake> wake_;
};

}  // namespace shmtree::endpoint
