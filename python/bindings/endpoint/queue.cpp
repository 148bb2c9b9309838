// _core.QueueBase: one object with both ends of a channel, and the methods of multiprocessing's queues. The stream of
// the channel never ends.
#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/end_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/frames.h"

namespace shmtree::python {
namespace {

using channel::Channel;
using channel::End;
using platform::Deadline;

PyObject* make_queue(PyTypeObject* type, PyObject*, PyObject*) {
  Ref self = alloc_endpoint(type);
  if (self) as_endpoint(self.get())->is_queue = true;
  return self.release();
}

PyObject* attach(PyObject* self, PyObject* args) {
  PyObject* channel = nullptr;
  int allow_pickle = 0;
  if (!PyArg_ParseTuple(args, "Op", &channel, &allow_pickle)) return nullptr;
  if (!attach_endpoint(as_endpoint(self), channel, {End::kSending, End::kReceiving}, allow_pickle != 0)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* close_one(PyObject* self, PyObject* receiving) {
  const int which = PyObject_IsTrue(receiving);
  if (which < 0) return nullptr;
  note_size(as_endpoint(self));
  as_endpoint(self)->port.close(end_of(which == 1));
  return run_close_callback(self);
}

PyObject* is_closed(PyObject* self, PyObject* receiving) {
  const int which = PyObject_IsTrue(receiving);
  return which < 0 ? nullptr : PyBool_FromLong(as_endpoint(self)->port.closed(end_of(which == 1)));
}

PyObject* task_done(PyObject* self, PyObject*) {
  return with_any(self, [](Channel& channel) {
    const Status done = channel.tasks().done();
    return done.ok() ? Py_NewRef(Py_None) : raise(done.error());
  });
}

PyObject* join_tasks(PyObject* self, PyObject* timeout) {
  return with_any(self, [&](Channel& channel) -> PyObject* {
    Deadline deadline;
    if (!parse_deadline(nullptr, timeout, &deadline)) return nullptr;
    // Other processes may complete the tasks.
    EndHooks hooks(as_endpoint(self), End::kReceiving, EndHooks::Until::kAlone);
    return none_or_raise(as_endpoint(self), hooks, channel.tasks().join({deadline, &hooks, &as_end(self)->spin}));
  });
}

PyObject* shut_down(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<1> kSignature{"shutdown", {"immediate"}, 1, 0};
  PyObject* given[1];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  const int immediate = truth_of(given[0], 0);
  if (immediate < 0) return nullptr;
  return with_any(self, [&](Channel& channel) {
    EndHooks hooks;
    const Status done = channel.tasks().shut_down(immediate == 1, {Deadline::never(), &hooks});
    return none_or_raise(as_endpoint(self), hooks, done);
  });
}

PyObject* reserve(PyObject* self, PyObject* args) {
  int receiving = 0;
  PyObject *block = nullptr, *timeout = nullptr;
  if (!PyArg_ParseTuple(args, "pOO", &receiving, &block, &timeout)) return nullptr;
  return with_any(self, [&](Channel& channel) -> PyObject* {
    Deadline deadline;
    if (!parse_deadline(block, timeout, &deadline)) return nullptr;
    EndHooks hooks;
    const Status reserved = channel.tasks().reserve(end_of(receiving != 0), {deadline, &hooks, &as_end(self)->spin});
    if (reserved.ok()) Py_RETURN_TRUE;
    if (reserved.code() == Code::kTimeout) Py_RETURN_FALSE;
    return raise_waited(as_endpoint(self), hooks, reserved.error());
  });
}

PyObject* release(PyObject* self, PyObject* receiving) {
  const int which = PyObject_IsTrue(receiving);
  if (which < 0) return nullptr;
  return with_any(self, [&](Channel& channel) { return PyBool_FromLong(channel.tasks().release(end_of(which == 1))); });
}

const PyMethodDef kQueueMethods[] = {
    {"shutdown", as_method<shut_down>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_attach", as_method<attach>(), METH_VARARGS, nullptr},
    {"_close_end", as_method<close_one>(), METH_O, nullptr},
    {"_end_closed", as_method<is_closed>(), METH_O, nullptr},
    {"_task_done", as_method<task_done>(), METH_NOARGS, nullptr},
    {"_join_tasks", as_method<join_tasks>(), METH_O, nullptr},
    {"_reserve", as_method<reserve>(), METH_VARARGS, nullptr},
    {"_release", as_method<release>(), METH_O, nullptr},
};

}  // namespace

bool init_queue(PyObject* module) {
  return add_end_type(module, {"shmtree._core.QueueBase",
                               sizeof(Endpoint),
                               guarded<make_queue>,
                               {endpoint_methods(), putting_methods(), sending_methods(), frame_putting_methods(),
                                getting_methods(), receiving_methods(), frame_taking_methods(), kQueueMethods},
                               {endpoint_attributes()},
                               next_object});
}

}  // namespace shmtree::python
