// _core.SenderBase: putting.
//
// A message is walked first, so that what cannot be sent, or never fits, raises at once. Its bytes are copied only when
// the channel has room: straight into the block that will travel, or, for the small ones, through the stack.
#include <cstring>
#include <optional>

#include "bindings/codec/encode.h"
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/spans.h"
#include "bindings/objects/deaths.h"
#include "bindings/objects/loan.h"
#include "endpoint/given_ends.h"
#include "endpoint/put.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;
using platform::WaitContext;

// One message on its way.
class Message {
 public:
  Message(Endpoint* self, bool move) : self_(self), loans_(*self->channel->arena(), lending(*self, move)) {}

  bool encode(PyObject* object) {
    EncodeOptions options;
    options.allow_pickle = self_->allow_pickle && self_->channel->allows_pickle();
    options.for_channel = true;
    options.independent = self_->is_queue;
    options.loans = &loans_;
    options.given = &given_;
    return session_->encode(object, options);
  }
  format::FrameBuilder& builder() noexcept { return session_->builder(); }
  std::span<const memory::BlockRef> blocks() const noexcept { return loans_.blocks(); }
  bool is_ours() const noexcept { return loans_.are_ours(); }
  bool gives_ends() const noexcept { return !given_.empty(); }

  // It was put.
  void settle() noexcept {
    loans_.settle();
    given_.keep();
  }

 private:
  // A queue copies whatever it is not told to move.
  static Lending lending(const Endpoint& self, bool move) noexcept {
    if (move) return Lending::kMove;
    return self.is_queue ? Lending::kGifts : Lending::kOwn;
  }

  Endpoint* self_;
  BorrowedSession session_;
  LoanBook loans_;
  endpoint::GivenEnds given_;
};

PyObject* put(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  PutArguments arguments;
  if (!parse_put(args, nargs, keywords, &arguments)) return nullptr;
  const auto ticket = put_object(as_endpoint(self), arguments);
  return ticket ? PyLong_FromUnsignedLongLong(*ticket) : nullptr;
}

PyObject* put_nowait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  PutArguments arguments;
  if (!parse_put_nowait(args, nargs, keywords, &arguments)) return nullptr;
  const auto ticket = put_object(as_endpoint(self), arguments);
  return ticket ? PyLong_FromUnsignedLongLong(*ticket) : nullptr;
}

// put_many().
class Batch {
 public:
  Batch(Endpoint* self, Deadline deadline)
      : self_(self), hooks_(self, End::kSending), batch_(*self->channel, {deadline, &hooks_}) {}

  // False with a Python error set.
  bool add(PyObject* object) {
    if (!open_channel(self_, End::kSending)) return false;
    Message message(self_, false);
    return message.encode(object) && went(batch_.add(message, message.gives_ends()));
  }
  bool flush() { return went(batch_.flush()); }
  std::uint64_t sent() const noexcept { return batch_.sent(); }

 private:
  bool went(const Status& status) {
    if (!status) raise_waited(self_, hooks_, status.error());
    return status.ok();
  }
  Endpoint* self_;
  EndHooks hooks_;
  endpoint::Batch batch_;
};

// Whether going on to the next item takes no time and runs no code of the user's.
bool is_at_hand(PyObject* iterator) {
  const PyTypeObject* type = Py_TYPE(iterator);
  return type == &PyListIter_Type || type == &PyTupleIter_Type || type == &PyRangeIter_Type;
}

PyObject* has_space(PyObject* self, PyObject*) {
  const InCall call(as_endpoint(self));
  Channel* channel = open_channel(as_endpoint(self), End::kSending);
  if (!channel) return nullptr;
  const bool room = channel->sending().has_room() ||
                    (notice_deaths(*channel->arena(), kLookedLatelyNs) && channel->sending().has_room());
  return PyBool_FromLong(room);
}

// Acks may be waited for after close(), as long as this process has an end of the channel by another object.
PyObject* wait_for(Endpoint* self, std::optional<std::uint64_t> ticket, PyObject* timeout) {
  Deadline deadline;
  if (!parse_deadline(nullptr, timeout, &deadline)) return nullptr;
  const InCall call(self);
  const auto channel = any_channel_in_call(self);
  if (!channel) return nullptr;
  EndHooks hooks(self, End::kSending, EndHooks::Until::kLeft);
  const Status acked = channel->acks().wait(ticket, {deadline, &hooks});
  if (!acked.ok()) return raise_waited(self, hooks, acked.error());
  Py_RETURN_NONE;
}

PyObject* wait_for_all_ack(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<1> kSignature{"wait_for_all_ack", {"timeout"}, 1, 0};
  PyObject* given[1];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  return wait_for(as_endpoint(self), std::nullopt, given[0]);
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
    return PyErr_Format(PyExc_ValueError, "%R was never given as a ticket", number.get());
  }
  return wait_for(as_endpoint(self), ticket, given[1]);
}

PyObject* get_pending_acks(PyObject* self, void*) {
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  return channel ? PyLong_FromUnsignedLongLong(channel->acks().pending()) : nullptr;
}

// What only torch knows how to make: Sender._new_tensor() does.
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
    return staying([&] {
      return PyObject_CallMethod(self, "_new_tensor", "OOs#O", given[0], dtype, order, order_bytes,
                                 zeroed ? Py_True : Py_False);
    });
  }
  Endpoint* const end = as_endpoint(self);
  const InCall call(end);
  const auto channel = any_channel_in_call(end);
  if (!channel) return nullptr;
  using Until = EndHooks::Until;
  EndHooks hooks(end, End::kSending, closed_flag(end, End::kSending) ? Until::kLeft : Until::kClosed);
  PyObject* array = new_array(channel->arena(), given[0], dtype, {order, static_cast<std::size_t>(order_bytes)}, zeroed,
                              false, hooks);
  if (!array && hooks.was_closed()) set_closed_here(end);
  return array;
}

PyObject* make_sender(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return new_endpoint(type, args, kwargs, channel::End::kSending);
}

constexpr const char* kPutDoc =
    "put($self, obj, block=True, timeout=None, *, move=False)\n--\n\n"
    "Sends an object and returns its ticket, an int.\n\n"
    "Waits while the channel is full, for `timeout` seconds at most (None: for ever); queue.Full when there was no\n"
    "room in time, or at once with block=False. The object may be changed as soon as put() has returned, except for\n"
    "arrays of new_empty(): a whole one is given away without a copy and becomes read-only here, while a part of one "
    "is\n"
    "copied. With move=True that goes for parts, and for arrays that were received, too. Views of such an array that\n"
    "were made before the put (rows, slices) stay writable and must not be used after it.\n\n"
    "An object that cannot be sent raises here and nothing is sent: ValueError when it is nested too deep,\n"
    "PickleRefused, MessageTooLarge (at once), or what its own code raised. OutOfSharedMemory when held views, or the\n"
    "machine, leave no memory. On a full channel ChannelClosed, or PeerDied, when no receiver is left.";

PyMethodDef methods[] = {
    {"put", as_method<put>(), METH_FASTCALL | METH_KEYWORDS, kPutDoc},
    {"put_nowait", as_method<put_nowait>(), METH_FASTCALL | METH_KEYWORDS,
     "put_nowait($self, obj, *, move=False)\n--\n\nput() that does not wait: queue.Full when there is no room now."},
    {"put_many", as_method<endpoint_put_many>(), METH_FASTCALL | METH_KEYWORDS,
     "put_many($self, iterable, timeout=None)\n--\n\n"
     "Puts every item, in order, and returns how many there were.\n\n"
     "`timeout` is for all of them, in seconds. queue.Full, and whatever else put() raises, has the number of those\n"
     "that went as its attribute `sent`."},
    {"has_space", as_method<has_space>(), METH_NOARGS,
     "has_space($self)\n--\n\nWhether a small message could be put without waiting."},
    {"wait_for_all_ack", as_method<wait_for_all_ack>(), METH_FASTCALL | METH_KEYWORDS,
     "wait_for_all_ack($self, timeout=None)\n--\n\n"
     "Waits until every message that this process has put was received (and, if taken, acknowledged).\n\n"
     "TimeoutError after `timeout` seconds; PeerDied or ChannelClosed when no receiver is left that could; "
     "ChannelClosed\n"
     "when this process has closed all of its objects of the channel."},
    {"wait_for_ack", as_method<wait_for_ack>(), METH_FASTCALL | METH_KEYWORDS,
     "wait_for_ack($self, ticket, timeout=None)\n--\n\n"
     "Waits until the message with that ticket was received. Errors as of wait_for_all_ack(); ValueError for a ticket\n"
     "that put() has not given."},
    {"new_empty", as_method<make_in_place<false>>(), METH_FASTCALL | METH_KEYWORDS,
     "new_empty($self, shape, dtype='float64', order='C')\n--\n\n"
     "An uninitialised ndarray in the channel's arena, which put() gives away instead of copying it.\n\n"
     "After the put the array is read-only, but views of it that were made before, such as rows and slices, are not:\n"
     "they must not be used any more, since what they write appears in what receivers have.\n\n"
     "`shape` is an int or a sequence of ints, `order` \"C\" or \"F\". For a dtype of torch it is a tensor. TypeError\n"
     "for dtypes with Python objects in them, MessageTooLarge over the arena's budget, OutOfSharedMemory when what is\n"
     "held leaves no room for it; waits while undelivered messages do, and until close()."},
    {"new_zeros", as_method<make_in_place<true>>(), METH_FASTCALL | METH_KEYWORDS,
     "new_zeros($self, shape, dtype='float64', order='C')\n--\n\nnew_empty() filled with zeros."},
    {"_ready_to_put", as_method<endpoint_can_put>(), METH_NOARGS,
     "Whether put() of a small message would return or raise at once."},
    {"_fileno_to_put", as_method<endpoint_fileno_to_put>(), METH_NOARGS,
     "A descriptor that is readable while _ready_to_put()."},
    {"close", as_method<close_endpoint>(), METH_NOARGS,
     "close($self)\n--\n\n"
     "Ends this object's part in sending, and lets go of the channel as soon as no other thread is in a call of it:\n"
     "with the process's last object of the channel its name, memory and descriptors go. What was put stays in the\n"
     "channel. May be called again."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool parse_put(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords, PutArguments* out) {
  static constexpr Signature<4> kSignature{"put", {"obj", "block", "timeout", "move"}, 3, 1};
  PyObject* given[4];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return false;
  const int move = truth_of(given[3], 0);
  out->object = given[0];
  out->move = move == 1;
  return move >= 0 && parse_deadline(given[1], given[2], &out->deadline);
}

bool parse_put_nowait(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords, PutArguments* out) {
  static constexpr Signature<2> kSignature{"put_nowait", {"obj", "move"}, 1, 1};
  PyObject* given[2];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return false;
  const int move = truth_of(given[1], 0);
  *out = {given[0], Deadline::immediate(), move == 1};
  return move >= 0;
}

std::optional<std::uint64_t> put_object(Endpoint* self, const PutArguments& arguments) {
  const Span span("shmtree.put");
  const InCall call(self);
  Channel* channel = open_channel(self, End::kSending);
  if (!channel) return std::nullopt;
  EndHooks hooks(self, End::kSending);
  const WaitContext wait{arguments.deadline, &hooks};
  Message message(self, arguments.move);
  if (!message.encode(arguments.object)) return std::nullopt;
  if (closed_flag(self, End::kSending)) return set_closed_here(self), std::nullopt;  // by the object's own code
  auto ticket = endpoint::put(*channel, message, wait);
  if (!ticket) return raise_waited(self, hooks, ticket.error()), std::nullopt;
  return *ticket;
}

PyObject* endpoint_put_many(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<2> kSignature{"put_many", {"iterable", "timeout"}, 2, 1};
  PyObject* given[2];
  Deadline deadline;
  if (!take_arguments(kSignature, args, nargs, keywords, given) || !parse_deadline(nullptr, given[1], &deadline)) {
    return nullptr;
  }
  const InCall call(as_endpoint(self));
  if (!open_channel(as_endpoint(self), End::kSending)) return nullptr;
  if (given[1] && PyBool_Check(given[1])) {  // what other queues have in this place
    return PyErr_Format(PyExc_TypeError, "timeout is %R; it must be a number of seconds, or None", given[1]);
  }
  const Span span("shmtree.put_many");
  Ref iterator(PyObject_GetIter(given[0]));
  if (!iterator) return nullptr;
  Batch batch(as_endpoint(self), deadline);
  const bool at_hand = is_at_hand(iterator.get());
  bool going = true;
  while (going) {
    // A generator may take its time, put something itself, or wait until what it gave was received.
    if (!at_hand && !batch.flush()) break;
    Ref item(PyIter_Next(iterator.get()));
    if (!item) break;
    going = batch.add(item.get());
  }
  if (PyErr_Occurred()) {
    // What came before the one that failed was put in order, and goes.
    Ref exception = take_exception();
    if (!batch.flush()) PyErr_Clear();
    set_exception(std::move(exception));
  } else if (batch.flush()) {
    return PyLong_FromUnsignedLongLong(batch.sent());
  }
  add_to_exception("sent", batch.sent());
  return nullptr;
}

// Whether put() of a small message would return or raise at once.
PyObject* endpoint_can_put(PyObject* self, PyObject*) {
  Endpoint* endpoint = as_endpoint(self);
  const InCall call(endpoint);
  return PyBool_FromLong(closed_flag(endpoint, End::kSending) || endpoint->channel->watchers().can_put());
}

PyObject* endpoint_fileno_to_put(PyObject* self, PyObject*) {
  return wake_descriptor(as_endpoint(self), End::kSending);
}

bool init_sender(PyObject* module) {
  static PyGetSetDef getset[] = {
      {"pending_acks", guarded<get_pending_acks>, nullptr, "Number of messages put by this process and not received.",
       nullptr},
      endpoint_getset[0],
      endpoint_getset[1],
      endpoint_getset[2],
      endpoint_getset[3],
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(guarded<make_sender>)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_endpoint)},
      {Py_tp_methods, methods},
      {Py_tp_getset, getset},
      {Py_tp_doc, const_cast<char*>("What Sender is made of.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"shmtree._core.SenderBase", sizeof(Endpoint), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             slots};
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "SenderBase", type.get()) == 0;
}

}  // namespace shmtree::python
