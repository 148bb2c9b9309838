// Receiving, for every language. Each language supplies a codec that makes objects of messages. It has
//   Object                         the result: an object (true), or an error (false)
//   decode(channel, message, &may_retry)   makes the object. On failure, `may_retry` says that another attempt may
//                                  succeed: the call was interrupted, or there was no memory. In the latter case, the
//                                  codec calls message.set_not_built(), which limits the number of attempts
//   failed(error)                  makes the result of a call that received nothing
// for receive_rest()
//   wants_more()                   returns true if another object is wanted and there is space for it
//   add(object)                    stores an object
//   defer(error), defer(object, may_retry)   gets the reason why there are no more. It keeps the reason for the next
//                                  call, unless that call would find it again
// and for take_first() and take_rest(), in addition
//   add(object, delivery)          stores both. If it returns false, the message returns to the channel
//
// Invariants: only a damaged message is lost. Each received message is returned to the caller or to the channel. No
// message blocks the messages after it forever.
//
// Thread safety: none for a codec; any thread may use the channel.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include "channel/channel.h"

namespace shmtree::endpoint {

using channel::Received;

// Memory for a received message. `spare` is allocated in advance, so that returning the message needs no memory.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(std::unique_ptr<Received>& spare) noexcept : spare_(spare) {}
  channel::Incoming& message() noexcept { return message_; }
  void give_back(channel::Channel& channel) noexcept {
    spare_->message = std::move(message_);
    channel.returns().give_back(std::move(spare_));
  }

 private:
  std::unique_ptr<Received>& spare_;
  channel::Incoming message_;
};

// Decodes the message in `buffer`. Returns the message to the channel if another attempt may succeed.
template <class Codec>
typename Codec::Object decode(Codec& codec, channel::Channel& channel, ReceiveBuffer& buffer, bool* may_retry) {
  auto object = codec.decode(channel, buffer.message(), may_retry);
  if (*may_retry) [[unlikely]]
    buffer.give_back(channel);
  return object;
}

// Waits for the next message and returns its object.
template <class Codec>
typename Codec::Object receive(Codec& codec, channel::Channel& channel, std::unique_ptr<Received>& spare,
                               const platform::WaitContext& wait) {
  ReceiveBuffer buffer(spare);
  Status got = channel.receiving().get(buffer.message(), wait);
  if (!got) return codec.failed(std::move(got).error());
  bool may_retry = false;
  return decode(codec, channel, buffer, &may_retry);
}

// Receives the messages available after the first, for calls that return several, and those that arrive until the
// deadline. An error loses none of them.
template <class Codec>
void receive_rest(Codec& codec, channel::Channel& channel, std::unique_ptr<Received>& spare,
                  const platform::WaitContext& wait = {platform::Deadline::immediate()}) {
  try {
    while (codec.wants_more() && (channel.ready() || !wait.deadline.passed())) {
      ReceiveBuffer buffer(spare);
      Status got = channel.receiving().get(buffer.message(), wait);
      if (!got) return codec.defer(got.error());
      bool may_retry = false;
      auto object = decode(codec, channel, buffer, &may_retry);
      if (!object) return codec.defer(std::move(object), may_retry);
      codec.add(std::move(object));
    }
  } catch (const std::bad_alloc&) {  // The next call gets the error if it persists.
  }
}

// Removes a damaged message: no other receiver could decode it.
inline void consume(channel::Delivery& delivery) noexcept {
  try {
    delivery.ack({platform::Deadline::after_ns(1'000'000'000), nullptr}).ok();
  } catch (const std::bad_alloc&) {  // The message returns to the channel and is consumed next time.
  }
}

// Returns the object of a taken message. On success, the delivery drops the message and keeps only its record.
// Otherwise the message returns to the channel with the delivery, or has been consumed.
template <class Codec>
typename Codec::Object decode_taken(Codec& codec, channel::Channel& channel, channel::Delivery& delivery,
                                    bool* may_retry) {
  auto object = codec.decode(channel, delivery.message(), may_retry);
  if (object) {
    delivery.message().set_built();
    delivery.message().drop();
  } else if (!*may_retry) {
    consume(delivery);
  }
  return object;
}
template <class Codec>
typename Codec::Object decode_taken(Codec& codec, channel::Channel& channel, channel::Delivery& delivery) {
  bool may_retry = false;
  return decode_taken(codec, channel, delivery, &may_retry);
}

// Waits for the next message and takes it. Returns false if there is none; the codec has the error.
template <class Codec>
bool take_first(Codec& codec, channel::Channel& channel, const platform::WaitContext& wait) {
  auto delivery = channel.take(wait);
  if (!delivery) return static_cast<void>(codec.failed(std::move(delivery).error())), false;
  auto object = decode_taken(codec, channel, *delivery);
  return object && codec.add(std::move(object), std::move(*delivery));
}

// Takes the messages available after the first. An error loses none of them.
template <class Codec>
void take_rest(Codec& codec, channel::Channel& channel) {
  try {
    while (codec.wants_more() && channel.ready()) {
      auto delivery = channel.take({platform::Deadline::immediate(), nullptr});
      if (!delivery) return codec.defer(delivery.error());
      bool may_retry = false;
      auto object = decode_taken(codec, channel, *delivery, &may_retry);
      if (!object) return codec.defer(std::move(object), may_retry);
      // NOLINTNEXTLINE(bugprone-use-after-move): defer() does not use the object of a message that may be retried
      if (!codec.add(std::move(object), std::move(*delivery))) return codec.defer(std::move(object), true);
    }
  } catch (const std::bad_alloc&) {  // The next call gets the error if it persists.
  }
}

}  // namespace shmtree::endpoint
