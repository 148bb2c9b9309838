// Implements Taken, for Items, bytes and frames.
#pragma once

#include <memory>
#include <utility>

#include "api/flat.h"
#include "api/frame.h"
#include "api/state.h"
#include "endpoint/receive.h"
#include "platform/never_destroyed.h"
#include "shmtree/taken.h"
#include "value/tree.h"

namespace shmtree {

namespace api {

// Returns the Received that contains the item; null for a copy.
inline Received* home_of(const Item& item) noexcept {
  const auto& tree = value::Tree::of(item);
  return tree == nullptr ? nullptr : static_cast<Received*>(const_cast<void*>(tree->home));
}
inline Received* home_of(const FlatItem& item) noexcept {
  return static_cast<Received*>(const_cast<void*>(detail::FlatAccess::home(item)));
}
// Frames are never written to or given away.
inline Received* home_of(const Frame&) noexcept {
  return nullptr;
}

}  // namespace api

template <class T>
struct Taken<T>::State {
  static Status settle(State* state, Status (channel::Delivery::*how)(const platform::WaitContext&)) {
    return or_out_of_memory([&]() -> Status {
      if (state == nullptr) return Error{Code::kInvalid, "this message was moved from"};
      return (state->delivery.*how)(platform::WaitContext{});
    });
  }

  // Until it is acked, the message may return to the channel. So it must not be given away with another message.
  void set_may_be_nacked(bool may) noexcept {
    if (auto* home = api::home_of(item)) home->may_be_nacked.store(may, std::memory_order_release);
  }

  channel::Delivery delivery;
  T item;
};

namespace detail {

struct TakenAccess {
  // Decodes a taken message. If that fails, endpoint::decode_taken() decides what happens to the message.
  template <class T, class Codec>
  static Result<Taken<T>> of(Codec& codec, channel::Channel& channel, channel::Delivery delivery) {
    Result<T> item = endpoint::decode_taken(codec, channel, delivery);
    if (!item) return std::move(item).error();
    using State = typename Taken<T>::State;
    std::unique_ptr<State> state(new State{std::move(delivery), std::move(*item)});
    state->set_may_be_nacked(true);
    return Taken<T>(std::move(state));
  }
  // Memory of items that have no Received.
  template <class T>
  static Taken<T> made(channel::Delivery delivery, T item) {
    using State = typename Taken<T>::State;
    return Taken<T>(std::unique_ptr<State>(new State{std::move(delivery), std::move(item)}));
  }
  template <class T, class Codec>
  static Result<Taken<T>> take(Codec& codec, api::ChannelState& end, const platform::WaitContext& wait) {
    auto delivery = end.channel().take(wait);
    if (!delivery) return end.or_closed(std::move(delivery).error());
    return of<T>(codec, end.channel(), std::move(*delivery));
  }
};

}  // namespace detail

template <class T>
Taken<T>::Taken(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
template <class T>
Taken<T>::Taken(Taken&&) noexcept = default;
template <class T>
Taken<T>& Taken<T>::operator=(Taken&&) noexcept = default;
template <class T>
Taken<T>::~Taken() = default;
template <class T>
const T& Taken<T>::item() const& noexcept {
  return state_ == nullptr ? platform::never_destroyed<T>() : state_->item;
}
template <class T>
std::uint64_t Taken<T>::ticket() const noexcept {
  return state_ == nullptr ? 0 : state_->delivery.message().ticket();
}
template <class T>
std::uint32_t Taken<T>::attempts() const noexcept {
  return state_ == nullptr ? 0 : state_->delivery.message().attempts();
}
template <class T>
Status Taken<T>::ack() {
  Status done = State::settle(state_.get(), &channel::Delivery::ack);
  if (done) state_->set_may_be_nacked(false);
  return done;
}
template <class T>
Status Taken<T>::nack() {
  return State::settle(state_.get(), &channel::Delivery::nack);
}
template <class T>
Status Taken<T>::requeue() {
  return State::settle(state_.get(), &channel::Delivery::requeue);
}

}  // namespace shmtree
