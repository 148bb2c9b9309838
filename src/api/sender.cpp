// Implements Sender.
#include <new>

#include "api/message.h"
#include "platform/of_thread.h"

namespace shmtree {

namespace {

using channel::End;
using platform::WaitContext;

// The callers of put() differ in what ends the wait. The put() without a stop_token is the hot path.
[[gnu::always_inline]] inline Result<std::uint64_t> put(api::ChannelState& state, const Value& value,
                                                        const WaitContext& wait) {
  // Kept per thread, because messages usually need about the same memory.
  const platform::OfThread<format::FrameBuilder> builder;
  return api::put_as_message(state, *builder, value, [&](auto& message) -> Result<std::uint64_t> {
    auto ticket = endpoint::put(state.channel(), message, wait);
    if (!ticket) ticket = state.or_closed(std::move(ticket).error());
    return ticket;
  });
}

}  // namespace

Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout) const try {
  const api::Call call(*state_, End::kSending);
  if (!state_->is_attached(End::kSending)) [[unlikely]] {
    Status usable = state_->begin_use("sender");
    if (!usable) return std::move(usable).error();
  }
  return shmtree::put(*state_, value, state_->wait(timeout));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop,
                         [&](const WaitContext& wait) { return shmtree::put(*state_, value, wait); });
}

Status Sender::put_many(std::span<const Value> values, Timeout timeout, const std::stop_token& stop) const {
  return api::put_batch(*state_, timeout, stop, [&](endpoint::Batch& batch) -> Status {
    format::FrameBuilder builder;
    for (const Value& value : values) {
      Status added =
          api::put_as_message(*state_, builder, value, [&](auto& message) { return batch.add(message, false); });
      if (!added) return added;
    }
    return success();
  });
}

// Moves the item into the value for the put, and back if the put fails.
template <class Put>
Result<std::uint64_t> Sender::forward(Item& item, Put put) const {
  return or_out_of_memory([&]() -> Result<std::uint64_t> {
    const Value value(std::move(item));
    auto ticket = put(value);
    if (!ticket) item = *std::get<Forward>(value.variant()).item;
    return ticket;
  });
}
Result<std::uint64_t> Sender::put_moved(Item& item, Timeout timeout) const {
  return forward(item, [&](const Value& value) { return put(value, timeout); });
}
Result<std::uint64_t> Sender::put_moved(Item& item, Timeout timeout, const std::stop_token& stop) const {
  return forward(item, [&](const Value& value) { return put(value, timeout, stop); });
}

bool Sender::has_space() const {
  const api::Call call(*state_);
  return !state_->is_closed() && state_->channel().sending().has_space();
}

Status Sender::wait_for_receivers(std::size_t count, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop, [&](const WaitContext& wait) {
    return state_->or_closed(state_->channel().sending().wait_for_receivers(count, wait));
  });
}

namespace {

// If the sender is closed already, waits for acks while the process has any end of the channel.
Status wait_for(api::ChannelState& state, std::optional<std::uint64_t> ticket, const Timeout& timeout,
                const std::stop_token& stop = {}) {
  if (!state.is_closed()) {
    return api::with_waits(state, "sender", timeout, stop, [&](const WaitContext& wait) {
      return state.or_closed(state.channel().acks().wait(ticket, wait));
    });
  }
  return or_out_of_memory([&]() -> Status {
    const api::Call call(state);
    const auto channel = state.any_channel();
    if (channel == nullptr) return closed_here("sender");
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return goes_on;
    endpoint::OrStopped<endpoint::UntilLeft> until(stop, channel.get(), *channel);
    Status acked = channel->acks().wait(ticket, waiting(timeout, &until, &state.spin));
    if (!acked && acked.code() == Code::kInterrupted && !channel->membership().is_used_here())
      return closed_here("sender");
    return acked;
  });
}

}  // namespace

Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout) const {
  return wait_for(*state_, ticket, timeout);
}
Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout, const std::stop_token& stop) const {
  return wait_for(*state_, ticket, timeout, stop);
}
Status Sender::wait_for_all_ack(Timeout timeout) const {
  return wait_for(*state_, std::nullopt, timeout);
}
Status Sender::wait_for_all_ack(Timeout timeout, const std::stop_token& stop) const {
  return wait_for(*state_, std::nullopt, timeout, stop);
}
std::uint64_t Sender::pending_acks() const {
  const api::Call call(*state_);
  const auto channel = state_->any_channel();
  return channel == nullptr ? 0 : channel->acks().pending();
}

std::uint64_t Sender::dropped() const {
  const api::Call call(*state_);
  const auto channel = state_->any_channel();
  return channel == nullptr ? 0 : channel->dropped();
}

Result<NewArray> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return new_array(dtype, std::move(shape), timeout, {});
}
Result<NewArray> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                                   const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop, [&](const WaitContext& wait) {
    return state_->or_closed(state_->arena->new_array(dtype, std::move(shape), wait));
  });
}

Result<ChannelStats> Sender::stats() const {
  return api::with_open(*state_, "sender", [this]() -> Result<ChannelStats> { return state_->stats(); });
}

Result<std::string> Sender::handle() const {
  return api::with_open(*state_, "sender", [this] { return state_->handle(); });
}

Result<Sender> Sender::open(const std::string& handle) {
  return api::ChannelState::made<Sender>([&] { return api::ChannelState::open(handle, End::kSending); });
}

void Sender::close() {
  state_->close();
}
void Sender::fail() {
  state_->fail(End::kSending, memory::Failure::kNoExitCode);
}
Status Sender::set_spin(std::chrono::nanoseconds spin) const {
  return or_out_of_memory([&] { return state_->spin.set_ns(spin.count()); });
}
std::chrono::nanoseconds Sender::spin() const noexcept {
  return std::chrono::nanoseconds(state_->spin.ns());
}
bool Sender::closed() const noexcept {
  return state_->is_closed();
}

}  // namespace shmtree
