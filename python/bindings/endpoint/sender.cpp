// _core.SenderBase: the sending end.
//
// A put first walks the message, so that it raises at once if the message cannot be sent or can never fit. It copies
// the bytes when the channel has space: straight into the block that is sent, or through the stack for small messages.
#include <cstring>
#include <optional>

#include "bindings/codec/encode.h"
#include "bindings/codec/refusal.h"
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/frames.h"
#include "bindings/endpoint/spans.h"
#include "bindings/endpoint/stalled_wait.h"
#include "bindings/objects/arena_arrays.h"
#include "bindings/objects/deaths.h"
#include "bindings/objects/frame.h"
#include "endpoint/message_transfers.h"
#include "endpoint/plain_messages.h"
#include "endpoint/put.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;
using platform::WaitContext;

// One message that is being put.
class Message {
 public:
  Message(Endpoint* self, bool move) : self_(self), loans_(*self->port.channel().arena(), lending(*self, move)) {}

  bool encode(PyObject* object) {
    EncodeOptions options;
    options.allow_pickle = self_->allow_pickle && self_->port.channel().allows_pickle();
    options.for_channel = true;
    options.independent = self_->is_queue;
    options.loans = &loans_;
    options.transfers = &transfers_;
    options.portable = self_->port.channel().is_portable();
    const Encoded how = session_->encode(object, options);
    if (how == kEncoded) [[likely]]
      return true;
    if (how == kPickled) return self_->pickled.fetch_add(1, std::memory_order_relaxed), true;
    if (!options.allow_pickle) explain_refused_object(*session_, object, refuser_of_pickles(*self_));
    return false;
  }
  std::uint64_t bytes() noexcept { return session_->builder().total_bytes(); }
  void write(std::byte* out) noexcept { session_->builder().write(out); }
  std::span<const memory::BlockRef> blocks() const noexcept { return loans_.blocks(); }
  bool is_ours() const noexcept { return loans_.are_ours(); }
  bool gives_ends() const noexcept { return !transfers_.empty(); }
  void carry(memory::Arena& arena, memory::BlockRef block) const noexcept { transfers_.carry(arena, block); }

  // Call it after the message was put.
  void settle() noexcept {
    loans_.settle();
    transfers_.keep();
  }

 private:
  // A queue copies all arrays that are neither moved nor made as gifts.
  static Lending lending(const Endpoint& self, bool move) noexcept {
    if (move) return Lending::kMove;
    return self.is_queue ? Lending::kGifts : Lending::kOwn;
  }

  Endpoint* self_;
  BorrowedSession session_;
  LoanBook loans_;
  endpoint::MessageTransfers transfers_;
};

// Puts a Frame, which is already encoded. Not inlined, so that other puts do not pay for its stack space.
[[gnu::noinline]] PyObject* put_frame(Endpoint* self, Channel& channel, PyObject* frame, EndHooks& hooks,
                                      const WaitContext& wait) {
  if (!may_go(self, frame)) return nullptr;
  return ticket_or_error(self, hooks, endpoint::put(channel, endpoint::WholeFrame(frame_bytes(frame)), wait));
}

PyObject* put_object(Endpoint* self, PyObject* object, Deadline deadline, bool move) {
  const Span span("shmtree.put");
  const endpoint::Call call(self->port, End::kSending);
  Channel* channel = begin_sending(self);
  if (!channel) return nullptr;
  EndHooks hooks(self, End::kSending);
  const WaitContext wait{deadline, &hooks};
  if (is_frame(object)) [[unlikely]]
    return put_frame(self, *channel, object, hooks, wait);
  Message message(self, move);
  if (!message.encode(object)) return nullptr;
  // User code that ran during the encoding has closed the end.
  if (self->port.closed(End::kSending)) return set_closed_here(self), nullptr;
  return ticket_or_error(self, hooks, endpoint::put(*channel, message, wait));
}

PyObject* put(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<4> kSignature{"put", {"obj", "block", "timeout", "move"}, 3, 1};
  PyObject* given[4];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  const int move = truth_of(given[3], 0);
  Deadline deadline;
  if (move < 0 || !parse_deadline(given[1], given[2], &deadline)) return nullptr;
  return put_object(as_endpoint(self), given[0], deadline, move == 1);
}

PyObject* put_nowait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<2> kSignature{"put_nowait", {"obj", "move"}, 1, 1};
  PyObject* given[2];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  const int move = truth_of(given[1], 0);
  return move < 0 ? nullptr : put_object(as_endpoint(self), given[0], Deadline::immediate(), move == 1);
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
        batch_(self->port.channel(), {deadline, &hooks_}) {}

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
    if (!open_channel(self_, End::kSending)) return false;
    if (is_frame(object))
      return may_go(self_, object) && went(batch_.add(endpoint::WholeFrame(frame_bytes(object)), false));
    Message message(self_, false);
    return message.encode(object) && went(batch_.add(message, message.gives_ends()));
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
    Ref item(PyIter_Next(iterator));
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

PyObject* put_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<2> kSignature{"put_many", {"iterable", "timeout"}, 2, 1};
  PyObject* given[2];
  Deadline deadline;
  if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline)) {
    return nullptr;
  }
  const endpoint::Call call(as_endpoint(self)->port);
  if (!begin_sending(as_endpoint(self))) return nullptr;
  const Span span("shmtree.put_many");
  Ref iterator(PyObject_GetIter(given[0]));
  if (!iterator) return nullptr;
  if (is_at_hand(iterator.get())) {
    const endpoint::Call whole_call(as_endpoint(self)->port, End::kSending);
    return put_all(as_endpoint(self), iterator.get(), deadline, true);
  }
  // A generator may take long, call put itself, or wait until its earlier items were received.
  return put_all(as_endpoint(self), iterator.get(), deadline, false);
}

PyObject* is_ready_to_put(PyObject* object, PyObject*) {
  const endpoint::Port& port = as_endpoint(object)->port;
  const endpoint::Call call(as_endpoint(object)->port);
  if (port.closed(End::kSending)) Py_RETURN_TRUE;
  if (!attach_if_passive(as_endpoint(object), End::kSending)) return nullptr;
  Channel& channel = port.channel();
  const auto can_put = [&] { return channel.watchers().can_put(); };
  return PyBool_FromLong(can_put() || (notice_deaths(*channel.arena(), kLongPollIntervalNs) && can_put()));
}

PyObject* note_wait_to_put(PyObject* self, PyObject* seconds) {
  return note_wait(self, End::kSending, seconds);
}

PyObject* fileno_to_put(PyObject* self, PyObject*) {
  return wake_descriptor(self, End::kSending);
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

PyObject* fail(PyObject* self, PyObject* exit_code) {
  const long code = PyLong_AsLong(exit_code);
  if (PyErr_Occurred()) return nullptr;
  as_endpoint(self)->port.fail(End::kSending, memory::failure_with(static_cast<std::uint32_t>(code)));
  return run_close_callback(self);
}

PyObject* name_to_put(PyObject* self, PyObject*) {
  return wake_name(self, End::kSending);
}

PyObject* await_to_put(PyObject* self, PyObject* hub) {
  return await_wake(self, End::kSending, hub);
}

PyObject* has_space(PyObject* self, PyObject*) {
  return with_open(self, End::kSending, [](Channel& channel) {
    return PyBool_FromLong(channel.sending().has_space() ||
                           (notice_deaths(*channel.arena(), kLongPollIntervalNs) && channel.sending().has_space()));
  });
}

// A call after close() waits as long as this process has another object of the channel.
PyObject* wait_for(PyObject* self, std::optional<std::uint64_t> ticket, PyObject* timeout) {
  Deadline deadline;
  if (!parse_deadline(nullptr, timeout, &deadline)) return nullptr;
  return with_any(self, [&](Channel& channel) {
    EndHooks hooks(as_endpoint(self), End::kSending);
    return none_or_raise(as_endpoint(self), hooks, channel.acks().wait(ticket, {deadline, &hooks}));
  });
}

PyObject* wait_for_all_ack(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<1> kSignature{"wait_for_all_ack", {"timeout"}, 1, 0};
  PyObject* given[1];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  return wait_for(self, std::nullopt, given[0]);
}

PyObject* wait_for_ack(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<2> kSignature{"wait_for_ack", {"ticket", "timeout"}, 2, 1};
  PyObject* given[2];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  Ref number(PyNumber_Index(given[0]));
  if (!number) return nullptr;
  const unsigned long long ticket = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return nullptr;
    return PyErr_Format(PyExc_ValueError, "%R is not a ticket that put() has returned", number.get());
  }
  return wait_for(self, ticket, given[1]);
}

PyObject* wait_for_receivers(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<2> kSignature{"_wait_for_receivers", {"n", "timeout"}, 2, 2};
  PyObject* given[2];
  Deadline deadline;
  if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline)) {
    return nullptr;
  }
  const unsigned long long count = PyLong_AsUnsignedLongLong(given[0]);
  if (PyErr_Occurred()) return nullptr;
  return with_open(self, End::kSending, [&](Channel& channel) {
    EndHooks hooks(as_endpoint(self), End::kSending, EndHooks::Until::kAttached);
    return none_or_raise(as_endpoint(self), hooks, channel.sending().wait_for_receivers(count, {deadline, &hooks}));
  });
}

PyObject* set_sends_requests(PyObject* self, PyObject*) {
  as_endpoint(self)->sends_requests = true;
  Py_RETURN_NONE;
}

PyObject* get_pending_acks(PyObject* self, void*) {
  return with_any(self, [](Channel& channel) { return PyLong_FromUnsignedLongLong(channel.acks().pending()); });
}

// True for a dtype that only torch can allocate; Sender._new_tensor() does it.
bool is_torch_dtype(PyObject* dtype) {
  return std::strcmp(Py_TYPE(dtype)->tp_name, "torch.dtype") == 0;
}

template <bool zeroed>
PyObject* make_in_place(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<3> kSignature{zeroed ? "new_zeros" : "new_empty", {"shape", "dtype", "order"}, 3, 1};
  PyObject* given[3];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  if (given[2] && !PyUnicode_Check(given[2])) {
    return PyErr_Format(PyExc_TypeError, "order is %R; it must be 'C' or 'F'", given[2]);
  }
  Py_ssize_t order_bytes = 1;
  const char* order = given[2] ? PyUnicode_AsUTF8AndSize(given[2], &order_bytes) : "C";
  if (!order) return nullptr;
  PyObject* dtype = given[1] ? given[1] : reinterpret_cast<PyObject*>(&PyFloat_Type);
  if (is_torch_dtype(dtype)) {
    return without_unwinding([&] {
      return PyObject_CallMethod(self, "_new_tensor", "OOs#O", given[0], dtype, order, order_bytes,
                                 zeroed ? Py_True : Py_False);
    });
  }
  return with_any(self, [&](Channel& channel) {
    Endpoint* const end = as_endpoint(self);
    EndHooks hooks(end, End::kSending);
    const std::string_view given_order(order, static_cast<std::size_t>(order_bytes));
    PyObject* array = new_array(channel.arena(), {given[0], dtype, given_order, zeroed, false}, hooks);
    if (!array && hooks.was_closed()) set_closed_here(end);
    return array;
  });
}

PyObject* make_sender(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return new_endpoint(type, args, kwargs, End::kSending);
}

const PyMethodDef kPuttingMethods[] = {
    {"put", as_method<put>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"put_nowait", as_method<put_nowait>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"put_many", as_method<put_many>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_ready_to_put", as_method<is_ready_to_put>(), METH_NOARGS, nullptr},
    {"_note_wait_to_put", as_method<note_wait_to_put>(), METH_O, nullptr},
    {"_fileno_to_put", as_method<fileno_to_put>(), METH_NOARGS, nullptr},
    {"_name_to_put", as_method<name_to_put>(), METH_NOARGS, nullptr},
    {"_await_to_put", as_method<await_to_put>(), METH_O, nullptr},
};

const PyMethodDef kSenderMethods[] = {
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, nullptr},
    {"_check_receivers", as_method<check_receivers>(), METH_NOARGS, nullptr},
    {"_writable_fileno", as_method<writable_fileno_to_put>(), METH_NOARGS, nullptr},
    {"_fail", as_method<fail>(), METH_O, nullptr},
    {"has_space", as_method<has_space>(), METH_NOARGS, nullptr},
    {"wait_for_all_ack", as_method<wait_for_all_ack>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"wait_for_ack", as_method<wait_for_ack>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_wait_for_receivers", as_method<wait_for_receivers>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_send_requests", as_method<set_sends_requests>(), METH_NOARGS, nullptr},
    {"new_empty", as_method<make_in_place<false>>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"new_zeros", as_method<make_in_place<true>>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
};

const PyGetSetDef kSenderAttributes[] = {
    {"pending_acks", guarded<get_pending_acks>, nullptr, nullptr, nullptr},
};

}  // namespace

PyObject* ticket_or_error(Endpoint* self, EndHooks& hooks, const Result<std::uint64_t>& ticket) {
  if (!ticket) return raise_waited(self, hooks, ticket.error());
  return self->is_queue ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(*ticket);
}

std::span<const PyMethodDef> sending_methods() {
  return kPuttingMethods;
}

bool init_sender(PyObject* module) {
  return add_end_type(module, {"shmtree._core.SenderBase",
                               guarded<make_sender>,
                               {kPuttingMethods, kSenderMethods, frame_putting_methods()},
                               kSenderAttributes,
                               false});
}

}  // namespace shmtree::python
