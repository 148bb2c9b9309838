#include "bindings/replay/spec.h"

#include <pybind11/stl.h>

#include <cmath>
#include <tuple>

#include "bindings/cpython/unwrap.h"
#include "replay/buffer/buffer.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using replay::Spec;
using replay::SpecPart;

namespace {

using LeafTerms = std::tuple<std::string, std::uint64_t, std::vector<std::uint64_t>>;
using SamplerTerms = std::tuple<std::uint32_t, double, double, double, std::uint32_t>;
using NamedSampler = std::pair<std::string, SamplerTerms>;
using Stack = std::vector<std::pair<std::size_t, std::uint32_t>>;
using LimitTerms = std::tuple<double, std::uint64_t, std::optional<double>>;

// Converts a pytree whose leaves are numbers of leaves. A dict key is a str, or bytes that contain the frame of a key
// of another type.
SpecPart part_of(py::handle nest, std::size_t depth) {
  if (depth > Spec::kMaxNesting) throw py::value_error("a row is nested too deeply");
  SpecPart part;
  if (py::isinstance<py::dict>(nest)) {
    part.form = SpecPart::Form::kDict;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(nest)) {
      part.keys.push_back({key.cast<std::string>(), py::isinstance<py::str>(key)});
      part.parts.push_back(part_of(value, depth + 1));
    }
  } else if (py::isinstance<py::list>(nest) || py::isinstance<py::tuple>(nest)) {
    part.form = py::isinstance<py::list>(nest) ? SpecPart::Form::kList : SpecPart::Form::kTuple;
    for (const py::handle value : py::reinterpret_borrow<py::sequence>(nest)) {
      part.parts.push_back(part_of(value, depth + 1));
    }
  } else {
    part.leaf = nest.cast<std::size_t>();
  }
  return part;
}

py::object nest_of(const SpecPart& part) {
  if (part.form == SpecPart::Form::kLeaf) return py::int_(part.leaf);
  if (part.form == SpecPart::Form::kDict) {
    py::dict dict;
    for (std::size_t i = 0; i < part.parts.size(); ++i) {
      const std::string& bytes = part.keys[i].bytes;
      const py::object key = part.keys[i].is_text ? py::object(py::str(bytes)) : py::object(py::bytes(bytes));
      dict[key] = nest_of(part.parts[i]);
    }
    return dict;
  }
  py::list list;
  for (const SpecPart& each : part.parts) list.append(nest_of(each));
  return part.form == SpecPart::Form::kList ? py::object(list) : py::object(py::tuple(list));
}

Spec make(py::handle rows, const std::vector<LeafTerms>& leaves, const std::vector<NamedSampler>& samplers,
          std::vector<std::size_t> next, std::uint32_t n_step, double gamma, Stack stack, bool repeats_first,
          std::optional<std::size_t> reward, std::optional<std::size_t> done, const std::optional<LimitTerms>& limit,
          bool raises_on_death, std::optional<std::size_t> terminated, std::optional<std::size_t> truncated,
          bool ends_unknown) {
  Spec spec;
  spec.row = part_of(rows, 0);
  for (const auto& [dtype, item_bytes, shape] : leaves) spec.leaves.push_back({dtype, item_bytes, shape});
  for (const auto& [name, terms] : samplers) {
    const auto& [kind, alpha, beta, eps, max_times] = terms;
    spec.samplers.push_back({name, {static_cast<replay::SamplerKind>(kind), alpha, beta, eps, max_times}});
  }
  spec.next = std::move(next);
  spec.n_step = n_step;
  spec.gamma = gamma;
  spec.stack = std::move(stack);
  spec.repeats_first = repeats_first;
  spec.reward = reward;
  spec.done = done;
  if (limit) {
    const auto& [samples_per_insert, min_size, error_buffer] = *limit;
    spec.limit = {samples_per_insert, min_size, error_buffer.value_or(std::nan(""))};
  }
  spec.raises_on_death = raises_on_death;
  spec.terminated = terminated;
  spec.truncated = truncated;
  spec.ends_unknown = ends_unknown;
  unwrap(replay::check(spec));
  return spec;
}

// Returns the arguments of make(), in its order.
py::tuple parts(const Spec& spec) {
  std::vector<LeafTerms> leaves;
  for (const replay::SpecLeaf& leaf : spec.leaves) leaves.emplace_back(leaf.dtype, leaf.item_bytes, leaf.shape);
  std::vector<NamedSampler> samplers;
  for (const auto& [name, table] : spec.samplers) {
    samplers.emplace_back(name, SamplerTerms(static_cast<std::uint32_t>(table.kind), table.alpha, table.beta, table.eps,
                                             table.max_times));
  }
  std::optional<LimitTerms> limit;
  if (spec.limit) {
    std::optional<double> buffer;
    if (!std::isnan(spec.limit->error_buffer)) buffer = spec.limit->error_buffer;
    limit.emplace(spec.limit->samples_per_insert, spec.limit->min_size, buffer);
  }
  return py::make_tuple(nest_of(spec.row), leaves, samplers, spec.next, spec.n_step, spec.gamma, spec.stack,
                        spec.repeats_first, spec.reward, spec.done, limit, spec.raises_on_death, spec.terminated,
                        spec.truncated, spec.ends_unknown);
}

Spec unpacked(const py::bytes& note) {
  const std::string bytes = note;
  return unwrap(replay::unpack(std::as_bytes(std::span(bytes))));
}

// Number of bytes that a full buffer takes of its arena.
std::uint64_t total_bytes(const Spec& spec, std::uint64_t capacity, std::uint64_t chunk, std::uint64_t streams) {
  return unwrap(replay::Buffer::total_bytes(spec, {capacity, chunk, streams}));
}

// Maximum number of rows in a buffer that takes at most `max_bytes`.
std::uint64_t capacity_within(const Spec& spec, std::uint64_t max_bytes, std::uint64_t chunk, std::uint64_t streams) {
  return unwrap(replay::Buffer::capacity_within(spec, max_bytes, {0, chunk, streams}));
}

}  // namespace

void bind_replay_spec(py::module_& module) {
  py::class_<Spec>(module, "ReplaySpec", plain_class())
      .def(py::init(&make), "rows"_a, "leaves"_a, "samplers"_a, "next"_a, "n_step"_a, "gamma"_a, "stack"_a,
           "repeats_first"_a, "reward"_a, "done"_a, "limit"_a, "raises_on_death"_a, "terminated"_a, "truncated"_a,
           "ends_unknown"_a)
      .def_static("unpack", &unpacked, "note"_a)
      .def("parts", &parts)
      .def("total_bytes", &total_bytes, "capacity"_a, "chunk"_a, "streams"_a)
      .def("capacity_within", &capacity_within, "max_bytes"_a, "chunk"_a, "streams"_a);
}

}  // namespace shmtree::python
