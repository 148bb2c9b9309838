// Receiving, as it is in every language. What a language adds is a codec, which makes objects of messages. It has
//   Object                         what it makes, or why it could not: true or false
//   decode(channel, message, &may_retry)   the object. If there is none, `may_retry` says that another attempt may
//                                  succeed: the call was interrupted, or there was no memory. In the latter case, the
//                                  codec calls message.set_not_built(), which limits the number of attempts
//   failed(error)                  what a call returns that received nothing
// and for receive_rest()
//   wants_more()                   whether another object is wanted, and there is room for it
//   add(object)
//   defer(error), defer(object, may_retry)   why there are no more; what is not met again is for the next call
// and for take_first() and take_rest(), of what is taken, these and
//   add(object, delivery)          whether it was added; if not, the message goes back
//
// Invariants: a message is lost only by its own fault, no call receives a message that its caller would not get, and no
// message blocks the messages after it forever.
//
// Thread safety: none for a codec; channels are anybody's.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include "channel/channel.h"

namespace shmtree::endpoint {

using channel::Received;

// Where a message is received. `spare` is there before, so that the message can be given back without any memory.
class Place {
 public:
  explicit Place(std::unique_ptr<Received>& spare) noexcept : spare_(spare) {}
  channel::Incoming& message() noexcept { return message_; }
  void give_back(channel::Channel& channel) noexcept {
    spare_->message = std::move(message_);
    channel.returns().give_back(std::move(spare_));
  }

 private:
  std::unique_ptr<Received>& spare_;
  channel::Incoming message_;
};

// The object of what was received in `place`. What may be decoded another time is in the channel again.
template <class Codec>
typename Codec::Object decode(Codec& codec, channel::Channel& channel, Place& place, bool* may_retry) {
  auto object = codec.decode(channel, place.message(), may_retry);
  if (*may_retry) [[unlikely]]
    place.give_back(channel);
  return object;
}

// The next object; waits for it.
template <class Codec>
typename Codec::Object receive(Codec& codec, channel::Channel& channel, std::unique_ptr<Received>& spare,
                               const platform::WaitContext& wait) {
  Place place(spare);
  Status got = channel.receiving().get(place.message(), wait);
  if (!got) return codec.failed(std::move(got).error());
  bool may_retry = false;
  return decode(codec, channel, place, &may_retry);
}

// After that, what else is there, for calls that return several. What was received before stays received.
template <class Codec>
void receive_rest(Codec& codec, channel::Channel& channel, std::unique_ptr<Received>& spare) {
  try {
    while (codec.wants_more() && channel.ready()) {
      Place place(spare);
      Status got = channel.receiving().get(place.message(), {platform::Deadline::immediate(), nullptr});
      if (!got) return codec.defer(got.error());
      bool may_retry = false;
      auto object = decode(codec, channel, place, &may_retry);
      if (!object) return codec.defer(std::move(object), may_retry);
      codec.add(std::move(object));
    }
  } catch (const std::bad_alloc&) {  // the next call finds it, if it lasts
  }
}

// Of a message that was damaged: handing it round would not mend it.
inline void consume(channel::Delivery& delivery) noexcept {
  try {
    delivery.ack({platform::Deadline::after_ns(1'000'000'000), nullptr}).ok();
  } catch (const std::bad_alloc&) {  // it goes back, and is consumed the next time
  }
}

// The object of a message that was taken. The delivery keeps it only as its record then; without an object it goes back
// with the delivery, or was consumed.
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

// Takes the next message; waits for it. False: the codec knows why.
template <class Codec>
bool take_first(Codec& codec, channel::Channel& channel, const platform::WaitContext& wait) {
  auto delivery = channel.take(wait);
  if (!delivery) return static_cast<void>(codec.failed(std::move(delivery).error())), false;
  auto object = decode_taken(codec, channel, *delivery);
  return object && codec.add(std::move(object), std::move(*delivery));
}

// After that, what else is there. What was taken before stays taken.
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
  } catch (const std::bad_alloc&) {  // the next call finds it, if it lasts
  }
}

}  // namespace shmtree::endpoint
