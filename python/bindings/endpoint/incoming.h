// Decodes a received message to a Python object.
#pragma once

#include "bindings/codec/decode.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/objects/arena_arrays.h"

namespace shmtree::python {

// Decodes `message` of `channel` for `self`. The caller keeps the message, and the message keeps its block. Small
// arrays are copied, and everything is copied while more than half of the arena's budget is held. Views pin their block
// themselves.
//
// Returns null with a Python error set: CorruptMessage with the ticket if the message cannot be decoded. `*may_retry`
// is then true if decoding may succeed later, here or elsewhere: memory ran out, a signal handler raised, or the
// exception is not an Exception (such as SystemExit). All of these count as failed builds (channel::kMaxFailedBuilds),
// except signal handlers and KeyboardInterrupt.
//
// Pass `taken` if the message may be redelivered. It receives a flag that is true as long as that can happen, or null
// if no part of the object is a view.
PyObject* decode_incoming(Endpoint* self, channel::Channel& channel, channel::Incoming& message, CopyPolicy copy,
                          bool* may_retry, MayBeNacked* taken = nullptr);

// Builds the objects of endpoint::receive() for `self`. `hooks` are those of the call that waits.
class Objects {
 public:
  using Object = Ref;
  Objects(Endpoint* self, CopyPolicy copy, EndHooks* hooks) noexcept : self_(self), copy_(copy), hooks_(hooks) {}
  Ref decode(channel::Channel& channel, channel::Incoming& message, bool* may_retry) {
    return Ref(decode_incoming(self_, channel, message, copy_, may_retry));
  }
  Ref failed(const Error& error) { return Ref(raise_waited(self_, *hooks_, error)); }

 protected:
  Endpoint* self_;
  CopyPolicy copy_;
  EndHooks* hooks_;
};

// For calls that receive. Returns the channel, or null with a Python error set, which may come from an earlier call.
channel::Channel* begin_receiving(Endpoint* self);
// Keeps the error of a receive after the first item for the next call, if that call would not get it again, such as
// PeerDied, which is reported once. An empty channel is no error, since another receiver may have taken the message.
void defer_error(Endpoint* self, const Error& error);
// Keeps the exception of a failed build for the next call. Drops the exception if memory ran out and the message may be
// built again, because the next call tries that.
void defer_failed_build(Endpoint* self, bool may_retry);

// Makes a Delivery object without its item. Returns null with a Python error set, and then nacks the message.
PyObject* new_delivery(channel::Delivery delivery);
// Makes a Delivery object with its item. Returns null with a Python error set. The message is then nacked if decoding
// may succeed another time, and acked if not.
PyObject* new_delivery(Endpoint* self, channel::Delivery delivery, CopyPolicy copy);
// Makes a Delivery object that decodes the message with this policy when `item` is read. A dead letter is not decoded
// earlier, because it may have killed the processes that took it.
PyObject* new_unloaded(Endpoint* self, channel::Delivery delivery, CopyPolicy copy);
// Returns the frame of such an object. It is valid until the message is settled.
std::span<const std::byte> frame_of_delivery(PyObject* delivery);

}  // namespace shmtree::python
