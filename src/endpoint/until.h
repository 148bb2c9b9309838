// What ends the waits of a call besides its deadline. Who closes an end, or asks to stop, wakes all that wait at the
// channel; the woken look here.
//
// Thread safety: one of these may be used by the waits of several threads at once.
#pragma once

#include <stop_token>
#include <utility>

#include "endpoint/port.h"
#include "platform/waiting.h"

namespace shmtree::endpoint {

// Nothing else does.
class UntilDone : public platform::WaitHooks {
 public:
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept final { return ended(); }
};

// The closing of the end, by any thread.
class UntilClosed : public UntilDone {
 public:
  UntilClosed(const Port& port, channel::End end) noexcept : port_(port), end_(end) {}
  bool ended() const noexcept override { return port_.closed(end_); }

 private:
  const Port& port_;
  channel::End end_;
};

// For acknowledgements, which are waited for as long as this process has some end of the channel.
class UntilLeft : public UntilDone {
 public:
  explicit UntilLeft(channel::Channel& channel) noexcept : channel_(channel) {}
  bool ended() const noexcept override { return !channel_.membership().is_used_here(); }

 protected:
  channel::Channel& channel_;
};

// For tasks, which others may deal with as long as they have the queue.
class UntilAlone : public UntilLeft {
 public:
  using UntilLeft::UntilLeft;
  bool ended() const noexcept override { return UntilLeft::ended() && !channel_.ends().anyone_at_either(); }
};

// kInterrupted if a stop was requested before the call began.
inline Status check_stop(const std::stop_token& stop) {
  if (!stop.stop_requested()) [[likely]]
    return success();
  return Error{.code = Code::kInterrupted, .message = "a stop was requested through the stop_token before the call"};
}

// A request to stop, too. `channel`, which must be there as long as this is, has the waits; null for those at an arena.
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
