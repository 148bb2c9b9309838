// Implements Queue: both ends of a channel without end of stream.
#include "shmtree/queue.h"

#include "api/state.h"

namespace shmtree {

using api::ChannelState;
using channel::End;

namespace {

// Calls act(channel). Works after this object was closed, as long as the process has another object of the channel.
template <class Act>
Status with_tasks(ChannelState& state, Act act) {
  return or_out_of_memory([&]() -> Status {
    const api::Call call(state);
    const auto channel = state.any_channel();
    if (channel == nullptr) return closed_here("queue");
    return act(*channel);
  });
}

}  // namespace

Status Queue::task_done() const {
  return with_tasks(*receiver_.state_, [](channel::Channel& channel) { return channel.tasks().done(); });
}

Status Queue::join(Timeout timeout, const std::stop_token& stop) const {
  return with_tasks(*receiver_.state_, [&](channel::Channel& channel) -> Status {
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return goes_on;
    endpoint::OrStopped<endpoint::UntilAlone> until(stop, &channel, channel);
    Status joined = channel.tasks().join(waiting(timeout, &until));
    const bool ended = !joined && joined.code() == Code::kInterrupted && !stop.stop_requested();
    return ended ? closed_here("queue") : std::move(joined);
  });
}

Status Queue::shutdown(bool immediate) const {
  return with_tasks(*receiver_.state_, [&](channel::Channel& channel) {
    return channel.tasks().shut_down(immediate, platform::WaitContext{});
  });
}

std::uint64_t Queue::unfinished_tasks() const noexcept {
  const auto channel = receiver_.state_->known_channel();
  return channel == nullptr ? 0 : channel->tasks().unfinished();
}
std::uint64_t Queue::capacity() const noexcept {
  const auto channel = receiver_.state_->known_channel();
  return channel == nullptr ? 0 : channel->capacity();
}
bool Queue::full() const {
  const std::uint64_t most = capacity();
  return most != 0 && size() >= most;
}

void Queue::close() {
  sender_.close();
  receiver_.close();
}

// `receiving` was opened by the handle or the name of a queue.
Result<Queue> Queue::with_sender(Result<std::shared_ptr<ChannelState>> receiving) {
  if (!receiving) return std::move(receiving).error();
  return or_out_of_memory([&]() -> Result<Queue> {
    const ChannelState& state = **receiving;
    auto arena = api::ArenaState::for_arena(state.channel().arena());
    auto sending =
        ChannelState::join(std::move(arena), state.channel().shared_from_this(), End::kSending, state.name());
    if (!sending) return std::move(sending).error();
    return Queue(ChannelState::handle_to<Sender>(std::move(*sending)),
                 ChannelState::handle_to<Receiver>(std::move(*receiving)));
  });
}

Result<Queue> Queue::open(const std::string& handle) {
  return with_sender(or_out_of_memory([&] { return ChannelState::open(handle, End::kReceiving, true); }));
}

Result<Queue> open_queue(const std::string& name, Timeout timeout) {
  return Queue::with_sender(or_out_of_memory(
      [&] { return ChannelState::open_named(name, End::kReceiving, timeout, discovery::NamedKind::kQueue); }));
}

Queue make_queue(const QueueOptions& options) {
  PairOptions made{.capacity = options.capacity, .max_bytes = options.max_bytes, .name = options.name};
  made.arena = options.arena;
  made.allow_pickle = options.allow_pickle;
  made.portable = options.portable;
  made.exist_ok = options.exist_ok;
  made.on_peer_death = options.on_peer_death;
  auto [sending, receiving] = ChannelState::make(made, discovery::NamedKind::kQueue);
  return {ChannelState::handle_to<Sender>(std::move(sending)), ChannelState::handle_to<Receiver>(std::move(receiving))};
}

}  // namespace shmtree
