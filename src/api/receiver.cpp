// Receiving: Receiver and TakenItem.
#include <algorithm>
#include <new>

#include "api/state.h"
#include "endpoint/transfer.h"
#include "features/value_codec.h"

namespace shmtree {

namespace {

using api::ChannelState;
using channel::End;
using channel::Received;
using memory::Lease;
using platform::WaitContext;

Result<Item> to_item(memory::Arena& arena, channel::Incoming& message) {
  std::vector<std::span<const std::byte>> blocks;
  if (message.in_block()) blocks = endpoint::referred_blocks(arena, arena.blocks().referred_to_by(message.block()));
  const auto frame = message.frame();
  Result<Item> item = Error{};
  // A tree with arrays of other blocks has to hold them: it is not copied.
  const bool copied = blocks.empty() && (message.bytes() <= endpoint::kCopiedMessageBytes ||
                                         endpoint::is_hoarding(arena, message, blocks));
  if (!message.in_block() || copied) {
    item = features::decode(frame, nullptr, blocks);
  } else {
    auto lease = message.adopt();
    if (!lease) return std::move(lease).error();
    item = features::decode(frame, std::make_shared<Lease>(std::move(*lease)), blocks);
  }
  if (item) return item;
  Error error = std::move(item).error();
  error.ticket = message.ticket();
  error.message = "message " + std::to_string(message.ticket()) + ": " + error.message;
  return error;
}

// Want of memory says nothing of the message: another try, here or elsewhere, may do. All else is its own fault.
bool is_innocent(const Error& error) noexcept {
  return error.code == Code::kOutOfSharedMemory;
}

// The next item. What there is no memory for goes back to the channel.
Result<Item> receive(ChannelState& state, const WaitContext& wait) {
  // What the thread receives into: there is memory for it before, so that giving it back needs none.
  thread_local std::unique_ptr<Received> place;
  if (place == nullptr) place = std::make_unique<Received>();
  channel::Incoming& message = place->message;
  Status got = state.channel->get(message, wait);
  if (!got) return state.told(std::move(got).error());
  Result<Item> item = or_out_of_memory([&] { return to_item(*state.arena->arena, message); });
  if (!item && is_innocent(item.error())) {
    state.channel->give_back(std::move(place));
  } else {
    message.drop();
  }
  return item;
}

// Whether there is room for one more, before it is received.
bool has_room(std::vector<Item>& items) {
  constexpr std::size_t kFew = 16;
  if (items.size() < items.capacity()) return true;
  try {
    items.reserve(std::max(kFew, 2 * items.size()));
  } catch (const std::bad_alloc&) {
    if (items.empty()) throw;
    return false;
  }
  return true;
}

Result<std::vector<Item>> receive_many(ChannelState& state, std::size_t most, const WaitContext& wait) {
  if (most == 0) return Error{Code::kInvalid, "get_many of 0 items"};
  std::vector<Item> items;
  const WaitContext at_once{platform::Deadline::immediate()};
  // One at a time: nothing is received that the caller would not get.
  while (items.size() < most && has_room(items) && (items.empty() || state.channel->size() != 0)) {
    Result<Item> item = receive(state, items.empty() ? wait : at_once);
    if (item) {
      items.push_back(std::move(*item));
      continue;
    }
    if (items.empty()) return std::move(item).error();
    // What is told once, and a message that is gone. All else is met again by the next call, if it lasts.
    const Code code = item.code();
    if (code == Code::kCorrupt || code == Code::kIncompatible || code == Code::kPeerDied) {
      state.defer(std::move(item).error());
    }
    break;
  }
  return items;
}

// `act` on the channel of a receiver that is open and has no error to tell first.
template <class Act>
auto unless_deferred(ChannelState& state, Act act) -> decltype(act()) {
  if (auto error = state.take_deferred()) return *std::move(error);
  return act();
}
template <class Act>
auto receiving(ChannelState& state, const Timeout& timeout, Act act) -> decltype(act(WaitContext{})) {
  return api::with_open(state, "receiver",
                        [&] { return unless_deferred(state, [&] { return act(state.wait(timeout)); }); });
}
template <class Act>
auto receiving(ChannelState& state, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(WaitContext{})) {
  return api::until_stopped(state, "receiver", timeout, stop,
                            [&](const WaitContext& wait) { return unless_deferred(state, [&] { return act(wait); }); });
}

}  // namespace

Result<Item> Receiver::get(Timeout timeout) const {
  return receiving(*state_, timeout, [&](const WaitContext& wait) { return receive(*state_, wait); });
}
Result<Item> Receiver::get(Timeout timeout, const std::stop_token& stop) const {
  return receiving(*state_, timeout, stop, [&](const WaitContext& wait) { return receive(*state_, wait); });
}

Result<std::vector<Item>> Receiver::get_many(std::size_t most, Timeout timeout) const {
  return receiving(*state_, timeout, [&](const WaitContext& wait) { return receive_many(*state_, most, wait); });
}
Result<std::vector<Item>> Receiver::get_many(std::size_t most, Timeout timeout, const std::stop_token& stop) const {
  return receiving(*state_, timeout, stop, [&](const WaitContext& wait) { return receive_many(*state_, most, wait); });
}

struct TakenItem::State {
  static Result<std::unique_ptr<State>> of(memory::Arena& arena, channel::Delivery delivery);

  static Result<TakenItem> take(ChannelState& state, const WaitContext& wait);
  static Status settle(State* state, Status (channel::Delivery::*how)(const WaitContext&)) {
    return or_out_of_memory([&]() -> Status {
      if (state == nullptr) return Error{Code::kInvalid, "this message was moved from"};
      return (state->delivery.*how)(WaitContext{});
    });
  }

  channel::Delivery delivery;
  Item item;
  std::uint64_t ticket;
  std::uint32_t attempts;
};

Result<std::unique_ptr<TakenItem::State>> TakenItem::State::of(memory::Arena& arena, channel::Delivery delivery) {
  channel::Incoming& message = delivery.message();
  const std::uint64_t ticket = message.ticket();
  const std::uint32_t attempts = message.attempts();
  auto item = to_item(arena, message);
  if (!item) {
    // A damaged message is consumed: handing it round would not mend it. Otherwise it goes back with the delivery.
    if (!is_innocent(item.error())) delivery.ack(WaitContext{}).ok();
    return std::move(item).error();
  }
  message.drop();  // its record keeps it, and the item does so by itself
  return std::unique_ptr<State>(new State{std::move(delivery), std::move(*item), ticket, attempts});
}

TakenItem::TakenItem(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
TakenItem::TakenItem(TakenItem&&) noexcept = default;
TakenItem& TakenItem::operator=(TakenItem&&) noexcept = default;
TakenItem::~TakenItem() = default;
const Item& TakenItem::item() const noexcept {
  static const Item none;
  return state_ == nullptr ? none : state_->item;
}
std::uint64_t TakenItem::ticket() const noexcept {
  return state_ == nullptr ? 0 : state_->ticket;
}
std::uint32_t TakenItem::attempts() const noexcept {
  return state_ == nullptr ? 0 : state_->attempts;
}
Status TakenItem::ack() {
  return State::settle(state_.get(), &channel::Delivery::ack);
}
Status TakenItem::nack() {
  return State::settle(state_.get(), &channel::Delivery::nack);
}
Status TakenItem::requeue() {
  return State::settle(state_.get(), &channel::Delivery::requeue);
}

Result<TakenItem> TakenItem::State::take(ChannelState& state, const WaitContext& wait) {
  auto delivery = state.channel->take(wait);
  if (!delivery) return state.told(std::move(delivery).error());
  auto taken = of(*state.arena->arena, std::move(*delivery));
  if (!taken) return std::move(taken).error();
  return TakenItem(std::move(*taken));
}

Result<TakenItem> Receiver::take(Timeout timeout) const {
  return receiving(*state_, timeout, [&](const WaitContext& wait) { return TakenItem::State::take(*state_, wait); });
}
Result<TakenItem> Receiver::take(Timeout timeout, const std::stop_token& stop) const {
  return receiving(*state_, timeout, stop,
                   [&](const WaitContext& wait) { return TakenItem::State::take(*state_, wait); });
}

Result<std::vector<TakenItem>> Receiver::rejected() const {
  return api::with_open(*state_, "receiver", [this]() -> Result<std::vector<TakenItem>> {
    auto deliveries = state_->channel->rejected(WaitContext{platform::Deadline::immediate()});
    if (!deliveries) return std::move(deliveries).error();
    std::vector<TakenItem> items;
    items.reserve(deliveries->size());
    for (channel::Delivery& delivery : *deliveries) {
      auto state = TakenItem::State::of(*state_->arena->arena, std::move(delivery));
      if (!state) return std::move(state).error();
      items.push_back(TakenItem(std::move(*state)));
    }
    return items;
  });
}

std::uint64_t Receiver::size() const {
  const auto channel = state_->known.lock();
  return channel == nullptr ? 0 : channel->size();
}
Result<int> Receiver::fileno() const {
  return api::with_open(*state_, "receiver", [this] { return state_->channel->wake_fd(End::kReceiving); });
}
Result<ChannelStats> Receiver::stats() const {
  return api::with_open(*state_, "receiver", [this]() -> Result<ChannelStats> { return state_->stats(); });
}
Result<std::string> Receiver::handle() const {
  return api::with_open(*state_, "receiver", [this] { return state_->handle(); });
}

Result<Receiver> Receiver::open(const std::string& handle) {
  auto state = or_out_of_memory([&] { return ChannelState::open(handle, End::kReceiving); });
  if (!state) return std::move(state).error();
  return ChannelState::receiver(std::move(*state));
}

void Receiver::close() {
  state_->close();
}
bool Receiver::closed() const noexcept {
  return state_->closed.load();
}

}  // namespace shmtree
