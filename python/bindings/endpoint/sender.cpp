// _core.SenderBase: the sending end.
//
// A put first walks the message, so that it raises at once if the message cannot be sent or can never fit. It copies
// the bytes when the channel has space: straight into the block that is sent, or through the stack for small messages.
#include <optional>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/frames.h"
#include "bindings/endpoint/outgoing_object.h"
#include "bindings/endpoint/put_methods.h"
#include "bindings/endpoint/spans.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/deaths.h"
#include "bindings/objects/frame.h"
#include "endpoint/plain_messages.h"
#include "endpoint/put.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;
using platform::WaitContext;

EncodeOptions options_of(const Endpoint& self, const Channel& channel) noexcept {
  EncodeOptions options;
  options.allow_pickle = self.allow_pickle && channel.allows_pickle();
  options.independent = self.is_queue;
  options.portable = channel.is_portable();
  return options;
}

// A queue copies all arrays that are neither moved nor made as gifts.
Lending lending_of(const Endpoint& self, bool move) noexcept {
  if (move) return Lending::kMove;
  return self.is_queue ? Lending::kGifts : Lending::kOwn;
}

// Puts a Frame, which is already encoded. Not inlined, so that other puts do not pay for its stack space.
[[gnu::noinline]] PyObject* put_frame(Endpoint* self, Channel& channel, PyObject* frame, EndHooks& hooks,
                                      const WaitContext& wait) {
  if (!may_go(self, frame)) return nullptr;
  return ticket_or_error(self, hooks, endpoint::put(channel, endpoint::WholeFrame(frame_bytes(frame)), wait));
}

// Returns a bytes object as a message that needs no encoding. Every bytes object fits into a frame.
endpoint::FlatFrame flat_frame(const Channel& channel, PyObject* bytes) {
  const std::span run(PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
  return endpoint::FlatFrame::make(std::as_bytes(run), channel.inline_bytes()).value();
}

[[gnu::noinline]] PyObject* put_bytes(Endpoint* self, Channel& channel, PyObject* bytes, EndHooks& hooks,
                                      const WaitContext& wait) {
  return ticket_or_error(self, hooks, endpoint::put(channel, flat_frame(channel, bytes), wait));
}

// Puts the items of put_many(). If all items exist already, all puts are in one Call of the sending end. Otherwise each
// item has its own Call and is put at once, because the next item may take long, and the end of the stream does not
// wait for it.
class Batch {
 public:
  Batch(Endpoint* self, Deadline deadline, bool at_hand)
      : self_(self),
        hooks_(self, End::kSending),
        at_hand_(at_hand),
        batch_(self->port.channel(), {deadline, &hooks_, &self->spin}) {}

  // Returns false with a Python error set.
  bool add(PyObject* object) {
    if (at_hand_) return add_to_batch(object);
    const endpoint::Call call(self_->port, End::kSending);
    return add_to_batch(object) && flush();
  }
  bool flush() { return went(batch_.flush()); }
  std::uint64_t sent() const noexcept { return batch_.sent(); }

 private:
  bool add_to_batch(PyObject* object) {
    const Channel* const channel = open_channel(self_, End::kSending);
    if (!channel) return false;
    if (is_frame(object))
      return may_go(self_, object) && went(batch_.add(endpoint::WholeFrame(frame_bytes(object)), false));
    if (PyBytes_CheckExact(object)) return went(batch_.add(flat_frame(*channel, object), false));
    OutgoingObject message(*channel->arena(), lending_of(*self_, false));
    return message.encode(self_, object, options_of(*self_, *channel)) &&
           went(batch_.add(message, message.gives_ends()));
  }
  bool went(const Status& status) {
    if (!status) raise_waited(self_, hooks_, status.error());
    return status.ok();
  }
  Endpoint* self_;
  EndHooks hooks_;
  const bool at_hand_;
  endpoint::Batch batch_;
};

// True if the iterator returns its next item at once and runs no user code.
bool is_at_hand(PyObject* iterator) {
  const PyTypeObject* type = Py_TYPE(iterator);
  return type == &PyListIter_Type || type == &PyTupleIter_Type || type == &PyRangeIter_Type;
}

PyObject* put_all(Endpoint* self, PyObject* iterator, Deadline deadline, bool at_hand) {
  Batch batch(self, deadline, at_hand);
  bool going = true;
  while (going) {
    Ref item(next_of(iterator));
    if (!item) break;
    going = batch.add(item.get());
  }
  if (PyErr_Occurred()) {
    // Sends the items that were added, in order, before the one that failed.
    Ref exception = take_exception();
    batch.flush();
    set_exception_again(std::move(exception));
  } else if (batch.flush()) {
    return PyLong_FromUnsignedLongLong(batch.sent());
  }
  add_to_exception("sent", batch.sent());
  return nullptr;
}

// The functions of PutMethods and AckMethods.
struct SendingEnd {
  static PyObject* put(PyObject* self, PyObject* object, Deadline deadline, bool move) {
    return put_object(as_endpoint(self), object, deadline, move);
  }

  static PyObject* put_many(PyObject* self, PyObject* iterable, Deadline deadline) {
    const endpoint::Call call(as_endpoint(self)->port);
    if (!begin_sending(as_endpoint(self))) return nullptr;
    const Span span("shmtree.put_many");
    const Ref iterator(iterator_of(iterable));
    if (!iterator) return nullptr;
    if (is_at_hand(iterator.get())) {
      const endpoint::Call whole_call(as_endpoint(self)->port, End::kSending);
      return put_all(as_endpoint(self), iterator.get(), deadline, true);
    }
    // A generator may take long, call put itself, or wait until its earlier items were received.
    return put_all(as_endpoint(self), iterator.get(), deadline, false);
  }

  // A call after close() waits as long as this process has another object of the channel.
  static PyObject* wait_for_acks(PyObject* self, std::optional<std::uint64_t> ticket, Deadline deadline) {
    return with_any(self, [&](Channel& channel) {
      EndHooks hooks(as_endpoint(self), End::kSending);
      return none_or_raise(as_endpoint(self), hooks,
                           channel.acks().wait(ticket, {deadline, &hooks, &as_end(self)->spin}));
    });
  }
};

PyObject* is_ready_to_put(PyObject* object, PyObject*) {
  const endpoint::Port& port = as_endpoint(object)->port;
  const endpoint::Call call(as_endpoint(object)->port);
  if (port.closed(End::kSending)) Py_RETURN_TRUE;
  if (!attach_if_passive(as_endpoint(object), End::kSending)) return nullptr;
  Channel& channel = port.channel();
  const auto can_put = [&] { return channel.watchers().can_put(); };
  return PyBool_FromLong(can_put() || (notice_deaths(*channel.arena(), kLongPollIntervalNs) && can_put()));
}

PyObject* writable_fileno_to_put(PyObject* self, PyObject*) {
  return descriptor(self, End::kSending, &channel::Watchers::writable_fd);
}

PyObject* check_receivers(PyObject* self, PyObject*) {
  return with_open(self, End::kSending, [](Channel& channel) -> PyObject* {
    notice_deaths(*channel.arena(), kLongPollIntervalNs);
    const Status attended = channel.sending().check_receivers();
    if (!attended.ok()) return raise(attended.error());
    Py_RETURN_NONE;
  });
}

PyObject* has_space(PyObject* self, PyObject*) {
  return with_open(self, End::kSending, [](Channel& channel) {
    return PyBool_FromLong(channel.sending().has_space() ||
                           (notice_deaths(*channel.arena(), kLongPollIntervalNs) && channel.sending().has_space()));
  });
}

PyObject* wait_for_receivers(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  Deadline deadline;
  std::uint64_t count = 0;
  if (!parse_wait_for_peers("wait_for_receivers", args, nargs, keywords, &count, &deadline)) return nullptr;
  return with_open(self, End::kSending, [&](Channel& channel) {
    EndHooks hooks(as_endpoint(self), End::kSending, EndHooks::Until::kAttached);
    return none_or_raise(as_endpoint(self), hooks,
                         channel.sending().wait_for_receivers(count, {deadline, &hooks, &as_end(self)->spin}));
  });
}

PyObject* set_sends_requests(PyObject* self, PyObject*) {
  as_endpoint(self)->sends_requests = true;
  Py_RETURN_NONE;
}

PyObject* get_pending_acks(PyObject* self, void*) {
  return with_any(self, [](Channel& channel) { return PyLong_FromUnsignedLongLong(channel.acks().pending()); });
}

PyObject* make_sender(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return new_endpoint(type, args, kwargs, End::kSending);
}

const PyMethodDef kSendingMethods[] = {
    {"_ready_to_put", as_method<is_ready_to_put>(), METH_NOARGS, nullptr},
    {"_note_wait_to_put", as_method<method_of_end<note_wait, End::kSending>>(), METH_O, nullptr},
    {"_fileno_to_put", as_method<method_of_end<wake_descriptor, End::kSending>>(), METH_NOARGS, nullptr},
    {"_name_to_put", as_method<method_of_end<wake_name, End::kSending>>(), METH_NOARGS, nullptr},
    {"_await_to_put", as_method<method_of_end<await_wake, End::kSending>>(), METH_O, nullptr},
};

const PyMethodDef kSenderMethods[] = {
    {"_check_receivers", as_method<check_receivers>(), METH_NOARGS, nullptr},
    {"_writable_fileno", as_method<writable_fileno_to_put>(), METH_NOARGS, nullptr},
    {"has_space", as_method<has_space>(), METH_NOARGS, nullptr},
    {"wait_for_receivers", as_method<wait_for_receivers>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_send_requests", as_method<set_sends_requests>(), METH_NOARGS, nullptr},
};

const PyGetSetDef kSenderAttributes[] = {
    {"pending_acks", guarded<get_pending_acks>, nullptr, nullptr, nullptr},
};

}  // namespace

PyObject* put_object(Endpoint* self, PyObject* object, Deadline deadline, bool move) {
  const Span span("shmtree.put");
  const endpoint::Call call(self->port, End::kSending);
  Channel* channel = begin_sending(self);
  if (!channel) return nullptr;
  EndHooks hooks(self, End::kSending);
  const WaitContext wait{deadline, &hooks, &self->spin};
  if (is_frame(object)) [[unlikely]]
    return put_frame(self, *channel, object, hooks, wait);
  if (PyBytes_CheckExact(object)) return put_bytes(self, *channel, object, hooks, wait);
  OutgoingObject message(*channel->arena(), lending_of(*self, move));
  if (!message.encode(self, object, options_of(*self, *channel))) return nullptr;
  // User code that ran during the encoding has closed the end.
  if (self->port.closed(End::kSending)) return set_closed_here(self), nullptr;
  return ticket_or_error(self, hooks, endpoint::put(*channel, message, wait));
}

PyObject* ticket_or_error(Endpoint* self, EndHooks& hooks, const Result<std::uint64_t>& ticket) {
  if (!ticket) return raise_waited(self, hooks, ticket.error());
  return self->is_queue ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(*ticket);
}

std::span<const PyMethodDef> sending_methods() {
  return kSendingMethods;
}

std::array<PyMethodDef, 3> putting_methods() {
  return PutMethods<SendingEnd>::table();
}

bool init_sender(PyObject* module) {
  return add_end_type(module, {"shmtree._core.SenderBase",
                               sizeof(Endpoint),
                               guarded<make_sender>,
                               {endpoint_methods(), putting_methods(), sending_methods(), frame_putting_methods(),
                                AckMethods<SendingEnd>::table(), publishing_methods(), kSenderMethods},
                               {endpoint_attributes(), kSenderAttributes}});
}

}  // namespace shmtree::python
