// Implements wait() for several receivers or subscribers.
#include <vector>

#include "api/broadcast_state.h"
#include "platform/wake_pipe.h"

namespace shmtree {

namespace {

using api::ChannelState;
using api::SubscriberState;
using channel::End;

// Deaths and stop requests wake no waiter, so wait() checks for them after each slice.
constexpr std::int64_t kSliceNs = 100'000'000;

struct Look {
  std::vector<std::size_t> ready;
  std::vector<int> descriptors{};  // Descriptors of the receivers that are not ready.

  Status watch(Result<int> fd) {
    if (!fd) return std::move(fd).error();
    descriptors.push_back(*fd);
    return success();
  }
};

void close_descriptor(ChannelState* state) noexcept {
  const api::Call call(*state);
  if (!state->is_closed()) state->channel().watchers().close_wake_fd(End::kReceiving);
}
void close_descriptor(SubscriberState* state) noexcept {
  if (const auto reader = state == nullptr ? nullptr : state->part()) reader->close_fd();
}

// The descriptors that one call of wait() has opened. They stay open for the next call, unless this call fails.
template <class State>
class Opened {
 public:
  explicit Opened(std::span<State* const> states) : states_(states), opened_(states.size()) {}
  ~Opened() {
    if (is_kept_) return;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (opened_[i]) close_descriptor(states_[i]);
    }
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  void add(std::size_t position) noexcept { opened_[position] = true; }
  void keep() noexcept { is_kept_ = true; }

 private:
  std::span<State* const> states_;
  std::vector<bool> opened_;
  bool is_kept_ = false;
};

// Holds a Call only during the check, so that a receiver that is closed meanwhile can leave the channel. An error that
// get() would return at once counts as ready.
Status look_at(ChannelState* state, std::size_t position, Look& look, Opened<ChannelState>& opened) {
  const api::Call call(*state);
  if (!state->is_closed()) memory::poll_for_deaths(*state->channel().arena(), kSliceNs);
  const bool can_wait = !state->is_closed() && state->attach_again(End::kReceiving).ok();
  if (!can_wait || state->has_deferred() || state->channel().ready()) {
    look.ready.push_back(position);
    return success();
  }
  // Requests the descriptor each time, since the request also makes it unreadable if another receiver has taken the
  // message.
  bool is_new = false;
  auto fd = state->channel().watchers().wake_fd(End::kReceiving, &is_new);
  if (is_new) opened.add(position);
  return look.watch(std::move(fd));
}
Status look_at(SubscriberState* state, std::size_t position, Look& look, Opened<SubscriberState>& opened) {
  const auto reader = state == nullptr ? nullptr : state->part();
  if (reader != nullptr) memory::poll_for_deaths(*reader->ring()->arena(), kSliceNs);
  if (reader == nullptr || state->has_deferred() || reader->ready()) {
    look.ready.push_back(position);
    return success();
  }
  bool is_new = false;
  auto fd = reader->fd(&is_new);
  if (is_new) opened.add(position);
  if (fd || fd.code() != Code::kClosed) return look.watch(std::move(fd));
  look.ready.push_back(position);  // Closed since the check above.
  return success();
}

template <class State>
Result<std::vector<std::size_t>> wait_for(std::span<State* const> states, platform::Deadline deadline,
                                          const std::stop_token& stop) {
  Status goes_on = endpoint::check_stop(stop);
  if (!goes_on) return std::move(goes_on).error();
  Opened opened(states);
  for (;;) {
    Look look;
    for (std::size_t i = 0; i < states.size(); ++i) {
      Status looked = look_at(states[i], i, look, opened);
      if (!looked) return std::move(looked).error();
    }
    if (!look.ready.empty() || states.empty() || deadline.passed()) {
      opened.keep();
      return std::move(look.ready);
    }
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
