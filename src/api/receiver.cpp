// Implements Receiver and TakenItem.
#include <new>

#include "api/receiving.h"
#include "api/taken.h"
#include "endpoint/copy_policy.h"
#include "memory/transfers.h"
#include "value/codec.h"
#include "value/tree.h"

namespace shmtree {

namespace api {

Item kept_with(const Item& item, memory::Lease block) {
  struct Kept {
    std::shared_ptr<const value::Tree> tree;
    memory::Lease block;
  };
  auto kept = std::make_shared<Kept>(Kept{value::Tree::of(item), std::move(block)});
  const value::Tree* const tree = kept->tree.get();
  return value::Tree::root({std::move(kept), tree});
}

namespace {

Result<Item> decoded(memory::Arena& arena, channel::Incoming& message) {
  const auto frame = message.frame();
  if (!message.in_block()) return value::decode(frame, nullptr);
  const std::vector<memory::BlockRef> referred = arena.blocks().referred_to_by(message.block());
  const auto blocks = endpoint::referred_blocks(arena, referred);
  const auto policy = endpoint::copy_policy(endpoint::CopyPolicy::kAuto, arena, message, referred, blocks);
  const bool is_copied = endpoint::is_copied(policy, message.bytes(), !blocks.empty());
  Result<Item> copy = is_copied ? value::decode(frame, nullptr, blocks) : Item();
  if (is_copied && (!copy || !memory::may_carry_transfers(arena, message.block()))) return copy;
  auto lease = message.adopt();
  if (!lease) return std::move(lease).error();
  if (is_copied) return kept_with(*copy, std::move(*lease));
  auto received = std::make_shared<Received>(std::move(*lease));
  const void* home = received.get();
  return value::decode(frame, std::move(received), blocks, home);
}

}  // namespace

Result<Item> to_item(memory::Arena& arena, channel::Incoming& message) {
  Result<Item> item = decoded(arena, message);
  if (item) return item;
  Error error = std::move(item).error();
  error.ticket = message.ticket();
  error.message = "message " + std::to_string(message.ticket()) + ": " + error.message;
  return error;
}

}  // namespace api

namespace {

using api::ChannelState;
using api::receiving;
using channel::End;
using platform::WaitContext;

// The codec with which endpoint::receive() makes Items.
class Items {
 public:
  using Object = Result<Item>;
  explicit Items(ChannelState& state) noexcept : state_(state) {}
  ChannelState& state() const noexcept { return state_; }

  Object decode(channel::Channel& channel, channel::Incoming& message, bool* may_retry) {
    Result<Item> item = or_out_of_memory([&] { return api::to_item(*channel.arena(), message); });
    *may_retry = !item && api::may_retry_after(item.error(), message);
    return item;
  }
  Object failed(Error error) { return state_.or_closed(std::move(error)); }

 private:
  ChannelState& state_;
};

Result<Item> receive(ChannelState& state, const WaitContext& wait) {
  Items items(state);
  const api::Spare spare;
  return endpoint::receive(items, state.channel(), *spare, wait);
}

Result<std::vector<Item>> receive_many(ChannelState& state, std::size_t most, const WaitContext& wait,
                                       std::chrono::nanoseconds within = {}) {
  api::Many<Item, Items> items(most, state);
  return items.receive("get_many", wait, within);
}

}  // namespace

Result<Item> Receiver::get(Timeout timeout) const {
  return receiving(*state_, timeout, {}, [&](const WaitContext& wait) { return receive(*state_, wait); });
}
Result<Item> Receiver::get(Timeout timeout, const std::stop_token& stop) const {
  return receiving(*state_, timeout, stop, [&](const WaitContext& wait) { return receive(*state_, wait); });
}

Result<std::vector<Item>> Receiver::get_many(std::size_t most, Timeout timeout) const {
  return receiving(*state_, timeout, {}, [&](const WaitContext& wait) { return receive_many(*state_, most, wait); });
}
Result<std::vector<Item>> Receiver::get_many(std::size_t most, Timeout timeout, const std::stop_token& stop) const {
  return get_many(most, timeout, std::chrono::nanoseconds(0), stop);
}
Result<std::vector<Item>> Receiver::get_many(std::size_t most, Timeout timeout, std::chrono::nanoseconds within,
                                             const std::stop_token& stop) const {
  return receiving(*state_, timeout, stop,
                   [&](const WaitContext& wait) { return receive_many(*state_, most, wait, within); });
}

namespace {

Result<TakenItem> take_item(ChannelState& state, const WaitContext& wait) {
  Items items(state);
  return detail::TakenAccess::take<Item>(items, state, wait);
}

}  // namespace

template class Taken<Item>;

Result<TakenItem> Receiver::take(Timeout timeout) const {
  return receiving(*state_, timeout, {}, [&](const WaitContext& wait) { return take_item(*state_, wait); });
}
Result<TakenItem> Receiver::take(Timeout timeout, const std::stop_token& stop) const {
  return receiving(*state_, timeout, stop, [&](const WaitContext& wait) { return take_item(*state_, wait); });
}

Result<std::vector<TakenItem>> Receiver::dead_letters() const {
  return api::with_open(*state_, "receiver", [this]() -> Result<std::vector<TakenItem>> {
    auto deliveries = state_->channel().dead_letters(WaitContext{platform::Deadline::immediate()});
    if (!deliveries) return std::move(deliveries).error();
    std::vector<TakenItem> items;
    items.reserve(deliveries->size());
    for (channel::Delivery& delivery : *deliveries) {
      Items codec(*state_);
      auto item = detail::TakenAccess::of<Item>(codec, state_->channel(), std::move(delivery));
      if (!item) return std::move(item).error();
      items.push_back(std::move(*item));
    }
    return items;
  });
}

std::uint64_t Receiver::size() const {
  const auto channel = state_->known_channel();
  return channel == nullptr ? 0 : channel->size();
}
Result<int> Receiver::fileno() const {
  return api::with_open(*state_, "receiver", [this] { return state_->channel().watchers().poll_fd(End::kReceiving); });
}
Result<ChannelStats> Receiver::stats() const {
  return api::with_open(*state_, "receiver", [this]() -> Result<ChannelStats> { return state_->stats(); });
}
Result<std::string> Receiver::handle() const {
  return api::with_open(*state_, "receiver", [this] { return state_->handle(); });
}

Result<Receiver> Receiver::open(const std::string& handle) {
  return ChannelState::made<Receiver>([&] { return ChannelState::open(handle, End::kReceiving); });
}

void Receiver::close() {
  state_->close();
}
Status Receiver::set_spin(std::chrono::nanoseconds spin) const {
  return or_out_of_memory([&] { return state_->spin.set_ns(spin.count()); });
}
std::chrono::nanoseconds Receiver::spin() const noexcept {
  return std::chrono::nanoseconds(state_->spin.ns());
}
bool Receiver::closed() const noexcept {
  return state_->is_closed();
}

}  // namespace shmtree
