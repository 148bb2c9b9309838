#include "bindings/replay/spec.h"

#include <pybind11/stl.h>

#include <tuple>
#include <utility>

#include "bindings/cpython/unwrap.h"
#include "replay/buffer/buffer.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using replay::EpisodeKeys;
using replay::RateLimit;
using replay::Spec;
using replay::SpecPart;
using replay::TableSpec;

SpecPart::Key key_of(py::handle key) {
  return {key.cast<std::string>(), py::isinstance<py::str>(key)};
}

namespace {

using LeafTerms = std::tuple<std::string, std::uint64_t, std::vector<std::uint64_t>>;

std::optional<SpecPart::Key> key_or_none(const py::object& key) {
  return key.is_none() ? std::optional<SpecPart::Key>() : key_of(key);
}

// Converts the pytree of a row. Each of its leaves is an index into Spec::leaves.
SpecPart part_of(py::handle nest, std::size_t depth) {
  if (depth > Spec::kMaxNesting) throw py::value_error("a row is nested too deeply");
  SpecPart part;
  if (py::isinstance<py::dict>(nest)) {
    part.form = SpecPart::Form::kDict;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(nest)) {
      part.keys.push_back(key_of(key));
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

// Makes the specification of rows, with defaults for everything else.
Spec spec_of_rows(py::handle rows, const std::vector<LeafTerms>& leaves) {
  Spec spec;
  spec.row = part_of(rows, 0);
  for (const auto& [dtype, item_bytes, shape] : leaves) spec.leaves.push_back({dtype, item_bytes, shape});
  return spec;
}

std::vector<LeafTerms> leaves_of(const Spec& spec) {
  std::vector<LeafTerms> leaves;
  for (const replay::SpecLeaf& leaf : spec.leaves) leaves.emplace_back(leaf.dtype, leaf.item_bytes, leaf.shape);
  return leaves;
}

void set_leaves(Spec& spec, const py::list& next, const py::dict& stack, const py::object& reward,
                const py::object& done) {
  EpisodeKeys keys{.reward = key_or_none(reward), .done = key_or_none(done)};
  for (const py::handle key : next) keys.next.push_back(key_of(key));
  for (const auto& [key, frames] : stack) keys.stack.emplace_back(key_of(key), frames.cast<std::uint32_t>());
  unwrap(replay::set_leaves(spec, keys));
}

Spec unpacked(const py::bytes& note) {
  const std::string bytes = note;
  return unwrap(replay::unpack(std::as_bytes(std::span(bytes))));
}

}  // namespace

void bind_replay_spec(py::module_& module) {
  py::class_<TableSpec>(module, "ReplayTable", plain_class())
      .def(py::init([](std::uint32_t kind, double alpha, double beta, double eps, std::uint32_t max_times) {
             return TableSpec{static_cast<replay::SamplerKind>(kind), alpha, beta, eps, max_times};
           }),
           "kind"_a, "alpha"_a, "beta"_a, "eps"_a, "max_times"_a)
      .def_property_readonly("kind", [](const TableSpec& self) { return static_cast<std::uint32_t>(self.kind); })
      .def_readonly("alpha", &TableSpec::alpha)
      .def_readonly("beta", &TableSpec::beta)
      .def_readonly("eps", &TableSpec::eps)
      .def_readonly("max_times", &TableSpec::max_times);
  py::class_<RateLimit>(module, "ReplayLimit", plain_class())
      .def(py::init([](double samples_per_insert, std::uint64_t min_size, double error_buffer) {
             return RateLimit{samples_per_insert, min_size, error_buffer};
           }),
           "samples_per_insert"_a, "min_size"_a, "error_buffer"_a);
  py::class_<Spec>(module, "ReplaySpec", plain_class())
      .def(py::init(&spec_of_rows), "rows"_a, "leaves"_a)
      .def_static("unpack", &unpacked, "note"_a)
      .def_property_readonly("note", [](const Spec& self) { return py::bytes(replay::pack(self)); })
      .def_property_readonly("rows", [](const Spec& self) { return nest_of(self.row); })
      .def_property_readonly("leaves", &leaves_of)
      .def_readonly("next", &Spec::next)
      .def_readonly("stack", &Spec::stack)
      .def_readonly("reward", &Spec::reward)
      .def_readonly("done", &Spec::done)
      .def_readonly("terminated", &Spec::terminated)
      .def_readonly("truncated", &Spec::truncated)
      .def_readwrite("samplers", &Spec::samplers)
      .def_readwrite("n_step", &Spec::n_step)
      .def_readwrite("gamma", &Spec::gamma)
      .def_readwrite("repeats_first", &Spec::repeats_first)
      .def_readwrite("ends_unknown", &Spec::ends_unknown)
      .def_readwrite("limit", &Spec::limit)
      .def_readwrite("raises_on_death", &Spec::raises_on_death)
      .def_property_readonly("has_discount", &Spec::has_discount)
      .def(
          "leaf",
          [](const Spec& self, const char* what, py::handle key) {
            return unwrap(replay::leaf_at(self, what, key_of(key)));
          },
          "what"_a, "key"_a)
      .def("set_leaves", &set_leaves, "next"_a, "stack"_a, "reward"_a, "done"_a);
}

}  // namespace shmtree::python
