#include "bindings/replay/spec.h"

#include <pybind11/stl.h>

#include <tuple>
#include <type_traits>
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
// Name, kind, alpha, beta, eps, max_times.
using SamplerTerms = std::tuple<std::string, std::uint32_t, double, double, double, std::uint32_t>;
using LimitTerms = std::tuple<double, std::uint64_t, double>;  // the fields of RateLimit

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

// Sets the leaves that the keys of Episodes name.
void set_leaves(Spec& spec, const py::dict& options) {
  EpisodeKeys keys{.reward = key_or_none(options["reward"]), .done = key_or_none(options["done"])};
  for (const py::handle key : options["next"]) keys.next.push_back(key_of(key));
  for (const auto& [key, frames] : py::dict(options["stack"])) {
    keys.stack.emplace_back(key_of(key), frames.cast<std::uint32_t>());
  }
  unwrap(replay::set_leaves(spec, keys));
}

// Sets the options that the dict has, which python/shmtree/replay/_spec.py fills.
void set_options(Spec& spec, const py::dict& options) {
  const auto set = [&](const char* name, auto& field) {
    if (options.contains(name)) field = options[name].cast<std::remove_reference_t<decltype(field)>>();
    return options.contains(name);
  };
  set("n_step", spec.n_step);
  set("gamma", spec.gamma);
  set("repeats_first", spec.repeats_first);
  set("ends_unknown", spec.ends_unknown);
  set("raises_on_death", spec.raises_on_death);
  std::vector<SamplerTerms> samplers;
  if (set("samplers", samplers)) spec.samplers.clear();
  for (const auto& [name, kind, alpha, beta, eps, times] : samplers) {
    spec.samplers.emplace_back(name, TableSpec{static_cast<replay::SamplerKind>(kind), alpha, beta, eps, times});
  }
  std::optional<LimitTerms> limit;
  if (set("limit", limit)) spec.limit.reset();
  if (limit) {
    const auto& [samples_per_insert, min_size, error_buffer] = *limit;
    spec.limit = RateLimit{samples_per_insert, min_size, error_buffer};
  }
  if (options.contains("next")) set_leaves(spec, options);
}

py::dict options_of(const Spec& spec) {
  std::vector<SamplerTerms> samplers;
  for (const auto& [name, table] : spec.samplers) {
    samplers.emplace_back(name, static_cast<std::uint32_t>(table.kind), table.alpha, table.beta, table.eps,
                          table.max_times);
  }
  return py::dict("samplers"_a = samplers, "stack"_a = spec.stack, "n_step"_a = spec.n_step,
                  "repeats_first"_a = spec.repeats_first, "ends_unknown"_a = spec.ends_unknown,
                  "raises_on_death"_a = spec.raises_on_death, "reward"_a = spec.reward, "done"_a = spec.done,
                  "terminated"_a = spec.terminated, "truncated"_a = spec.truncated);
}

Spec spec_of(py::handle rows, const std::vector<LeafTerms>& leaves, const py::dict& options) {
  Spec spec;
  spec.row = part_of(rows, 0);
  for (const auto& [dtype, item_bytes, shape] : leaves) spec.leaves.push_back({dtype, item_bytes, shape});
  set_options(spec, options);
  return spec;
}

Spec changed(Spec spec, const py::dict& options) {
  set_options(spec, options);
  return spec;
}

std::vector<LeafTerms> leaves_of(const Spec& spec) {
  std::vector<LeafTerms> leaves;
  for (const replay::SpecLeaf& leaf : spec.leaves) leaves.emplace_back(leaf.dtype, leaf.item_bytes, leaf.shape);
  return leaves;
}

Spec unpacked(const py::bytes& note) {
  const std::string bytes = note;
  return unwrap(replay::unpack(std::as_bytes(std::span(bytes))));
}

}  // namespace

void bind_replay_spec(py::module_& module) {
  py::class_<Spec>(module, "ReplaySpec", plain_class())
      .def(py::init(&spec_of), "rows"_a, "leaves"_a, "options"_a)
      .def_static("unpack", &unpacked, "note"_a)
      .def("changed", &changed, "options"_a)
      .def_property_readonly("note", [](const Spec& self) { return py::bytes(replay::pack(self)); })
      .def_property_readonly("rows", [](const Spec& self) { return nest_of(self.row); })
      .def_property_readonly("leaves", &leaves_of)
      .def_property_readonly("options", &options_of)
      .def_readonly("next", &Spec::next)
      .def_property_readonly("has_discount", &Spec::has_discount)
      .def(
          "leaf",
          [](const Spec& self, const char* what, py::handle key) {
            return unwrap(replay::leaf_at(self, what, key_of(key)));
          },
          "what"_a, "key"_a);
}

}  // namespace shmtree::python
