// Adds rows: one or several to a writer, or one to each of several writers.
#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/streams.h"
#include "platform/copy.h"
#include "replay/buffer/given_rows.h"

namespace shmtree::python {

namespace {

using platform::Deadline;
using platform::WaitContext;
using replay::Adding;

// Converts `given` to one float64 per row; leaves `out` null for None. Returns false with a Python error set.
bool take_numbers(PyObject* given, const char* name, std::size_t rows, Ref* out) {
  if (!given || given == Py_None) return true;
  if (PyArray_Check(given) && !PyArray_CheckExact(given) && PyObject_HasAttrString(given, "mask")) {
    PyErr_Format(PyExc_TypeError, "%s is a masked array, but its mask cannot be used: pass a plain array", name);
    return false;
  }
  const Ref array(PyArray_FROM_O(given));
  if (!array) return false;
  const int type = PyArray_TYPE(as_array(array.get()));
  if (!PyTypeNum_ISBOOL(type) && !PyTypeNum_ISINTEGER(type) && !PyTypeNum_ISFLOAT(type)) {
    PyErr_Format(PyExc_TypeError, "%s has the dtype %S; it must have a number for each row", name,
                 PyArray_DESCR(as_array(array.get())));
    return false;
  }
  if (PyArray_NDIM(as_array(array.get())) != 1 ||
      PyArray_DIM(as_array(array.get()), 0) != static_cast<npy_intp>(rows)) {
    const Ref shape(PyObject_GetAttrString(array.get(), "shape"));
    if (shape) {
      PyErr_Format(PyExc_ValueError, "%s has the shape %S; with %zu rows it must be (%zu,)", name, shape.get(), rows,
                   rows);
    }
    return false;
  }
  *out = Ref(PyArray_FROMANY(array.get(), NPY_DOUBLE, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST));
  return static_cast<bool>(*out);
}

std::span<const double> numbers_in(const Ref& array) noexcept {
  if (!array) return {};
  return {static_cast<const double*>(PyArray_DATA(as_array(array.get()))),
          static_cast<std::size_t>(PyArray_SIZE(as_array(array.get())))};
}

// Converts `given` to true or false per row, also from 1 and 0; leaves `out` empty for None. Returns false with a
// Python error set.
bool take_mask(PyObject* given, const char* name, std::size_t rows, std::vector<char>* out) {
  Ref array;
  if (!take_numbers(given, name, rows, &array)) return false;
  for (const double each : numbers_in(array)) {
    if (each != 0 && each != 1) {
      const Ref number(PyFloat_FromDouble(each));
      if (number)
        PyErr_Format(PyExc_ValueError, "%s contains %S; it must be a mask: true or false for each row", name,
                     number.get());
      return false;
    }
    out->push_back(each != 0);
  }
  return true;
}

// Converts `given` to a number; leaves `out` empty for None. Returns false with a Python error set.
bool take_number(PyObject* given, std::optional<double>* out) {
  if (!given || given == Py_None) return true;
  const double number = PyFloat_AsDouble(given);
  *out = number;
  if (number != -1.0 || !PyErr_Occurred()) return true;
  if (PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Format(PyExc_TypeError, "priority is %R; it must be a number", given);
  }
  return false;
}

// Arguments of a call; null or None if they were not given.
struct Given {
  PyObject *rows = nullptr, *ends = nullptr, *final = nullptr, *priority = nullptr;
  Adding adding = Adding::kRows;
  std::span<const char> excluded{};
  std::size_t streams = 1;  // for kOneEach
};

// Reads the rows. Returns nothing, with a Python error set, if they do not fit the buffer.
std::optional<replay::GivenRows> take_rows(const Replay& replay, const Given& given, CallRows& to) {
  const RowForm form = given.adding == Adding::kOneRow ? RowForm::kOne : RowForm::kMany;
  if (!replay.nests.rows->read(given.rows, form, to.rows)) return std::nullopt;
  const std::size_t count = to.rows.rows();
  if (given.adding == Adding::kOneEach && count != given.streams) {
    PyErr_Format(PyExc_ValueError, "rows has %zu rows; it must have %zu, one for each stream", count, given.streams);
    return std::nullopt;
  }
  std::vector<char> ends;
  std::optional<double> priority;
  Ref priorities;
  const char* const name = given.adding == Adding::kOneEach ? "end" : "ends";
  if (given.ends && !take_mask(given.ends, name, count, &ends)) return std::nullopt;
  const bool has_priorities = form == RowForm::kOne ? take_number(given.priority, &priority)
                                                    : take_numbers(given.priority, "priority", count, &priorities);
  if (!has_priorities) return std::nullopt;
  static_assert(sizeof(bool) == sizeof(char));
  replay::GivenMarks marks{.ends = {reinterpret_cast<const bool*>(ends.data()), ends.size()},
                           .priorities = numbers_in(priorities),
                           .excluded = given.excluded};
  if (priority) marks.priorities = {&*priority, 1};
  if (given.final && given.final != Py_None) {
    if (replay.nests.final && !replay.nests.final->read(given.final, form, to.finals)) return std::nullopt;
    marks.finals = to.finals.all();
    marks.finals_count = to.finals.rows();
  }
  replay::GivenRows rows(to.rows.all(), count);
  Status fits = rows.mark(*replay.buffer, marks, given.adding, to.infos);
  if (fits) return rows;
  raise(fits.error());
  return std::nullopt;
}

// Raises the error with the number of rows that were added before it.
PyObject* raise_in_the_middle(const Error& error, const WriterState& state) {
  raise_waited(error, state);
  add_to_exception("sent", error.completed);
  return nullptr;
}

// Adds rows to a stream. Writes the index of row n to indices[n].
Status add_to(const WriterState& state, replay::Stream& stream, replay::GivenRows& rows, std::size_t from,
              std::size_t until, std::int64_t version, std::uint64_t* indices, platform::WaitHooks& hooks,
              const Deadline& deadline) {
  return alone(state, stream, hooks, deadline, [&](replay::Writer& writer, const WaitContext& wait) {
    return rows.add(writer, from, until, version, indices, wait);
  });
}

bool is_long(const Replay& replay, const replay::GivenRows& rows) {
  return rows.count() * replay.buffer->row_bytes() > platform::kLongCopyBytes;
}

// Adds all rows to the stream of the writer. Returns false with a Python error set.
bool add_rows(WriterState& state, replay::GivenRows& rows, const Deadline& deadline, std::uint64_t* indices) {
  const std::shared_ptr<replay::Stream> stream = stream_of(state);
  if (!stream) return false;
  Status added = with_hooks(is_long(*state.replay, rows), [&](platform::WaitHooks& hooks) {
    return add_to(state, *stream, rows, 0, rows.count(), state.version, indices, hooks, deadline);
  });
  if (!added) raise_in_the_middle(added.error(), state);
  return added.ok();
}

// Returns an array of int64, filled by the caller.
Ref new_indices(std::size_t count, std::uint64_t** at) {
  npy_intp size = static_cast<npy_intp>(count);
  Ref indices(PyArray_SimpleNew(1, &size, NPY_INT64));
  if (indices) *at = static_cast<std::uint64_t*>(PyArray_DATA(as_array(indices.get())));
  return indices;
}

PyObject* add(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<4> kSignature{"add", {"row", "priority", "timeout", "final"}, 1, 1};
  PyObject* given[4];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  Deadline deadline;
  if (given[2] && !parse_deadline(nullptr, given[2], &deadline)) return nullptr;
  WriterState& state = state_of(self);
  const std::shared_ptr<Replay> replay = state.replay;
  BorrowedRows memory;
  auto rows = take_rows(*replay, {.rows = given[0], .final = given[3], .priority = given[1], .adding = Adding::kOneRow},
                        *memory);
  std::uint64_t index = 0;
  return rows && add_rows(state, *rows, deadline, &index) ? PyLong_FromUnsignedLongLong(index) : nullptr;
}

PyObject* extend(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<5> kSignature{"extend", {"rows", "ends", "final", "priority", "timeout"}, 1, 1};
  PyObject* given[5];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  Deadline deadline;
  if (given[4] && !parse_deadline(nullptr, given[4], &deadline)) return nullptr;
  WriterState& state = state_of(self);
  const std::shared_ptr<Replay> replay = state.replay;
  BorrowedRows memory;
  auto rows =
      take_rows(*replay, {.rows = given[0], .ends = given[1], .final = given[2], .priority = given[3]}, *memory);
  if (!rows) return nullptr;
  std::uint64_t* at = nullptr;
  Ref indices = new_indices(rows->count(), &at);
  return indices && add_rows(state, *rows, deadline, at) ? indices.release() : nullptr;
}

// --- One row for each of several writers

// Gets the stream and the version of each writer of a call. Returns false with a Python error set.
bool take_writers(PyObject* writers, std::vector<std::shared_ptr<replay::Stream>>& streams,
                  std::vector<std::int64_t>& versions) {
  if (!PyTuple_CheckExact(writers) || PyTuple_GET_SIZE(writers) == 0) {
    PyErr_SetString(PyExc_TypeError, "writers must be a tuple of at least one writer");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(writers); ++i) {
    PyObject* const writer = PyTuple_GET_ITEM(writers, i);
    if (!is_writer(writer)) return false;
    streams.push_back(stream_of(state_of(writer)));
    if (!streams.back()) return false;
    versions.push_back(state_of(writer).version);
  }
  return true;
}

// Implements replay_add_to_each(writers, rows, end, final, priority, reset, timeout, resets_in_next_step).
PyObject* add_to_each(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 8)
    return PyErr_Format(PyExc_TypeError, "replay_add_to_each() takes 8 arguments, but %zd were given", nargs);
  Deadline deadline;
  if (!parse_deadline(nullptr, args[6], &deadline)) return nullptr;
  std::vector<std::shared_ptr<replay::Stream>> streams;
  std::vector<std::int64_t> versions;
  if (!take_writers(args[0], streams, versions)) return nullptr;
  const std::shared_ptr<Replay> replay = state_of(PyTuple_GET_ITEM(args[0], 0)).replay;
  std::vector<char> excluded;
  if (!take_mask(args[5], "reset", streams.size(), &excluded)) return nullptr;
  if (args[7] == Py_True) replay::exclude_resets(streams, excluded);
  BorrowedRows memory;
  auto rows = take_rows(*replay,
                        {.rows = args[1],
                         .ends = args[2],
                         .final = args[3],
                         .priority = args[4],
                         .adding = Adding::kOneEach,
                         .excluded = excluded,
                         .streams = streams.size()},
                        *memory);
  std::uint64_t* at = nullptr;
  Ref indices = rows ? new_indices(streams.size(), &at) : Ref();
  if (!indices) return nullptr;
  std::fill_n(at, streams.size(), ~std::uint64_t{0});
  const WriterState* state = nullptr;  // of the writer that is adding its row
  Status added = with_hooks(is_long(*replay, *rows), [&](platform::WaitHooks& hooks) {
    return replay::add_to_each(streams, excluded, [&](std::size_t i) {
      state = &state_of(PyTuple_GET_ITEM(args[0], static_cast<Py_ssize_t>(i)));
      return add_to(*state, *streams[i], *rows, i, i + 1, versions[i], at, hooks, deadline);
    });
  });
  return added ? indices.release() : raise_in_the_middle(added.error(), *state);
}

const PyMethodDef kMethods[] = {
    {"add", as_method<add>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"extend", as_method<extend>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
};

PyMethodDef functions[] = {
    {"replay_add_to_each", as_method<add_to_each>(), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::span<const PyMethodDef> methods_that_add() {
  return kMethods;
}

bool init_vector_add(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace shmtree::python
