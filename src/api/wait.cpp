// Waiting for several receivers.
#include <vector>

#include "api/state.h"
#include "platform/wake_socket.h"

namespace shmtree {

namespace {

using api::ChannelState;
using channel::End;

// Deaths, and a request to stop, are seen by looking only, which is done between slices.
constexpr std::int64_t kSliceNs = 100'000'000;

struct Look {
  std::vector<std::size_t> ready;
  std::vector<int> descriptors;  // of the others
};

// A receiver is in a call only as long as it is looked at, so that one that is closed meanwhile is let go of. What a
// get would say at once is worth waking up for, too.
Result<Look> look_at(std::span<ChannelState* const> states) {
  Look look;
  for (std::size_t i = 0; i < states.size(); ++i) {
    ChannelState& state = *states[i];
    const api::Call call(state);
    if (!state.is_closed()) memory::look_for_dead(*state.channel().arena(), kSliceNs);
    if (state.is_closed() || state.has_deferred.load(std::memory_order_relaxed) || state.channel().ready()) {
      look.ready.push_back(i);
      continue;
    }
    // Again each time: that makes it unreadable where another receiver was quicker.
    auto fd = state.channel().watchers().wake_fd(End::kReceiving);
    if (!fd) return std::move(fd).error();
    look.descriptors.push_back(*fd);
  }
  return look;
}

Result<std::vector<std::size_t>> wait_for(std::span<ChannelState* const> states, platform::Deadline deadline,
                                          const std::stop_token& stop) {
  for (;;) {
    auto look = look_at(states);
    if (!look) return std::move(look).error();
    if (!look->ready.empty() || states.empty() || deadline.passed()) return std::move(look->ready);
    if (stop.stop_requested()) return Error{.code = Code::kInterrupted, .message = "wait() was asked to stop"};
    Status waited = platform::wait_readable(look->descriptors, deadline.remaining_ns(kSliceNs));
    if (!waited) return std::move(waited).error();
  }
}

}  // namespace

Result<std::vector<std::size_t>> wait(std::span<const Receiver> receivers, Timeout timeout,
                                      const std::stop_token& stop) {
  return or_out_of_memory([&] {
    std::vector<ChannelState*> states;
    for (const Receiver& receiver : receivers) states.push_back(&*receiver.state_);
    return wait_for(states, platform::Deadline::after(timeout), stop);
  });
}

}  // namespace shmtree
