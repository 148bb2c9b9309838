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

// `name`: of the argument `ends`. False with a Python error set.
bool take_marks(const Replay& replay, const LeafColumns& columns, const char* name, PyObject* ends, PyObject* priority,
                replay::Marks& out) {
  std::vector<char> given_ends;
  Ref given_priorities;
  if (!take_mask(ends, name, columns.rows(), &given_ends)) return false;
  if (!take_numbers(priority, "priority", columns.rows(), &given_priorities)) return false;
  static_assert(sizeof(bool) == sizeof(char));
  const std::span given(reinterpret_cast<const bool*>(given_ends.data()), given_ends.size());
  auto marks =
      replay::marks_of(*replay.buffer, places_of(columns), columns.rows(), given, numbers_in(given_priorities));
  if (marks) out = std::move(*marks);
  if (!marks) raise(marks.error());
  return marks.ok();
}

// Last observations, of each row or of each row that ends its episode: in this order.
struct Finals {
  LeafColumns columns{};
  bool is_by_end = false;

  bool empty() const noexcept { return columns.all().empty(); }
  // The leaves of a row that holds one, with a null for those that none has; no leaves without any.
  std::vector<const void*> leaves(const Replay& replay, std::size_t row, std::size_t end) const {
    std::vector<const void*> found;
    if (empty()) return found;
    const auto& next = replay.buffer->spec().next;
    found.resize(replay.nests.rows->leaves().size() + 1);
    for (std::size_t i = 0; i < next.size(); ++i) {
      const LeafColumns::Column& column = columns.all()[i];
      found[next[i]] = column.first + (is_by_end ? end : row) * column.stride;
    }
    return found;
  }
};

// False with a Python error set: also where there is none for an episode that was cut off and needs one.
bool take_finals(const Replay& replay, PyObject* given, std::size_t rows, const replay::Marks& marks, Finals& out) {
  if (!given || given == Py_None) {
    if (!replay.buffer->spec().has_finals() || !marks.cuts_some_off()) return true;
    PyErr_SetString(PyExc_ValueError, "an episode that is cut off needs final, since the buffer has next=");
    return false;
  }
  if (!replay.nests.final_columns) {
    PyErr_SetString(PyExc_ValueError, "final is for buffers with next=, which keep the last observations");
    return false;
  }
  if (!replay.nests.final_columns->read_columns(given, out.columns)) return false;
  const auto ends = static_cast<std::size_t>(std::ranges::count(marks.ends, 1));
  out.is_by_end = out.columns.rows() != rows;
  if (!out.is_by_end || out.columns.rows() == ends) return true;
  PyErr_Format(PyExc_ValueError, "final has %zu rows; it must have %zu, one for each row, or %zu, one for each end",
               out.columns.rows(), rows, ends);
  return false;
}

// Some of the rows of extend().
struct Stretch {
  std::span<const replay::Writer::Column> columns{};
  const replay::Marks& marks;
  std::uint64_t* indices = nullptr;

  // Those from `from` on. `ends`: as Writer::Rows has them.
  Status add(replay::Writer& writer, std::size_t from, std::size_t count, const char* ends, const char* truncated,
             const WaitContext& wait) const {
    std::vector<replay::Writer::Column> begin(columns.begin(), columns.end());
    for (replay::Writer::Column& column : begin) column.first += from * column.stride;
    const auto at = [from](const char* mask) { return mask ? reinterpret_cast<const bool*>(mask) + from : nullptr; };
    return writer.extend({.columns = begin,
                          .count = count,
                          .ends = at(ends),
                          .truncated = at(truncated),
                          .priorities = marks.priorities.empty() ? nullptr : marks.priorities.data() + from},
                         indices + from, wait);
  }
};

// Each episode's rows, then its end with the last observation.
Status add_episodes(const Replay& replay, const Stretch& rows, std::size_t count, const Finals& finals,
                    replay::Writer& writer, const WaitContext& wait) {
  const replay::Marks& marks = rows.marks;
  std::vector<char> done = marks.ends;  // but those that end() cuts off
  for (std::size_t i = 0; i < done.size(); ++i) done[i] = done[i] && !marks.truncated[i];
  std::size_t from = 0, ends = 0;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (marks.ends[i] == 0) continue;
    Status added = rows.add(writer, std::exchange(from, i + 1), i + 1 - from, done.data(), nullptr, wait);
    if (added) added = writer.end(finals.leaves(replay, i, ends++), marks.truncated[i] != 0, wait);
    if (!added) return added;
  }
  return rows.add(writer, from, count - from, nullptr, nullptr, wait);
}

// Whatever it is, it says how many rows were added before.
PyObject* raise_in_the_middle(const Error& error, std::uint64_t sent, const WriterState& state) {
  raise_waited(error, state);
  add_to_exception("sent", sent);
  return nullptr;
}

// act(), and how many rows it added, whether or not it failed.
template <class Act>
auto counting(const replay::Writer& writer, std::uint64_t& sent, Act act) {
  const std::uint64_t before = writer.added();
  auto result = act();
  sent += writer.added() - before;
  return result;
}

PyObject* extend(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static constexpr Signature<5> kSignature{"extend", {"rows", "ends", "final", "priority", "timeout"}, 1, 1};
  PyObject* given[5];
  if (!take_arguments(kSignature, args, nargs, keywords, given)) return nullptr;
  Deadline deadline;
  if (given[4] && !parse_deadline(nullptr, given[4], &deadline)) return nullptr;
  WriterState& state = state_of(self);
  const std::shared_ptr<Replay> replay = state.replay;
  LeafColumns columns;
  replay::Marks marks;
  Finals finals;
  if (!replay->nests.columns->read_columns(given[0], columns)) return nullptr;
  if (!take_marks(*replay, columns, "ends", given[1], given[3], marks)) return nullptr;
  if (replay->buffer->spec().has_finals() && columns.rows() != 0 && marks.ends.empty()) {
    PyErr_SetString(PyExc_ValueError, "rows with successors need ends, or a leaf that says where episodes end");
    return nullptr;
  }
  if (!take_finals(*replay, given[2], columns.rows(), marks, finals)) return nullptr;
  const std::shared_ptr<replay::Stream> stream = stream_of(state);
  npy_intp count = static_cast<npy_intp>(columns.rows());
  Ref indices(stream ? PyArray_SimpleNew(1, &count, NPY_INT64) : nullptr);
  if (!indices) return nullptr;
  std::vector<replay::Writer::Column> places = places_of(columns);
  const std::int64_t version = state.version;
  places.push_back({reinterpret_cast<const std::byte*>(&version), 0});
  const Stretch rows{places, marks, static_cast<std::uint64_t*>(PyArray_DATA(as_array(indices.get())))};
  const bool is_long = columns.rows() * replay->buffer->row_bytes() > platform::kLongCopyBytes;
  std::uint64_t sent = 0;
  Status added = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    return alone(state, *stream, hooks, deadline, [&](replay::Writer& writer, const WaitContext& wait) {
      return counting(writer, sent, [&] {
        if (!finals.empty()) return add_episodes(*replay, rows, columns.rows(), finals, writer, wait);
        const auto mask = [](const std::vector<char>& bits) { return bits.empty() ? nullptr : bits.data(); };
        return rows.add(writer, 0, columns.rows(), mask(marks.ends), mask(marks.truncated), wait);
      });
    });
  });
  return added ? indices.release() : raise_in_the_middle(added.error(), sent, state);
}

// --- One row to each of several writers

struct VectorRow {
  const Replay& replay;
  const LeafColumns& columns;
  const Finals& finals;
  const replay::Marks& marks;
  const std::vector<std::int64_t>& versions;
};

// Row i: added, and its episode ended where it is to. `end`: how many of those before it do so.
Result<std::uint64_t> add_one(const VectorRow& rows, std::size_t i, std::size_t end, replay::Writer& writer,
                              const WaitContext& wait) {
  std::vector<const void*> leaves;
  for (const LeafColumns::Column& column : rows.columns.all()) leaves.push_back(column.first + i * column.stride);
  leaves.push_back(&rows.versions[i]);
  const bool ends = rows.marks.ends_at(i);
  const bool truncated = ends && rows.marks.truncated[i] != 0;
  replay::RowInfo info{.done = ends && !truncated};
  if (!rows.marks.priorities.empty()) info.priority = rows.marks.priorities[i];
  auto added = writer.add(leaves, info, wait);
  if (!added || !ends) return added;
  const std::vector<const void*> final = rows.finals.leaves(rows.replay, i, end);
  if (!truncated && final.empty()) return added;  // it has ended by itself, or does with the next row
  Status ended = writer.end(final, truncated, wait);
  if (!ended) return std::move(ended).error();
  return added;
}

// The writers of a call: a stream and a version each. False with a Python error set.
bool take_writers(PyObject* writers, std::vector<std::shared_ptr<replay::Stream>>& streams,
                  std::vector<std::int64_t>& versions) {
  if (!PyTuple_CheckExact(writers) || PyTuple_GET_SIZE(writers) == 0) {
    PyErr_SetString(PyExc_TypeError, "no writers");
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

// Those that are left out end nothing.
bool take_left_out(PyObject* given, std::size_t rows, replay::Marks& marks, std::vector<char>& out) {
  if (!take_mask(given, "reset", rows, &out)) return false;
  for (std::size_t i = 0; i < out.size() && !marks.ends.empty(); ++i) {
    if (out[i] != 0) marks.ends[i] = marks.truncated[i] = 0;
  }
  return true;
}

// replay_add_to_each(writers, rows, end, final, priority, reset, timeout)
PyObject* add_to_each(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 7) return PyErr_Format(PyExc_TypeError, "seven arguments are needed");
  Deadline deadline;
  if (!parse_deadline(nullptr, args[6], &deadline)) return nullptr;
  std::vector<std::shared_ptr<replay::Stream>> streams;
  std::vector<std::int64_t> versions;
  if (!take_writers(args[0], streams, versions)) return nullptr;
  const std::size_t writers = streams.size();
  const std::shared_ptr<Replay> replay = state_of(PyTuple_GET_ITEM(args[0], 0)).replay;
  LeafColumns columns;
  Finals finals;
  replay::Marks marks;
  std::vector<char> left_out;
  if (!replay->nests.columns->read_columns(args[1], columns)) return nullptr;
  if (columns.rows() != writers) {
    return PyErr_Format(PyExc_ValueError, "rows has %zu rows; it must have %zu, one for each stream", columns.rows(),
                        writers);
  }
  if (!take_marks(*replay, columns, "end", args[2], args[4], marks)) return nullptr;
  if (!take_left_out(args[5], writers, marks, left_out)) return nullptr;
  if (!take_finals(*replay, args[3], writers, marks, finals)) return nullptr;
  npy_intp count = static_cast<npy_intp>(writers);
  Ref indices(PyArray_SimpleNew(1, &count, NPY_INT64));
  if (!indices) return nullptr;
  auto* const at = static_cast<std::int64_t*>(PyArray_DATA(as_array(indices.get())));
  const VectorRow rows{*replay, columns, finals, marks, versions};
  const WriterState* state = nullptr;  // of the writer that it has come to
  std::uint64_t sent = 0;
  const bool is_long = writers * replay->buffer->row_bytes() > platform::kLongCopyBytes;
  Status added = with_hooks(is_long, [&](platform::WaitHooks& hooks) {
    for (std::size_t i = 0, ends = 0; i < writers; ++i) {
      at[i] = -1;
      if (!left_out.empty() && left_out[i] != 0) continue;
      state = &state_of(PyTuple_GET_ITEM(args[0], static_cast<Py_ssize_t>(i)));
      auto one = alone(*state, *streams[i], hooks, deadline, [&](replay::Writer& writer, const WaitContext& wait) {
        return counting(writer, sent, [&] { return add_one(rows, i, ends, writer, wait); });
      });
      if (!one) return Status(std::move(one).error());
      at[i] = static_cast<std::int64_t>(*one);
      ends += marks.ends_at(i) ? 1 : 0;
    }
    return success();
  });
  return added ? indices.release() : raise_in_the_middle(added.error(), sent, *state);
}

constexpr const char* kExtendDoc =
    "extend($self, rows, *, ends=None, final=None, priority=None, timeout=None)\n--\n\n"
    "Adds rows, the next ones of this stream, and returns their indices: an array of int64.\n\n"
    "`rows` is a nest like that of a row, of arrays that have one dimension more in front, all of one length. `ends`, "
    "a\n"
    "mask, says which rows end an episode, besides those whose leaf `done` is true; those that only `ends` names were\n"
    "cut off, and did not terminate. `final`: last observations, a nest of arrays of the leaves that the buffer has "
    "as\n"
    "`next`, one for each row that ends an episode or one for each row; episodes that were cut off need it there.\n"
    "`priority`: one for each row. ValueError comes before anything is added; another error, such as ``queue.Full``,\n"
    "says as its `sent` how many rows were: the first ones.";

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
