// Adds many rows at once: several to one writer, or one to each of several writers.
#include <vector>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/streams.h"
#include "platform/copy.h"
#include "replay/buffer/episodes.h"

namespace shmtree::python {

namespace {

using platform::Deadline;
using platform::WaitContext;

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

std::vector<replay::Writer::Column> columns_of(const LeafColumns& columns) {
  std::vector<replay::Writer::Column> destinations;
  for (const LeafColumns::Column& column : columns.all()) destinations.push_back({column.first, column.stride});
  return destinations;
}

// `name`: name of the argument `ends` in errors. Skipped rows end no episode. Returns false with a Python error set.
bool take_marks(const Replay& replay, const char* name, PyObject* ends, PyObject* priority,
                std::span<const char> excluded, replay::GivenRows& rows) {
  std::vector<char> given_ends;
  Ref given_priorities;
  if (!take_mask(ends, name, rows.count, &given_ends)) return false;
  if (!take_numbers(priority, "priority", rows.count, &given_priorities)) return false;
  static_assert(sizeof(bool) == sizeof(char));
  const std::span given(reinterpret_cast<const bool*>(given_ends.data()), given_ends.size());
  auto marks =
      replay::marks_of(*replay.buffer, rows.columns, rows.count, {given, numbers_in(given_priorities), excluded});
  if (marks) rows.marks = std::move(*marks);
  if (!marks) raise(marks.error());
  return marks.ok();
}

// Takes the last observations. Returns false with a Python error set, also if an episode that was cut off needs one and
// has none.
bool take_finals(const Replay& replay, PyObject* given, LeafColumns& kept, replay::GivenRows& rows) {
  const replay::Spec& spec = replay.buffer->spec();
  if (!given || given == Py_None) {
    Status fits = replay::Finals::check_absence(spec, rows.marks);
    if (!fits) raise(fits.error());
    return fits.ok();
  }
  if (replay.nests.final_columns && !replay.nests.final_columns->read_columns(given, kept)) return false;
  auto finals = replay::Finals::of(spec, columns_of(kept), kept.rows(), rows.count, rows.marks);
  if (finals) rows.finals = std::move(*finals);
  if (!finals) raise(finals.error());
  return finals.ok();
}

// Raises the error with the number of rows that were added before it.
PyObject* raise_in_the_middle(const Error& error, std::uint64_t sent, const WriterState& state) {
  raise_waited(error, state);
  add_to_exception("sent", sent);
  return nullptr;
}

PyObject* extend(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<5> kSignature{"extend", {"rows", "ends", "final", "priority", "timeout"}, 1, 1};
  PyObject* given[5];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  Deadline deadline;
  if (given[4] && !parse_deadline(nullptr, given[4], &deadline)) return nullptr;
  WriterState& state = state_of(self);
  const std::shared_ptr<Replay> replay = state.replay;
  LeafColumns columns, finals;
  if (!replay->nests.columns->read_columns(given[0], columns)) return nullptr;
  const std::vector<replay::Writer::Column> destinations = columns_of(columns);
  replay::GivenRows rows{.columns = destinations, .count = columns.rows()};
  if (!take_marks(*replay, "ends", given[1], given[3], {}, rows)) return nullptr;
  if (replay->buffer->spec().has_finals() && rows.count != 0 && rows.marks.ends.empty()) {
    PyErr_SetString(PyExc_ValueError,
                    "rows of a buffer with next= need ends, or a leaf that marks the ends of episodes");
    return nullptr;
  }
  if (!take_finals(*replay, given[2], finals, rows)) return nullptr;
  const std::shared_ptr<replay::Stream> stream = stream_of(state);
  npy_intp count = static_cast<npy_intp>(rows.count);
  Ref indices(stream ? PyArray_SimpleNew(1, &count, NPY_INT64) : nullptr);
  if (!indices) return nullptr;
  auto* const at = static_cast<std::uint64_t*>(PyArray_DATA(as_array(indices.get())));
  const std::int64_t version = state.version;
  const bool is_long = rows.count * replay->buffer->row_bytes() > platform::kLongCopyBytes;
  Status added = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    return alone(state, *stream, hooks, deadline, [&](replay::Writer& writer, const WaitContext& wait) {
      return replay::add_rows(writer, replay->buffer->spec(), rows, version, at, wait);
    });
  });
  return added ? indices.release() : raise_in_the_middle(added.error(), added.error().completed, state);
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

using Streams = std::vector<std::shared_ptr<replay::Stream>>;

// Marks the rows that are not steps: those that the caller names and, if environments reset in the next step, those
// after a row that ended an episode. Returns false with a Python error set.
bool take_excluded(PyObject* given, bool resets_in_next_step, const Streams& streams, std::vector<char>& out) {
  if (!take_mask(given, "reset", streams.size(), &out)) return false;
  if (!resets_in_next_step) return true;
  out.resize(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (streams[i]->writer.has_ended()) out[i] = 1;
  }
  return true;
}

// Implements replay_add_to_each(writers, rows, end, final, priority, reset, timeout, resets_in_next_step).
PyObject* add_to_each(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 8)
    return PyErr_Format(PyExc_TypeError, "replay_add_to_each() takes 8 arguments, but %zd were given", nargs);
  Deadline deadline;
  if (!parse_deadline(nullptr, args[6], &deadline)) return nullptr;
  Streams streams;
  std::vector<std::int64_t> versions;
  if (!take_writers(args[0], streams, versions)) return nullptr;
  const std::size_t writers = streams.size();
  const std::shared_ptr<Replay> replay = state_of(PyTuple_GET_ITEM(args[0], 0)).replay;
  LeafColumns columns, finals;
  if (!replay->nests.columns->read_columns(args[1], columns)) return nullptr;
  const std::vector<replay::Writer::Column> destinations = columns_of(columns);
  replay::GivenRows rows{.columns = destinations, .count = columns.rows()};
  if (rows.count != writers) {
    return PyErr_Format(PyExc_ValueError, "rows has %zu rows; it must have %zu, one for each stream", rows.count,
                        writers);
  }
  std::vector<char> excluded;
  if (!take_excluded(args[5], args[7] == Py_True, streams, excluded)) return nullptr;
  if (!take_marks(*replay, "end", args[2], args[4], excluded, rows)) return nullptr;
  if (!take_finals(*replay, args[3], finals, rows)) return nullptr;
  npy_intp count = static_cast<npy_intp>(writers);
  Ref indices(PyArray_SimpleNew(1, &count, NPY_INT64));
  if (!indices) return nullptr;
  auto* const at = static_cast<std::int64_t*>(PyArray_DATA(as_array(indices.get())));
  const WriterState* state = nullptr;  // of the writer that is adding its row
  std::uint64_t sent = 0;              // streams that have stored or skipped their row; 0 until a row is stored
  const auto skips = [&](std::size_t i) { return !excluded.empty() && excluded[i] != 0; };
  const auto begin_skipped = [&] {
    for (std::size_t i = 0; i < writers; ++i) {
      if (skips(i)) streams[i]->writer.begin_episode();
    }
  };
  const bool is_long = writers * replay->buffer->row_bytes() > platform::kLongCopyBytes;
  Status added = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    for (std::size_t i = 0, ends = 0; i < writers; ++i) {
      at[i] = -1;
      if (skips(i)) continue;
      state = &state_of(PyTuple_GET_ITEM(args[0], static_cast<Py_ssize_t>(i)));
      auto one = alone(*state, *streams[i], hooks, deadline, [&](replay::Writer& writer, const WaitContext& wait) {
        return replay::add_row(writer, replay->buffer->spec(), rows, i, ends, versions[i], wait);
      });
      const std::uint64_t stored = one ? 1 : one.error().completed;
      // Deferred until the first row is stored: if the call fails before that, the program may repeat it.
      if (stored != 0 && sent == 0) begin_skipped();
      if (stored != 0 || sent != 0) sent = i + stored;
      if (!one) return Status(std::move(one).error());
      at[i] = static_cast<std::int64_t>(*one);
      ends += rows.marks.ends_at(i) ? 1 : 0;
    }
    if (sent == 0) begin_skipped();  // every stream skips its row
    return success();
  });
  return added ? indices.release() : raise_in_the_middle(added.error(), sent, *state);
}

const PyMethodDef kManyMethods[] = {
    {"extend", as_method<extend>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
};

PyMethodDef functions[] = {
    {"replay_add_to_each", as_method<add_to_each>(), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::span<const PyMethodDef> methods_for_many() {
  return kManyMethods;
}

bool init_vector_add(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace shmtree::python
