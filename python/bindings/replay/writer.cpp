// _core.ReplayWriter: adds one stream of rows.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/streams.h"
#include "platform/errors.h"

namespace shmtree::python {

namespace {

PyTypeObject* writer_type = nullptr;

using platform::Deadline;
using platform::WaitContext;

PyObject* end(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<3> kSignature{"end", {"final", "truncated", "timeout"}, 0, 0};
  PyObject* given[3];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  const int truncated = truth_of(given[1], 0);
  if (truncated < 0) return PyErr_Format(PyExc_TypeError, "truncated is %R; it must be true or false", given[1]);
  Deadline deadline;
  if (given[2] && !parse_deadline(nullptr, given[2], &deadline)) return nullptr;
  WriterState& state = state_of(self);
  const std::shared_ptr<Replay> replay = state.replay;
  BorrowedRows final;
  if (given[0] && given[0] != Py_None) {
    if (!replay->nests.final) return raise(invalid("final needs a buffer with next=, which stores last observations"));
    if (!replay->nests.final->read(given[0], RowForm::kOne, final->finals)) return nullptr;
  }
  const std::shared_ptr<replay::Stream> stream = stream_of(state);
  if (!stream) return nullptr;
  Status ended = with_hooks(replay->buffer->row_bytes() > platform::kLongCopyBytes, [&](platform::WaitHooks& hooks) {
    return alone(state, *stream, hooks, deadline, [&](replay::Writer& writer, const WaitContext& wait) {
      return writer.end(final->finals.all(), truncated != 0, wait);
    });
  });
  if (!ended) return raise_waited(ended.error(), state);
  Py_RETURN_NONE;
}

PyObject* close_writer(PyObject* self, PyObject*) {
  WriterState& state = state_of(self);
  state.closed = true;
  state.replay->buffer->tables()->wake_all();
  std::shared_ptr<replay::Stream> stream = std::move(state.stream);
  if (!stream || !stream->belongs_to_this_process()) {
    replay::release_stream(std::move(stream));
  } else if (!stream->is_used_by_caller()) {  // if a signal handler calls this, the interrupted call closes the stream
    GilHooks hooks;
    const WaitContext wait{Deadline::never(), &hooks};
    if (!replay::lock(*stream, wait)) return nullptr;
    const std::lock_guard guard(stream->mutex, std::adopt_lock);
    stream->writer.close();
  }
  Py_RETURN_NONE;
}

// Closes the stream when the process exits, so that other writers can use the rest of its chunk. Does not wait for a
// thread that is using the stream.
PyObject* leave(PyObject* self, PyObject*) {
  const std::shared_ptr<replay::Stream> stream = state_of(self).stream;
  if (stream && stream->belongs_to_this_process() && stream->mutex.try_lock()) {
    const std::lock_guard guard(stream->mutex, std::adopt_lock);
    stream->writer.close();
  }
  Py_RETURN_NONE;
}

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}

PyObject* exit(PyObject* self, PyObject*) {
  return close_writer(self, nullptr);
}

PyObject* get_closed(PyObject* self, void*) {
  return PyBool_FromLong(state_of(self).closed);
}

PyObject* get_version(PyObject* self, void*) {
  return PyLong_FromLongLong(state_of(self).version);
}

int set_version(PyObject* self, PyObject* value, void*) {
  if (!value) {
    PyErr_SetString(PyExc_AttributeError, "the version cannot be deleted");
    return -1;
  }
  const Ref number(PyNumber_Index(value));
  if (!number) {
    PyErr_Format(PyExc_TypeError, "version is %R; it must be an int", value);
    return -1;
  }
  int overflow = 0;
  const long long version = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
  if (overflow != 0) {
    PyErr_Format(PyExc_ValueError, "version is %S; it must be from -2**63 to 2**63 - 1", number.get());
    return -1;
  }
  WriterState& state = state_of(self);
  state.version = version;
  state.replay->buffer->statistics().meet(version);
  return 0;
}

// Reading the number before the first row fixes it: that row does not determine it any more.
PyObject* get_stream(PyObject* self, void*) {
  WriterState& state = state_of(self);
  const std::shared_ptr<replay::Stream> stream = stream_of(state);
  if (!stream) return nullptr;
  GilHooks hooks;
  auto number = alone(state, *stream, hooks, Deadline::never(),
                      [&](replay::Writer&, const WaitContext&) { return Result<std::uint32_t>(stream->number()); });
  return number ? PyLong_FromUnsignedLong(*number) : raise_waited(number.error(), state);
}

PyObject* get_added(PyObject* self, void*) {
  const std::shared_ptr<replay::Stream>& stream = state_of(self).stream;
  return PyLong_FromUnsignedLongLong(stream ? stream->writer.added() : 0);
}

PyObject* make_writer(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* given = nullptr;
  static const char* names[] = {"replay", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", const_cast<char**>(names), &given)) return nullptr;
  std::shared_ptr<Replay> replay;
  try {
    replay = pybind11::cast<std::shared_ptr<Replay>>(pybind11::handle(given));
  } catch (const pybind11::cast_error&) {
  }
  if (!replay) return PyErr_Format(PyExc_TypeError, "%R is not a replay buffer", given);
  PyObject* self = type->tp_alloc(type, 0);
  if (self) new (&state_of(self)) WriterState(std::move(replay));
  return self;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  state_of(self).~WriterState();
  type->tp_free(self);
  Py_DECREF(type);
}

const PyMethodDef kOwnMethods[] = {
    {"end", as_method<end>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"close", as_method<close_writer>(), METH_NOARGS, nullptr},
    {"_leave", as_method<leave>(), METH_NOARGS, nullptr},
    {"__enter__", as_method<enter>(), METH_NOARGS, nullptr},
    {"__exit__", as_method<exit>(), METH_VARARGS, nullptr},
};

PyGetSetDef attributes[] = {
    {"closed", guarded<get_closed>, nullptr, nullptr, nullptr},
    {"version", guarded<get_version>, guarded<set_version>, nullptr, nullptr},
    {"stream", guarded<get_stream>, nullptr, nullptr, nullptr},
    {"added", guarded<get_added>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[16] = {};  // kOwnMethods, and those that add rows

PyType_Slot writer_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(guarded<make_writer>)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, nullptr},
};

PyType_Spec writer_spec = {"shmtree._core.ReplayWriter", sizeof(WriterObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, writer_slots};

}  // namespace

bool is_writer(PyObject* object) {
  if (PyObject_TypeCheck(object, writer_type)) return true;
  PyErr_Format(PyExc_TypeError, "%R is not a writer", object);
  return false;
}

bool init_replay_writer(PyObject* module) {
  std::ranges::copy(methods_that_add(), std::ranges::copy(kOwnMethods, methods).out);
  const Ref type(PyType_FromSpec(&writer_spec));
  writer_type = reinterpret_cast<PyTypeObject*>(Py_XNewRef(type.get()));
  return type && init_vector_add(module) && PyModule_AddObjectRef(module, "ReplayWriter", type.get()) == 0;
}

}  // namespace shmtree::python
