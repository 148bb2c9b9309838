// Waiting for several receivers, or subscribers.
#include <vector>

#include "api/broadcast_state.h"
#include "platform/wake_socket.h"

namespace shmtree {

namespace {

using api::ChannelState;
using api::SubscriberState;
using channel::End;

// Deaths, and a request to stop, are seen by looking only, which is done between slices.
constexpr std::int64_t kSliceNs = 100'000'000;

struct Look {
  std::vector<std::size_t> ready;
  std::vector<int> descriptors{};  // of the others

  Status watch(Result<int> fd) {
    if (!fd) return std::move(fd).error();
    descriptors.push_back(*fd);
    return success();
  }
};

// A receiver is in a call only as long as it is looked at, so that one that is closed meanwhile is let go of. What a
// get would say at once is worth waking up for, too.
Status look_at(ChannelState* state, std::size_t position, Look& look) {
  const api::Call call(*state);
  if (!state->is_closed()) memory::look_for_dead(*state->channel().arena(), kSliceNs);
  const bool can_wait = !state->is_closed() && state->attach_again(End::kReceiving).ok();
  if (!can_wait || state->has_deferred() || state->channel().ready()) {
    look.ready.push_back(position);
    return success();
  }
  // Again each time: that makes it unreadable where another receiver was quicker.
  return look.watch(state->channel().watchers().wake_fd(End::kReceiving));
}
Status look_at(SubscriberState* state, std::size_t position, Look& look) {
  const auto reader = state == nullptr ? nullptr : state->get();
  if (reader != nullptr) memory::look_for_dead(*reader->ring()->arena(), kSliceNs);
  if (reader == nullptr || state->has_deferred() || reader->ready()) {
    look.ready.push_back(position);
    return success();
  }
  auto fd = reader->fd();
  if (fd || fd.code() != Code::kClosed) return look.watch(std::move(fd));
  look.ready.push_back(position);  // since it was looked at
  return success();
}

template <class State>
Result<std::vector<std::size_t>> wait_for(std::span<State* const> states, platform::Deadline deadline,
                                          const std::stop_token& stop) {
  for (;;) {
    Look look;
    for (std::size_t i = 0; i < states.size(); ++i) {
      Status looked = look_at(states[i], i, look);
      if (!looked) return std::move(looked).error();
    }
    if (!look.ready.empty() || states.empty() || deadline.passed()) return std::move(look.ready);
    if (stop.stop_requested()) return Error{.code = Code::kInterrupted, .message = "wait() was asked to stop"};
    Status waited = platform::wait_readable(look.descriptors, deadline.remaining_ns(kSliceNs));
    if (!waited) return std::move(waited).error();
  }
}

}  // namespace

Result<std::vector<std::size_t>> wait(std::span<const Receiver> receivers, Timeout timeout,
                                      const std::stop_token& stop) {
  return or_out_of_memory([&] {
    std::vector<ChannelState*> states;
    for (const Receiver& receiver : receivers) states.push_back(&*receiver.state_);
    return wait_for<ChannelState>(states, platform::Deadline::after(timeout), stop);
  });
}

Result<std::vector<std::size_t>> api::wait_for(std::span<const Subscriber> subscribers, Timeout timeout,
                                               const std::stop_token& stop) {
  return or_out_of_memory([&] {
    std::vector<SubscriberState*> states;
    for (const Subscriber& subscriber : subscribers) states.push_back(subscriber.state_.get());
    return shmtree::wait_for<SubscriberState>(states, platform::Deadline::after(timeout), stop);
  });
}

}  // namespace shmtree
