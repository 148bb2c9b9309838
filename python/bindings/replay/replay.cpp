// _core.Replay: the rows of a replay buffer.
#include "bindings/replay/replay.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cpython/options.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/replay/batch.h"
#include "bindings/replay/spec.h"
#include "endpoint/shared_objects.h"
#include "platform/machine.h"
#include "platform/memory_limits.h"
#include "replay/buffer/home.h"
#include "replay/rows/members.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using memory::Arena;
using platform::WaitContext;

std::shared_ptr<Replay> replay_of(std::shared_ptr<replay::Buffer> buffer, const NestTerms& made_of) {
  ReplayNests nests;
  std::tie(nests.rows, nests.data, nests.final) = made_of;
  const replay::Spec& spec = buffer->spec();
  bool fits = spec.has_finals() == (nests.final != nullptr) && nests.rows->leaves().size() == spec.leaves.size() &&
              nests.data->leaves().size() == spec.data_outputs();
  for (std::size_t i = 0; fits && i < spec.leaves.size(); ++i) {
    fits = nests.rows->leaves()[i].bytes == spec.leaves[i].bytes();
  }
  for (std::size_t i = 0; fits && i < spec.data_outputs(); ++i) {
    fits = nests.data->leaves()[i].bytes == buffer->gather().bytes(i);
  }
  if (!fits) throw py::value_error("the columns do not match the rows of the replay buffer");
  return std::make_shared<Replay>(std::move(buffer), std::move(nests));
}

namespace {

// Makes a buffer, or opens that of the name. Without `arena`, a new buffer gets its own. Returns the buffer and its
// name; None if it has none.
py::tuple make(const replay::Spec& spec, std::uint64_t capacity, std::uint64_t max_bytes, std::uint64_t chunk,
               std::uint64_t streams, std::shared_ptr<Arena> arena, std::optional<std::string> name,
               py::handle exist_ok, const NestTerms& nests) {
  unwrap(replay::check(spec));
  const replay::Home home(arena);
  const replay::BufferSize sizes = unwrap(home.within(spec, {capacity, chunk, streams}, max_bytes));
  endpoint::ObjectRequest request{
      .kind = discovery::NamedKind::kReplay, .name = std::move(name), .arena = std::move(arena)};
  check(parse_flag(exist_ok.ptr(), &request.exist_ok));
  request.make_arena = [&] { return home.arena_for(spec, sizes); };
  note_process_name();
  GilHooks hooks;
  auto made = unwrap(endpoint::make_object<replay::Buffer>(request, WaitContext{{}, &hooks}, spec, sizes));
  return py::make_tuple(replay_of(std::move(made.object), nests), std::move(made.name));
}

// `nests_of` makes the nests from the buffer's ReplaySpec.
std::shared_ptr<Replay> open(const std::shared_ptr<Arena>& arena, std::uint64_t block, const py::object& nests_of) {
  GilHooks hooks;
  auto buffer = unwrap(replay::Buffer::open(arena, memory::unpack(block), WaitContext{{}, &hooks}));
  const auto nests = nests_of(buffer->spec()).cast<NestTerms>();
  return replay_of(std::move(buffer), nests);
}

// Arrays of the caller that receive a batch.
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
      destinations_.push_back(static_cast<std::byte*>(views_.back().buf));
    }
  }
  ~Outputs() { release(); }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // Returns the addresses. Throws ValueError unless each array has the size of n rows.
  std::span<std::byte* const> of(const Replay& replay, std::size_t n) const {
    bool fits = views_.empty() || views_.size() == replay.nests.data->leaves().size();
    for (std::size_t i = 0; fits && i < views_.size(); ++i) {
      fits = static_cast<std::uint64_t>(views_[i].len) == n * replay.buffer->gather().bytes(i);
    }
    if (!fits) throw py::value_error("the arrays in out do not have the number and sizes that the batch needs");
    return destinations_;
  }

 private:
  void release() noexcept {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }

  std::vector<Py_buffer> views_;
  std::vector<std::byte*> destinations_;
};

std::size_t checked_table(const Replay& self, std::size_t table) {
  if (table >= self.buffer->tables()->size()) throw py::value_error("the buffer has no such sampler");
  return table;
}

// `hindsight`: the number of a GoalStrategy, k, and the keys of the achieved and the desired goal; or nothing.
using HindsightTerms = std::tuple<std::uint8_t, double, py::object, py::object>;

std::optional<replay::Hindsight> hindsight_of(const Replay& self, const std::optional<HindsightTerms>& terms) {
  if (!terms) return std::nullopt;
  const auto& [strategy, k, achieved, desired] = *terms;
  return unwrap(replay::Hindsight::of(
      self.buffer->spec(), {static_cast<replay::GoalStrategy>(strategy), k, key_of(achieved), key_of(desired)}));
}

// Rows of a sequence with its burn-in, the distance from one to the next, the number of a Partial, and the burn-in.
using SequenceTerms = std::tuple<std::size_t, std::size_t, std::uint8_t, std::size_t>;

// `table` -1: a sequence may begin with any row.
std::unique_ptr<ReplayBatch> sample(const std::shared_ptr<Replay>& self, std::size_t n, std::int64_t table,
                                    bool distinct, unsigned threads, py::handle timeout, py::handle beta,
                                    bool of_buffer, const py::object& out,
                                    const std::optional<HindsightTerms>& hindsight,
                                    const std::optional<SequenceTerms>& sequence) {
  platform::Deadline deadline;
  if (!parse_deadline(nullptr, timeout.ptr(), &deadline)) throw py::error_already_set();
  replay::SampleTerms terms{.rows = n, .distinct = distinct, .threads = threads, .of_buffer = of_buffer};
  terms.any_first = sequence && table < 0;
  if (!terms.any_first) terms.table = checked_table(*self, static_cast<std::size_t>(table));
  terms.beta = beta.is_none() ? self->buffer->spec().samplers[terms.table].second.beta : beta.cast<double>();
  terms.hindsight = hindsight_of(*self, hindsight);
  if (sequence) {
    std::uint8_t partial = 0;
    std::tie(terms.length, terms.stride, partial, terms.burn_in) = *sequence;
    terms.partial = static_cast<replay::Partial>(partial);
  }
  const Outputs outputs(out);
  return std::make_unique<ReplayBatch>(self, terms, deadline, outputs.of(*self, terms.all_rows()));
}

// Ends the waits of all threads that sample from this object.
void close(Replay& self) {
  self.closed = true;
  self.buffer->sampling().end();
  self.buffer->tables()->wake_all();
}

void clear(const Replay& self) {
  GilHooks hooks;
  Status cleared = self.buffer->tables()->clear(WaitContext{{}, &hooks});
  if (!cleared) {
    raise(cleared.error());
    throw py::error_already_set();
  }
}

// Adds statistics of the rows that were sampled since the last call.
void add_drawn(replay::Buffer& buffer, py::dict& out) {
  const replay::SampleStatistics::Totals drawn = buffer.statistics().take();
  const double rows = static_cast<double>(std::max<std::uint64_t>(drawn.rows, 1));
  out["drawn"] = drawn.rows;
  out["age_mean"] = drawn.ages / rows;
  out["age_max"] = drawn.max_age;
  out["version_lag_mean"] = drawn.lags / rows;
  out["version_lag_max"] = drawn.max_lag;
}

py::dict stats(const Replay& self) {
  py::list samples;
  const replay::Buffer& buffer = *self.buffer;
  for (std::size_t i = 0; i < buffer.tables()->size(); ++i) samples.append((*buffer.tables())[i].samples());
  const replay::Window window = buffer.store()->window();
  const replay::Shape& shape = buffer.store()->shape();
  py::dict out("rows"_a = buffer.store()->size(), "capacity"_a = shape.capacity,
               "max_bytes"_a = shape.max_extents * shape.extent_bytes, "added"_a = buffer.added(),
               "chunks"_a = window.tail - window.head, "chunks_opened"_a = window.tail - 1, "samples"_a = samples);
  add_drawn(*self.buffer, out);
  const replay::Waiters waiters = replay::waiters_of(*buffer.store());
  out["waiting"] = py::dict("add"_a = waiters.adding, "sample"_a = waiters.sampling);
  if (const replay::RateLimiter* const limit = buffer.tables()->limiter()) {
    out["inserted"] = limit->inserts();
    out["sampled"] = limit->samples();
  }
  return out;
}

// Returns the numbers of a contiguous one-dimensional array of that type.
template <class Number>
std::span<const Number> numbers_of(py::handle array, int type) {
  if (!PyArray_CheckExact(array.ptr()) || PyArray_TYPE(as_array(array.ptr())) != type ||
      !PyArray_ISCARRAY_RO(as_array(array.ptr())) || PyArray_NDIM(as_array(array.ptr())) != 1) {
    throw py::type_error("indices must be a contiguous 1-D array of uint64, and priorities one of float64");
  }
  return {static_cast<const Number*>(PyArray_DATA(as_array(array.ptr()))),
          static_cast<std::size_t>(PyArray_SIZE(as_array(array.ptr())))};
}

// Updates priorities. Returns a mask that is true for the rows that exist. `table` -1: every sampler that has
// priorities.
py::object update(Replay& self, std::int64_t table, py::handle indices, py::handle priorities) {
  const auto index = numbers_of<std::uint64_t>(indices, NPY_UINT64);
  const auto priority = numbers_of<double>(priorities, NPY_DOUBLE);
  if (index.size() != priority.size())
    throw py::value_error(std::to_string(index.size()) + " indices and " + std::to_string(priority.size()) +
                          " priorities; there must be as many of both");
  npy_intp n = static_cast<npy_intp>(index.size());
  py::object applied = own(PyArray_SimpleNew(1, &n, NPY_BOOL));
  static_assert(sizeof(bool) == sizeof(npy_bool));
  const std::span mask(static_cast<bool*>(PyArray_DATA(as_array(applied.ptr()))), index.size());
  const std::size_t which = table < 0 ? replay::Tables::kAll : checked_table(self, static_cast<std::size_t>(table));
  Status updated = self.buffer->update(which, index, priority, mask);
  if (!updated) {
    raise(updated.error());
    throw py::error_already_set();
  }
  return applied;
}

// Returns a new array for `rows` values of a leaf.
Ref array_of_leaf(const Nest::Leaf& leaf, std::size_t rows) {
  npy_intp dims[NPY_MAXDIMS] = {static_cast<npy_intp>(rows)};
  std::ranges::copy(leaf.shape, dims + 1);
  Py_INCREF(leaf.descr());
  const int dimensions = static_cast<int>(leaf.shape.size() + 1);
  Ref array(PyArray_NewFromDescr(&PyArray_Type, leaf.descr(), dimensions, dims, nullptr, nullptr, 0, nullptr));
  if (!array) throw py::error_already_set();
  return array;
}

// Copies the rows with these indices. Returns them, nested like the rows of the buffer, and a mask that is true for the
// rows that exist. The values of other rows are undefined.
py::tuple rows_at(const Replay& self, py::handle indices) {
  const auto index = numbers_of<std::uint64_t>(indices, NPY_UINT64);
  replay::GatherOptions options;
  std::vector<Ref> arrays;
  std::vector<std::byte*> destinations;
  for (const Nest::Leaf& leaf : self.nests.rows->leaves()) {
    options.outputs.push_back({.leaf = options.outputs.size()});
    arrays.push_back(array_of_leaf(leaf, index.size()));
    destinations.push_back(static_cast<std::byte*>(PyArray_DATA(as_array(arrays.back().get()))));
  }
  const replay::Gather gather = unwrap(replay::Gather::create(self.buffer->store(), std::move(options)));
  npy_intp n = static_cast<npy_intp>(index.size());
  const py::object there = own(PyArray_SimpleNew(1, &n, NPY_BOOL));
  const std::span mask(static_cast<bool*>(PyArray_DATA(as_array(there.ptr()))), index.size());
  std::ranges::fill(mask, false);
  const auto read = [&] {
    const py::gil_scoped_release release;
    return gather.read(index, destinations, mask);
  };
  if (!index.empty()) unwrap(read());
  for (bool& gone : mask) gone = !gone;
  return py::make_tuple(own(self.nests.rows->build(arrays).release()), there);
}

// Returns the total weight of all rows and, if `with_least`, the smallest one. For samplers that sample by weight.
std::tuple<double, double> weigh(Replay& self, std::size_t table, bool with_least) {
  auto sampler = replay::BorrowedSampler::take(*self.buffer, checked_table(self, table));
  Status done = sampler ? success() : Status(sampler.error());
  if (sampler) {
    auto weights = (**sampler).weigh(with_least);
    if (weights) return {weights->total, weights->least};
    done = std::move(weights).error();
  }
  raise(done.error());
  throw py::error_already_set();
}

}  // namespace

void bind_replay(py::module_& module) {
  bind_replay_nest(module);
  bind_replay_spec(module);
  py::class_<Replay, std::shared_ptr<Replay>>(module, "Replay", plain_class())
      .def_static("make", &make, "spec"_a, "capacity"_a, "max_bytes"_a, "chunk"_a, "streams"_a, "arena"_a, "name"_a,
                  "exist_ok"_a, "nests"_a)
      .def_static("open", &open, "arena"_a, "block"_a, "nests_of"_a)
      .def_property_readonly("spec", [](const Replay& self) { return self.buffer->spec(); })
      .def_property_readonly("arena", [](const Replay& self) { return self.buffer->arena(); })
      .def_property_readonly("block", [](const Replay& self) { return memory::pack(self.buffer->block()); })
      .def_property_readonly("capacity", [](const Replay& self) { return self.buffer->store()->shape().capacity; })
      .def_property_readonly("chunk", [](const Replay& self) { return self.buffer->store()->shape().rows_per_chunk; })
      .def_property_readonly("row_bytes", [](const Replay& self) { return self.buffer->row_bytes(); })
      .def_property(
          "seed", [](const Replay& self) { return self.buffer->seed(); },
          [](const Replay& self, std::uint64_t seed) { self.buffer->set_seed(seed); })
      .def("size", [](const Replay& self) { return self.buffer->store()->size(); })
      .def("sample", &sample, "n"_a, "table"_a, "distinct"_a, "threads"_a, "timeout"_a, "beta"_a, "of_buffer"_a,
           "out"_a, "hindsight"_a, "sequence"_a)
      .def("rows_at", &rows_at, "indices"_a)
      .def("weigh", &weigh, "table"_a, "with_least"_a)
      .def("close", &close)
      .def("clear", &clear)
      .def("stats", &stats)
      .def("update", &update, "table"_a, "indices"_a, "priorities"_a)
      .def("max_priority",
           [](const Replay& self, std::size_t table) {
             return self.buffer->tables()->max_priority(checked_table(self, table));
           })
      .def("raise_max_priority",
           [](Replay& self, std::size_t table, double priority) {
             self.buffer->tables()->raise_max_priority(checked_table(self, table), priority);
           })
      .def("drop_overwritten", [](const Replay& self) { self.buffer->tables()->drop_overwritten(); })
      .def("reset_max_priority", [](Replay& self, std::size_t table) {
        self.buffer->tables()->reset_max_priority(checked_table(self, table));
      });
  bind_replay_batch(module);
  module.def("available_memory", [] { return platform::available_memory_bytes(); });
  if (!init_replay_writer(module.ptr())) throw py::error_already_set();
}

}  // namespace shmtree::python
