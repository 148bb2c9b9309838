// What adds many rows at once: to one writer, and one to each of several.
#include <vector>

#include "bindings/cpython/arguments.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/guarded.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/streams.h"
#include "platform/copy.h"

namespace shmtree::python {

namespace {

using platform::Deadline;
using platform::WaitContext;

// One number for each row, as float64; nothing for None. False with a Python error set.
bool take_numbers(PyObject* given, const char* name, std::size_t rows, Ref* out) {
  if (!given || given == Py_None) return true;
  const Ref array(PyArray_FROM_O(given));
  if (!array) return false;
  const int type = PyArray_TYPE(as_array(array.get()));
  if (!PyTypeNum_ISBOOL(type) && !PyTypeNum_ISINTEGER(type) && !PyTypeNum_ISFLOAT(type)) {
    PyErr_Format(PyExc_TypeError, "%s is of %S; it must be a number for each row", name,
                 PyArray_DESCR(as_array(array.get())));
    return false;
  }
  if (PyArray_NDIM(as_array(array.get())) != 1 ||
      PyArray_DIM(as_array(array.get()), 0) != static_cast<npy_intp>(rows)) {
    const Ref shape(PyObject_GetAttrString(array.get(), "shape"));
    if (shape) {
      PyErr_Format(PyExc_ValueError, "%s has the shape %S, and there are %zu rows: it must be (%zu,)", name,
                   shape.get(), rows, rows);
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

// True or false for each row, also as 1 and 0; empty for None. False with a Python error set.
bool take_mask(PyObject* given, const char* name, std::size_t rows, std::vector<char>* out) {
  Ref array;
  if (!take_numbers(given, name, rows, &array)) return false;
  for (const double each : numbers_in(array)) {
    if (each != 0 && each != 1) {
      const Ref number(PyFloat_FromDouble(each));
      if (number)
        PyErr_Format(PyExc_ValueError, "%s has %S; it must be a mask: true or false for each row", name, number.get());
      return false;
    }
    out->push_back(each != 0);
  }
  return true;
}

std::vector<replay::Writer::Column> places_of(const LeafColumns& columns) {
  std::vector<replay::Writer::Column> places;
  for (const LeafColumns::Column& column : columns.all()) places.push_back({column.first, column.stride});
  return places;
}

// False with a Python error set.
bool take_marks(const Replay& replay, const LeafColumns& columns, PyObject* ends, PyObject* priority,
                replay::Marks& out) {
  std::vector<char> given_ends;
  Ref given_priorities;
  if (!take_mask(ends, "ends", columns.rows(), &given_ends)) return false;
  if (!take_numbers(priority, "priority", columns.rows(), &given_priorities)) return false;
  auto marks =
      replay::marks_of(*replay.buffer, places_of(columns), columns.rows(), given_ends, numbers_in(given_priorities));
  if (marks) out = std::move(*marks);
  if (!marks) raise(marks.error());
  return marks.ok();
}

PyObject* extend(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<4> kSignature{"extend", {"rows", "ends", "priority", "timeout"}, 1, 1};
  PyObject* given[4];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  Deadline deadline;
  if (given[3] && !parse_deadline(nullptr, given[3], &deadline)) return nullptr;
  WriterState& state = state_of(self);
  const std::shared_ptr<Replay> replay = state.replay;
  LeafColumns columns;
  replay::Marks marks;
  if (!replay->nests.columns->read_columns(given[0], columns)) return nullptr;
  if (!take_marks(*replay, columns, given[1], given[2], marks)) return nullptr;
  if (replay->buffer->spec().has_finals() && marks.ends.empty()) {
    PyErr_SetString(PyExc_ValueError, "rows with successors need ends, or a leaf that says where episodes end");
    return nullptr;
  }
  const std::shared_ptr<replay::Stream> stream = stream_of(state);
  npy_intp count = static_cast<npy_intp>(columns.rows());
  Ref indices(stream ? PyArray_SimpleNew(1, &count, NPY_INT64) : nullptr);
  if (!indices) return nullptr;
  std::vector<replay::Writer::Column> places = places_of(columns);
  const std::int64_t version = state.version;
  places.push_back({reinterpret_cast<const std::byte*>(&version), 0});
  const replay::Writer::Rows rows{
      .columns = places,
      .count = columns.rows(),
      .ends = marks.ends.empty() ? nullptr : reinterpret_cast<const bool*>(marks.ends.data()),
      .truncated = marks.truncated.empty() ? nullptr : reinterpret_cast<const bool*>(marks.truncated.data()),
      .priorities = marks.priorities.empty() ? nullptr : marks.priorities.data()};
  auto* const at = static_cast<std::uint64_t*>(PyArray_DATA(as_array(indices.get())));
  const bool is_long = columns.rows() * replay->buffer->row_bytes() > platform::kLongCopyBytes;
  Status added = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    return alone(state, *stream, hooks, deadline,
                 [&](replay::Writer& writer, const WaitContext& wait) { return writer.extend(rows, at, wait); });
  });
  return added ? indices.release() : raise_waited(added.error(), state);
}

// --- One row to each of several writers

struct VectorRow {
  const Replay& replay;
  const LeafColumns &columns, &finals;
  const replay::Marks& marks;
  const std::vector<std::int64_t>& versions;
};

// Row i: added, and its episode ended where it is to.
Result<std::uint64_t> add_one(const VectorRow& rows, std::size_t i, replay::Writer& writer, const WaitContext& wait) {
  std::vector<const void*> leaves;
  for (const LeafColumns::Column& column : rows.columns.all()) leaves.push_back(column.first + i * column.stride);
  leaves.push_back(&rows.versions[i]);
  const bool ends = !rows.marks.ends.empty() && rows.marks.ends[i] != 0;
  const bool truncated = ends && rows.marks.truncated[i] != 0;
  replay::RowInfo info{.done = ends && !truncated};
  if (!rows.marks.priorities.empty()) info.priority = rows.marks.priorities[i];
  auto added = writer.add(leaves, info, wait);
  if (!added || !ends) return added;
  std::vector<const void*> final;
  if (!rows.finals.all().empty()) {
    final.resize(leaves.size());
    for (std::size_t k = 0; k < rows.replay.buffer->spec().next.size(); ++k) {
      final[rows.replay.buffer->spec().next[k]] = rows.finals.all()[k].first + i * rows.finals.all()[k].stride;
    }
  }
  if (!truncated && final.empty()) return added;  // it has ended by itself, or does with the next row
  Status ended = writer.end(final, truncated, wait);
  if (!ended) return std::move(ended).error();
  return added;
}

bool take_finals(const Replay& replay, PyObject* given, const LeafColumns& columns, LeafColumns& out) {
  if (!given || given == Py_None) return true;
  if (!replay.nests.final_columns) {
    PyErr_SetString(PyExc_ValueError, "final is for buffers with next=, which keep the last observations");
    return false;
  }
  if (!replay.nests.final_columns->read_columns(given, out)) return false;
  if (out.rows() == columns.rows()) return true;
  PyErr_Format(PyExc_ValueError, "final has %zu rows, and there are %zu", out.rows(), columns.rows());
  return false;
}

// replay_add_to_each(writers, rows, end, final, priority, timeout)
PyObject* add_to_each(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 6) return PyErr_Format(PyExc_TypeError, "six arguments are needed");
  Deadline deadline;
  if (!parse_deadline(nullptr, args[5], &deadline)) return nullptr;
  if (!PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) == 0)
    return PyErr_Format(PyExc_TypeError, "no writers");
  const auto writers = static_cast<std::size_t>(PyTuple_GET_SIZE(args[0]));
  std::vector<std::shared_ptr<replay::Stream>> streams;
  std::vector<std::int64_t> versions;
  for (std::size_t i = 0; i < writers; ++i) {
    PyObject* const writer = PyTuple_GET_ITEM(args[0], static_cast<Py_ssize_t>(i));
    if (!is_writer(writer)) return nullptr;
    streams.push_back(stream_of(state_of(writer)));
    if (!streams.back()) return nullptr;
    versions.push_back(state_of(writer).version);
  }
  const std::shared_ptr<Replay> replay = state_of(PyTuple_GET_ITEM(args[0], 0)).replay;
  LeafColumns columns, finals;
  replay::Marks marks;
  if (!replay->nests.columns->read_columns(args[1], columns)) return nullptr;
  if (columns.rows() != writers) {
    return PyErr_Format(PyExc_ValueError, "rows has %zu rows; it must have %zu, one for each stream", columns.rows(),
                        writers);
  }
  if (!take_marks(*replay, columns, args[2], args[4], marks)) return nullptr;
  if (!take_finals(*replay, args[3], columns, finals)) return nullptr;
  if (replay->buffer->spec().has_finals() && marks.cuts_some_off() && finals.all().empty()) {
    PyErr_SetString(PyExc_ValueError, "an episode that is cut off needs final, since the buffer has next=");
    return nullptr;
  }
  npy_intp count = static_cast<npy_intp>(writers);
  Ref indices(PyArray_SimpleNew(1, &count, NPY_INT64));
  if (!indices) return nullptr;
  auto* const at = static_cast<std::int64_t*>(PyArray_DATA(as_array(indices.get())));
  const VectorRow rows{*replay, columns, finals, marks, versions};
  const WriterState* state = nullptr;  // of the writer that it has come to
  const bool is_long = writers * replay->buffer->row_bytes() > platform::kLongCopyBytes;
  Status added = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    for (std::size_t i = 0; i < writers; ++i) {
      state = &state_of(PyTuple_GET_ITEM(args[0], static_cast<Py_ssize_t>(i)));
      auto one = alone(*state, *streams[i], hooks, deadline,
                       [&](replay::Writer& writer, const WaitContext& wait) { return add_one(rows, i, writer, wait); });
      if (!one) return Status(std::move(one).error());
      at[i] = static_cast<std::int64_t>(*one);
    }
    return success();
  });
  return added ? indices.release() : raise_waited(added.error(), *state);
}

constexpr const char* kExtendDoc =
    "extend($self, rows, *, ends=None, priority=None, timeout=None)\n--\n\n"
    "Adds rows, the next ones of this stream, and returns their indices: an array of int64.\n\n"
    "`rows` is a nest like that of a row, of arrays that have one dimension more in front, all of one length. `ends`, "
    "a\n"
    "mask, says which rows end an episode, besides those whose leaf `done` is true; those that only `ends` names were\n"
    "cut off, and did not terminate. `priority`: one for each. Errors as of add(), before anything is added.";

const PyMethodDef many_methods[] = {
    {"extend", as_method<extend>(), METH_FASTCALL | METH_KEYWORDS, kExtendDoc},
};

PyMethodDef functions[] = {
    {"replay_add_to_each", as_method<add_to_each>(), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::span<const PyMethodDef> methods_for_many() {
  return many_methods;
}

bool init_vector_add(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace shmtree::python
