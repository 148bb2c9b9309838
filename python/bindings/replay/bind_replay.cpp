// _core.Replay, ReplayNest and ReplayBatch: the rows of replay buffers, and draws of them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "bindings/bind.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/batch.h"
#include "platform/machine.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using memory::Arena;
using platform::WaitContext;
using replay::Store;

namespace {

std::shared_ptr<Nest> make_nest(py::handle skeleton, py::handle leaves, py::handle root, py::handle convert,
                                py::handle refuse) {
  auto nest = Nest::make(skeleton.ptr(), leaves.ptr(), root.ptr(), convert.ptr(), refuse.ptr());
  if (!nest) throw py::error_already_set();
  return nest;
}

using TableTerms = std::tuple<std::uint32_t, double, double, double, std::uint32_t>;
using LimitTerms = std::tuple<double, std::uint64_t, std::optional<double>>;
using OutputTerms = std::tuple<std::uint32_t, std::size_t, std::uint32_t, bool, bool>;

ReplayTerms make_terms(std::uint64_t capacity, std::uint64_t chunk, std::uint64_t streams, std::uint64_t ahead,
                       bool finals, const std::vector<TableTerms>& tables, const std::vector<OutputTerms>& outputs,
                       std::uint32_t n_step, double gamma, std::int64_t done, std::vector<std::size_t> final,
                       const std::optional<LimitTerms>& limit) {
  ReplayTerms terms;
  terms.capacity = capacity;
  terms.chunk = chunk;
  terms.streams = streams;
  terms.ahead = ahead;
  terms.finals = finals;
  for (const auto& [kind, alpha, beta, eps, max_times] : tables) {
    terms.tables.push_back({static_cast<replay::SamplerKind>(kind), alpha, beta, eps, max_times});
  }
  for (const auto& [what, leaf, frames, repeats_first, is_double] : outputs) {
    terms.gather.outputs.push_back({static_cast<replay::What>(what), leaf, frames, repeats_first, is_double});
  }
  terms.gather.n_step = n_step;
  terms.gather.gamma = gamma;
  terms.done = done;
  terms.final = std::move(final);
  if (limit) {
    const auto& [samples_per_insert, min_size, error_buffer] = *limit;
    terms.limit = {samples_per_insert, min_size, error_buffer.value_or(std::nan(""))};
  }
  return terms;
}

replay::Shape shape_for(const Nest& rows, const ReplayTerms& terms) {
  return unwrap(replay::shape_of(leaf_bytes_of(rows), {.capacity = terms.capacity,
                                                       .rows_per_place = terms.chunk,
                                                       .streams = terms.streams,
                                                       .ahead = terms.ahead,
                                                       .finals = terms.finals}));
}

// rows, columns, data, final, final_columns
using SharedNest = std::shared_ptr<Nest>;
using NestTerms = std::tuple<SharedNest, SharedNest, SharedNest, SharedNest, SharedNest>;

std::shared_ptr<Replay> replay_of(std::shared_ptr<replay::Tables> tables, const NestTerms& made_of,
                                  const ReplayTerms& terms) {
  ReplayNests nests;
  std::tie(nests.rows, nests.columns, nests.data, nests.final, nests.final_columns) = made_of;
  auto gather = unwrap(replay::Gather::create(tables->store(), terms.gather));
  const bool has_finals = terms.finals == (nests.final != nullptr);
  if (!has_finals || terms.gather.outputs.size() < nests.data->leaves().size()) {
    throw py::value_error("a replay buffer whose parts do not fit each other");
  }
  for (std::size_t i = 0; i < nests.data->leaves().size(); ++i) {
    if (nests.data->leaves()[i].bytes != gather.bytes(i)) throw py::value_error("arrays of another size");
  }
  return std::make_shared<Replay>(std::move(tables), std::move(nests), terms, std::move(gather));
}

std::shared_ptr<Replay> create(const std::shared_ptr<Arena>& arena, const ReplayTerms& terms, const NestTerms& nests,
                               const std::string& note) {
  const replay::Shape shape = shape_for(*std::get<0>(nests), terms);
  const replay::RateLimit* const limit = terms.limit ? &*terms.limit : nullptr;
  const std::uint64_t table_bytes = unwrap(replay::Tables::bytes_for(shape, terms.tables, limit));
  GilHooks hooks;
  auto store =
      unwrap(Store::create(arena, shape, std::as_bytes(std::span(note)), WaitContext{{}, &hooks}, table_bytes));
  auto tables = unwrap(replay::Tables::create(std::move(store), terms.tables, limit));
  return replay_of(std::move(tables), nests, terms);
}

std::shared_ptr<Replay> open(const std::shared_ptr<Arena>& arena, std::uint64_t block, const ReplayTerms& terms,
                             const NestTerms& nests) {
  GilHooks hooks;
  const auto leaf_bytes = leaf_bytes_of(*std::get<0>(nests));
  auto store = unwrap(Store::open(arena, memory::unpack(block), leaf_bytes, WaitContext{{}, &hooks}));
  auto tables = unwrap(replay::Tables::open(std::move(store)));
  const replay::Shape& shape = tables->store()->shape();
  if (tables->size() != terms.tables.size() || shape.ahead != terms.ahead || shape.finals != terms.finals) {
    unwrap(Result<int>(Error{.code = Code::kIncompatible, .message = "a replay buffer that contradicts itself"}));
  }
  return replay_of(std::move(tables), nests, terms);
}

py::bytes note_at(const std::shared_ptr<Arena>& arena, std::uint64_t block) {
  GilHooks hooks;
  return py::bytes(unwrap(Store::note_at(arena, memory::unpack(block), WaitContext{{}, &hooks})));
}

// Bytes that a buffer takes of its arena when it is full.
std::uint64_t total_bytes(const Nest& rows, const ReplayTerms& terms, std::uint64_t note_bytes) {
  const replay::Shape shape = shape_for(rows, terms);
  return Store::total_bytes(
      shape, note_bytes, unwrap(replay::Tables::bytes_for(shape, terms.tables, terms.limit ? &*terms.limit : nullptr)));
}

// Memory of others that a batch is drawn into.
class Outputs {
 public:
  explicit Outputs(const py::object& arrays) {
    if (arrays.is_none()) return;
    for (const py::handle array : arrays) {
      views_.emplace_back();
      if (PyObject_GetBuffer(array.ptr(), &views_.back(), PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
        views_.pop_back();
        release();
        throw py::error_already_set();
      }
      places_.push_back(static_cast<std::byte*>(views_.back().buf));
    }
  }
  ~Outputs() { release(); }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // ValueError unless each has what n rows need.
  std::span<std::byte* const> of(const Replay& replay, std::size_t n) const {
    bool fits = views_.empty() || views_.size() == replay.nests.data->leaves().size();
    for (std::size_t i = 0; fits && i < views_.size(); ++i) {
      fits = static_cast<std::uint64_t>(views_[i].len) == n * replay.gather.bytes(i);
    }
    if (!fits) throw py::value_error("these arrays are no place for the batch");
    return places_;
  }

 private:
  void release() noexcept {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }

  std::vector<Py_buffer> views_;
  std::vector<std::byte*> places_;
};

std::size_t checked_table(const Replay& self, std::size_t table) {
  if (table >= self.tables->size()) throw py::value_error("there is no such sampler");
  return table;
}

std::unique_ptr<ReplayBatch> sample(const std::shared_ptr<Replay>& self, std::size_t n, std::size_t table,
                                    bool distinct, unsigned threads, py::handle timeout, py::handle beta,
                                    bool of_buffer, const py::object& out) {
  platform::Deadline deadline;
  if (!parse_deadline(nullptr, timeout.ptr(), &deadline)) throw py::error_already_set();
  DrawTerms terms{.rows = n, .table = checked_table(*self, table), .distinct = distinct, .threads = threads};
  terms.beta = beta.is_none() ? self->terms.tables[table].beta : beta.cast<double>();
  terms.of_buffer = of_buffer;
  const Outputs outputs(out);
  return std::make_unique<ReplayBatch>(self, terms, deadline, outputs.of(*self, n));
}

std::unique_ptr<ReplayBatch> sample_sequences(const std::shared_ptr<Replay>& self, std::size_t n, std::size_t length,
                                              std::size_t stride, bool may_be_partial, unsigned threads,
                                              py::handle timeout) {
  platform::Deadline deadline;
  if (!parse_deadline(nullptr, timeout.ptr(), &deadline)) throw py::error_already_set();
  DrawTerms terms;
  terms.rows = n;
  terms.length = length;
  terms.stride = stride;
  terms.may_be_partial = may_be_partial;
  terms.threads = threads;
  return std::make_unique<ReplayBatch>(self, terms, deadline, std::span<std::byte* const>());
}

void clear(const Replay& self) {
  GilHooks hooks;
  Status cleared = self.tables->clear(WaitContext{{}, &hooks});
  if (!cleared) {
    raise(cleared.error());
    throw py::error_already_set();
  }
}

py::dict stats(const Replay& self) {
  py::list samples;
  for (std::size_t i = 0; i < self.tables->size(); ++i) samples.append((*self.tables)[i].samples());
  const replay::Window window = self.store->window();
  py::dict out("rows"_a = self.store->size(), "capacity"_a = self.store->shape().capacity,
               "chunks"_a = window.tail - window.head, "chunks_opened"_a = window.tail - 1, "samples"_a = samples);
  if (const replay::Limit* const limit = self.tables->limit()) {
    out["inserted"] = limit->inserts();
    out["sampled"] = limit->samples();
  }
  return out;
}

// A contiguous one-dimensional array of such numbers.
template <class Number>
std::span<const Number> numbers_of(py::handle array, int type) {
  if (!PyArray_CheckExact(array.ptr()) || PyArray_TYPE(as_array(array.ptr())) != type ||
      !PyArray_ISCARRAY_RO(as_array(array.ptr())) || PyArray_NDIM(as_array(array.ptr())) != 1) {
    throw py::type_error("not the array that it should be");
  }
  return {static_cast<const Number*>(PyArray_DATA(as_array(array.ptr()))),
          static_cast<std::size_t>(PyArray_SIZE(as_array(array.ptr())))};
}

// Which rows were there. `table` -1: every sampler that has priorities.
py::object update(Replay& self, std::int64_t table, py::handle indices, py::handle priorities) {
  const auto index = numbers_of<std::uint64_t>(indices, NPY_UINT64);
  const auto priority = numbers_of<double>(priorities, NPY_DOUBLE);
  if (index.size() != priority.size()) throw py::value_error("as many priorities as indices are needed");
  npy_intp n = static_cast<npy_intp>(index.size());
  py::object applied = own(PyArray_SimpleNew(1, &n, NPY_BOOL));
  static_assert(sizeof(bool) == sizeof(npy_bool));
  const std::span mask(static_cast<bool*>(PyArray_DATA(as_array(applied.ptr()))), index.size());
  const std::size_t which = table < 0 ? replay::Tables::kAll : checked_table(self, static_cast<std::size_t>(table));
  // What a drawer of this process knows of the leaves, it need not look for afterwards.
  const std::size_t own = which == replay::Tables::kAll ? 0 : which;
  auto drawer = self.drawers.take(own);
  Status updated = self.tables->update(which, index, priority, mask, drawer ? drawer->watch() : nullptr);
  self.drawers.give_back(own, std::move(drawer));
  if (!updated) {
    raise(updated.error());
    throw py::error_already_set();
  }
  return applied;
}

void bind_batch(py::module_& module) {
  py::class_<ReplayBatch>(module, "ReplayBatch", "Rows that were drawn, and what is known of them.", plain_class())
      .def("data", &ReplayBatch::data)
      .def("index", &ReplayBatch::index)
      .def("weight", &ReplayBatch::weight)
      .def("probability", &ReplayBatch::probability)
      .def("priority", &ReplayBatch::priority)
      .def("mask", &ReplayBatch::mask)
      .def("version", [](const ReplayBatch& self) { return self.extra(0, NPY_INT64); })
      .def("writer", [](const ReplayBatch& self) { return self.extra(1, NPY_INT64); })
      .def("step", [](const ReplayBatch& self) { return self.extra(2, NPY_INT64); })
      .def("discount", [](const ReplayBatch& self) { return self.extra(3, NPY_FLOAT); })
      .def_property_readonly("newest", &ReplayBatch::newest);
}

}  // namespace

void bind_replay(py::module_& module) {
  py::class_<Nest, std::shared_ptr<Nest>>(module, "ReplayNest", "What rows are made of.", plain_class())
      .def(py::init(&make_nest), "skeleton"_a, "leaves"_a, "root"_a, "convert"_a, "refuse"_a);
  py::class_<ReplayTerms>(module, "ReplayTerms", "What a replay buffer is made with.", plain_class())
      .def(py::init(&make_terms), py::kw_only(), "capacity"_a, "chunk"_a, "streams"_a, "ahead"_a, "finals"_a,
           "tables"_a, "outputs"_a, "n_step"_a, "gamma"_a, "done"_a, "final"_a, "limit"_a);
  py::class_<Replay, std::shared_ptr<Replay>>(module, "Replay", "The rows of a replay buffer.", plain_class())
      .def_static("create", &create, "arena"_a, "terms"_a, "nests"_a, "note"_a)
      .def_static("open", &open, "arena"_a, "block"_a, "terms"_a, "nests"_a)
      .def_static("note_at", &note_at, "arena"_a, "block"_a)
      .def_static("total_bytes", &total_bytes, "rows"_a, "terms"_a, "note_bytes"_a)
      .def_property_readonly("arena", [](const Replay& self) { return self.store->arena(); })
      .def_property_readonly("block", [](const Replay& self) { return memory::pack(self.store->block()); })
      .def_property_readonly("capacity", [](const Replay& self) { return self.store->shape().capacity; })
      .def_property_readonly("chunk", [](const Replay& self) { return self.store->shape().rows_per_place; })
      .def_property_readonly("row_bytes", [](const Replay& self) { return self.row_bytes; })
      .def_property(
          "seed", [](const Replay& self) { return self.seed; },
          [](Replay& self, std::uint64_t seed) { self.seed = seed; })
      .def("size", [](const Replay& self) { return self.store->size(); })
      .def("check", [](const Replay& self) { return self.store->check(); })
      .def("sample", &sample, "n"_a, "table"_a, "distinct"_a, "threads"_a, "timeout"_a, "beta"_a, "of_buffer"_a,
           "out"_a)
      .def("sample_sequences", &sample_sequences, "n"_a, "length"_a, "stride"_a, "may_be_partial"_a, "threads"_a,
           "timeout"_a)
      .def("clear", &clear)
      .def("stats", &stats)
      .def("update", &update, "table"_a, "indices"_a, "priorities"_a)
      .def("max_priority",
           [](const Replay& self, std::size_t table) { return self.tables->max_priority(checked_table(self, table)); });
  bind_batch(module);
  module.def("available_memory", [] { return platform::available_memory_bytes(); });
  if (!init_replay_writer(module.ptr())) throw py::error_already_set();
}

}  // namespace shmtree::python
