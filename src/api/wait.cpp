// Waiting for several receivers.
#include <algorithm>
#include <list>
#include <vector>

#include "api/state.h"
#include "platform/wake_socket.h"

namespace shmtree {

namespace {

using api::ChannelState;
using channel::End;

// Deaths are seen by looking only, which is done between slices.
constexpr std::int64_t kSliceNs = 100'000'000;

// What a call would say at once is worth waking up for, too.
bool is_ready(ChannelState& state) noexcept {
  return state.closed.load(std::memory_order_acquire) || state.has_deferred.load(std::memory_order_relaxed) ||
         state.channel->ready();
}

std::vector<std::size_t> ready_among(std::span<ChannelState* const> states) {
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (is_ready(*states[i])) ready.push_back(i);
  }
  return ready;
}

void notice_deaths(ChannelState& state) {
  memory::Arena& arena = *state.channel->arena();
  const platform::WaitContext soon{platform::Deadline::after_ns(kSliceNs)};
  if (arena.participants().check(kSliceNs)) arena.reconcile(soon).ok();  // the next look is as good
}

Result<std::vector<std::size_t>> wait_for(std::span<ChannelState* const> states, platform::Deadline deadline,
                                          const std::stop_token& stop) {
  std::vector<int> descriptors;
  for (;;) {
    std::vector<std::size_t> ready = ready_among(states);
    if (!ready.empty() || states.empty() || deadline.passed()) return ready;
    if (stop.stop_requested()) return Error{.code = Code::kInterrupted, .message = "wait() was asked to stop"};
    descriptors.clear();
    // Again each time: that makes them unreadable where another receiver was quicker.
    for (ChannelState* state : states) {
      auto fd = state->channel->watchers().wake_fd(End::kReceiving);
      if (!fd) return std::move(fd).error();
      descriptors.push_back(*fd);
    }
    platform::wait_readable(descriptors, deadline.remaining_ns(kSliceNs));
    for (ChannelState* state : states) notice_deaths(*state);
  }
}

}  // namespace

Result<std::vector<std::size_t>> wait(std::span<const Receiver> receivers, Timeout timeout,
                                      const std::stop_token& stop) {
  return or_out_of_memory([&]() -> Result<std::vector<std::size_t>> {
    std::list<api::Call> calls;
    std::vector<ChannelState*> states;
    std::vector<std::size_t> closed;
    for (std::size_t i = 0; i < receivers.size(); ++i) {
      calls.emplace_back(*receivers[i].state_);
      states.push_back(&*receivers[i].state_);
      if (calls.back().closed()) closed.push_back(i);
    }
    if (!closed.empty()) return closed;
    return wait_for(states, platform::Deadline::after(timeout), stop);
  });
}

}  // namespace shmtree
