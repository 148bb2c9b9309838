// A received message as a Python object.
#pragma once

#include "bindings/codec/decode.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/objects/loan.h"

namespace shmtree::python {

// Decodes `message` of `channel`, which the caller keeps, for `self`. The message keeps its block until it goes. Small
// arrays, and everything while the arena's budget is more than half held, are copied out; views hold their block by
// themselves. Null with a Python error set: CorruptMessage with the ticket for what cannot be decoded. Then
// `*may_retry` says whether it may be decoded another time, here or elsewhere: there was no memory for it, a signal
// handler raised, or the exception is no Exception, such as SystemExit. All but a signal handler's and
// KeyboardInterrupt count as failed builds (channel::kMaxFailedBuilds). With `taken`, the message may go back; what is
// set there says whether it still may, null when nothing of it is a view.
PyObject* decode_incoming(Endpoint* self, channel::Channel& channel, channel::Incoming& message, CopyPolicy copy,
                          bool* may_retry, MayGoBack* taken = nullptr);

// What endpoint::receive() makes of messages, for `self`; `hooks` are those of the call that waits.
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

// For calls that receive: the channel, unless an exception is left from the call before; null with a Python error set.
channel::Channel* begin_receiving(Endpoint* self);
// Takes back the exception that is set, for the next call: items were received that must be handed over first.
void defer_exception(Endpoint* self);
// Their argument `n`: at least 1. False with a Python error set.
bool parse_count(PyObject* value, Py_ssize_t* count);

// A new Delivery object, which does not have its item. Null with a Python error set; the message is returned then.
PyObject* new_delivery(channel::Delivery delivery);
// A new Delivery object. Null with a Python error set; the message is then returned if it may be decoded another time,
// and acknowledged if not.
PyObject* new_delivery(Endpoint* self, channel::Delivery delivery, CopyPolicy copy);
// A new Delivery object that decodes its message under this policy when its item is read, since a rejected message may
// be the one that its takers died of.
PyObject* new_unloaded(Endpoint* self, channel::Delivery delivery, CopyPolicy copy);

}  // namespace shmtree::python
