// _core.QueueBase: both ends of a channel that has no end, in one object, with what multiprocessing's queues have.
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;

PyObject* make_queue(PyTypeObject* type, PyObject*, PyObject*) {
  Ref self = alloc_endpoint(type);
  if (!self) return nullptr;
  Endpoint* endpoint = as_endpoint(self.get());
  endpoint->is_queue = true;
  for (const End which : {End::kSending, End::kReceiving}) {
    endpoint->has[static_cast<std::size_t>(which)] = true;
    closed_flag(endpoint, which) = true;  // until it is attached
  }
  return self.release();
}

PyObject* attach(PyObject* self, PyObject* args) {
  PyObject* channel = nullptr;
  int allow_pickle = 0;
  if (!PyArg_ParseTuple(args, "Op", &channel, &allow_pickle)) return nullptr;
  if (!attach_endpoint(as_endpoint(self), channel, allow_pickle != 0)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* put(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  PutArguments arguments;
  if (!parse_put(args, nargs, keywords, &arguments) || !put_object(as_endpoint(self), arguments)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* put_nowait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  PutArguments arguments;
  if (!parse_put_nowait(args, nargs, keywords, &arguments) || !put_object(as_endpoint(self), arguments)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* qsize(PyObject* self, PyObject*) {
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  return channel ? PyLong_FromUnsignedLongLong(endpoint_size(*channel)) : nullptr;
}

PyObject* full(PyObject* self, PyObject*) {
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  return channel ? PyBool_FromLong(channel->capacity() != 0 && channel->size() >= channel->capacity()) : nullptr;
}

PyObject* close_one(PyObject* self, PyObject* receiving) {
  const int which = PyObject_IsTrue(receiving);
  if (which < 0) return nullptr;
  if (as_endpoint(self)->attached) close_end(as_endpoint(self), end_of(which == 1));
  return tell_of_close(self);
}

PyObject* is_closed(PyObject* self, PyObject* receiving) {
  const int which = PyObject_IsTrue(receiving);
  return which < 0 ? nullptr : PyBool_FromLong(closed_flag(as_endpoint(self), end_of(which == 1)));
}

PyObject* task_done(PyObject* self, PyObject*) {
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  if (!channel) return nullptr;
  const Status done = channel->tasks().done();
  if (!done.ok()) return raise(done.error());
  Py_RETURN_NONE;
}

PyObject* join_tasks(PyObject* self, PyObject* timeout) {
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  Deadline deadline;
  if (!channel || !parse_deadline(nullptr, timeout, &deadline)) return nullptr;
  EndHooks hooks(as_endpoint(self), End::kReceiving, EndHooks::Until::kAlone);  // others may deal with them
  const Status joined = channel->tasks().join({deadline, &hooks});
  if (!joined.ok()) return raise_waited(as_endpoint(self), hooks, joined.error());
  Py_RETURN_NONE;
}

PyObject* shut_down(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<1> kSignature{"shutdown", {"immediate"}, 1, 0};
  PyObject* given[1];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  const int immediate = truth_of(given[0], 0);
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  if (immediate < 0 || !channel) return nullptr;
  EndHooks hooks;
  const Status done = channel->tasks().shut_down(immediate == 1, {Deadline::never(), &hooks});
  if (!done.ok()) return raise_waited(as_endpoint(self), hooks, done.error());
  Py_RETURN_NONE;
}

PyObject* reserve(PyObject* self, PyObject* args) {
  int receiving = 0;
  PyObject *block = nullptr, *timeout = nullptr;
  Deadline deadline;
  if (!PyArg_ParseTuple(args, "pOO", &receiving, &block, &timeout)) return nullptr;
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  if (!channel || !parse_deadline(block, timeout, &deadline)) return nullptr;
  EndHooks hooks;
  const Status reserved = channel->tasks().reserve(end_of(receiving != 0), {deadline, &hooks});
  if (reserved.ok()) Py_RETURN_TRUE;
  if (reserved.code() == Code::kTimeout) Py_RETURN_FALSE;
  return raise_waited(as_endpoint(self), hooks, reserved.error());
}

PyObject* release(PyObject* self, PyObject* receiving) {
  const int which = PyObject_IsTrue(receiving);
  const InCall call(as_endpoint(self));
  const auto channel = any_channel_in_call(as_endpoint(self));
  return which < 0 || !channel ? nullptr : PyBool_FromLong(channel->tasks().release(end_of(which == 1)));
}

constexpr const char* kPutDoc =
    "put($self, obj, block=True, timeout=None, *, move=False)\n--\n\n"
    "Puts an object into the queue; from the return on every process sees it there.\n\n"
    "Waits while the queue is full, for `timeout` seconds at most (None: for ever; 0 and less: not at all); "
    "queue.Full\n"
    "when there was no room in time, or at once with block=False. Everything is copied, so that the object may be\n"
    "changed afterwards; with move=True arrays of new_empty() and received ones go on without a copy, and become\n"
    "read-only here.\n\n"
    "An object that cannot be pickled raises here and nothing is put. ChannelClosed, a ValueError, after close();\n"
    "ShutDown after shutdown(); MessageTooLarge for what never fits, OutOfSharedMemory when what others hold leaves "
    "no\n"
    "room.";

constexpr const char* kGetDoc =
    "get($self, block=True, timeout=None, *, copy=None)\n--\n\n"
    "Takes the next object out; queue.Empty when none came within `timeout` seconds (None: for ever; block=False: at\n"
    "once). It is the caller's own, arrays are writable.\n\n"
    "copy=None: large arrays stay where they are in shared memory, while less than half of the budget is held so;\n"
    "copy=True copies them to memory of this process, copy=False leaves all of them. ChannelClosed, a ValueError, "
    "after\n"
    "close(); ShutDown when the queue was shut down and is empty.";

PyMethodDef methods[] = {
    {"put", as_method<put>(), METH_FASTCALL | METH_KEYWORDS, kPutDoc},
    {"put_nowait", as_method<put_nowait>(), METH_FASTCALL | METH_KEYWORDS,
     "put_nowait($self, obj, *, move=False)\n--\n\nput() that does not wait: queue.Full when there is no room now."},
    {"put_many", as_method<endpoint_put_many>(), METH_FASTCALL | METH_KEYWORDS,
     "put_many($self, iterable, timeout=None)\n--\n\n"
     "Puts every item, in order, and returns how many there were. `timeout` is for all of them, in seconds; "
     "queue.Full,\n"
     "and whatever else put() raises, has the number of those that went as its attribute `sent`."},
    {"get", as_method<endpoint_get>(), METH_FASTCALL | METH_KEYWORDS, kGetDoc},
    {"get_nowait", as_method<endpoint_get_nowait>(), METH_FASTCALL | METH_KEYWORDS,
     "get_nowait($self, *, copy=None)\n--\n\nget() that does not wait: queue.Empty when there is nothing now."},
    {"get_many", as_method<endpoint_get_many>(), METH_FASTCALL | METH_KEYWORDS,
     "get_many($self, n, timeout=None, *, copy=None)\n--\n\n"
     "A list of 1 to n objects: waits for the first as get() does, and takes what else is there."},
    {"qsize", as_method<qsize>(), METH_NOARGS, "qsize($self)\n--\n\nNumber of objects in the queue; exact."},
    {"empty", as_method<endpoint_empty>(), METH_NOARGS,
     "empty($self)\n--\n\nWhether there is nothing in the queue; exact."},
    {"full", as_method<full>(), METH_NOARGS,
     "full($self)\n--\n\nWhether there are `maxsize` objects in the queue; exact."},
    {"fileno", as_method<endpoint_fileno>(), METH_NOARGS,
     "fileno($self)\n--\n\n"
     "A descriptor that is readable while there is something to get, for poll loops. The queue owns it."},
    {"_fileno_to_put", as_method<endpoint_fileno_to_put>(), METH_NOARGS,
     "A descriptor that is readable while _ready_to_put()."},
    {"shutdown", as_method<shut_down>(), METH_FASTCALL | METH_KEYWORDS,
     "shutdown($self, immediate=False)\n--\n\n"
     "Ends the queue in all processes: put() raises ShutDown from now on, and get() as soon as the queue is empty.\n\n"
     "With immediate=True what is in the queue is dropped, and counts as done for join()."},
    {"close", as_method<close_endpoint>(), METH_NOARGS,
     "close($self)\n--\n\nEnds the use of the queue in this process; what was put stays for the others."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "The type of what is in it, for type checkers."},
    {"_attach", as_method<attach>(), METH_VARARGS, "Makes this object one of the channel's."},
    {"_ready", as_method<endpoint_ready>(), METH_NOARGS, "Whether get() would return or raise at once."},
    {"_ready_to_put", as_method<endpoint_can_put>(), METH_NOARGS,
     "Whether put() of a small message would return or raise at once."},
    {"_close_end", as_method<close_one>(), METH_O, "Closes the receiving end, or the sending one."},
    {"_end_closed", as_method<is_closed>(), METH_O, "Whether the receiving end, or the sending one, is closed."},
    {"_task_done", as_method<task_done>(), METH_NOARGS, "One more of the objects was dealt with."},
    {"_join_tasks", as_method<join_tasks>(), METH_O, "Waits until all were, for so many seconds at most."},
    {"_reserve", as_method<reserve>(), METH_VARARGS,
     "Keeps other processes from using an end. False when another had it."},
    {"_release", as_method<release>(), METH_O, "Ends a reservation; False when there was none."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool init_queue(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(guarded<make_queue>)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_endpoint)},
      {Py_tp_methods, methods},
      {Py_tp_getset, endpoint_getset},
      {Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
      {Py_tp_iternext, reinterpret_cast<void*>(guarded<endpoint_next>)},
      {Py_tp_doc, const_cast<char*>("What the queues are made of.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"shmtree._core.QueueBase", sizeof(Endpoint), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             slots};
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "QueueBase", type.get()) == 0;
}

}  // namespace shmtree::python
