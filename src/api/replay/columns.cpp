// Converts between the columns of the public API and replay::Spec.
#include <algorithm>
#include <cmath>
#include <complex>
#include <iterator>
#include <utility>
#include <variant>

#include "api/replay/rows.h"
#include "api/state.h"
#include "platform/errors.h"
#include "platform/text.h"

namespace shmtree::api {

using replay::Spec;
using replay::SpecLeaf;
using replay::SpecPart;

namespace {

constexpr const char* kNext = "next";

Status add_leaf(Spec& spec, SpecPart& part, const std::string& name, DType dtype, std::span<const std::int64_t> shape) {
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 1; })) {
    return invalid(name + " has a dimension below 1");
  }
  part.leaf = spec.leaves.size();
  spec.leaves.push_back({std::string(replay::text_of(dtype)), item_bytes(dtype), {shape.begin(), shape.end()}});
  return success();
}

// A column below a dict of the row, and the keys of its path that are left, such as "x/y" of "obs/x/y".
struct Below {
  const ReplayColumn* column;
  std::string_view keys;

  std::string_view key() const { return keys.substr(0, keys.find('/')); }
  bool is_leaf() const { return key().size() == keys.size(); }
};

// Adds the columns to a dict of the row.
Status add_columns(Spec& spec, SpecPart& part, std::span<const Below> columns) {
  part.form = SpecPart::Form::kDict;
  for (const Below& each : columns) {
    const std::string key(each.key());
    const std::string name = "the column \"" + each.column->path + "\"";
    if (key.empty() || !platform::is_text(key)) return invalid(name + " has an empty name, or one that is not UTF-8");
    if (std::ranges::find(part.keys, key, &SpecPart::Key::bytes) != part.keys.end()) continue;
    part.keys.push_back({.bytes = key});
    SpecPart& child = part.parts.emplace_back();
    std::vector<Below> below;
    bool has_leaf = false;
    for (const Below& other : columns) {
      if (other.key() != key) continue;
      has_leaf = has_leaf || other.is_leaf();
      below.push_back({other.column, other.keys.substr(std::min(key.size() + 1, other.keys.size()))});
    }
    if (has_leaf && below.size() > 1) {
      return invalid("the column \"" + below.back().column->path + "\" has the path of another column");
    }
    if (has_leaf && replay::text_of(each.column->dtype).empty()) {
      return invalid(name + " has the dtype " + std::string(name_of(each.column->dtype)) +
                     ", which rows do not support");
    }
    Status added = has_leaf ? add_leaf(spec, child, name, each.column->dtype, each.column->shape)
                            : add_columns(spec, child, below);
    if (!added) return added;
  }
  return success();
}

// Returns the dtype for a value without one, the same as in Python.
DType dtype_for(const Value& value) {
  if (std::holds_alternative<bool>(value.variant())) return DType::kBool;
  if (std::holds_alternative<std::int64_t>(value.variant())) return DType::kInt64;
  if (std::holds_alternative<std::uint64_t>(value.variant())) return DType::kUInt64;
  if (std::holds_alternative<double>(value.variant())) return DType::kFloat32;
  if (std::holds_alternative<std::complex<double>>(value.variant())) return DType::kComplex128;
  const auto* array = std::get_if<ArrayRef>(&value.variant());
  return array == nullptr ? DType::kOther : array->dtype;
}

Status add_parts(Spec& spec, SpecPart& part, const std::string& path, std::span<const Value> items);

// Adds the part of the example at `path`, and its leaves.
Status add_part(Spec& spec, SpecPart& part, const std::string& path, const Value& value) {
  if (const auto* dict = std::get_if<Dict>(&value.variant())) {
    part.form = SpecPart::Form::kDict;
    for (const Entry& entry : dict->entries()) {
      const std::string key = path + "[\"" + entry.key + "\"]";
      const bool is_known = std::ranges::find(part.keys, entry.key, &SpecPart::Key::bytes) != part.keys.end();
      if (is_known || !platform::is_text(entry.key))
        return invalid(key + (is_known ? " occurs twice" : " is not UTF-8"));
      part.keys.push_back({.bytes = entry.key});
      part.parts.emplace_back();
      if (Status added = add_part(spec, part.parts.back(), key, entry.value); !added) return added;
    }
    return success();
  }
  if (const auto* list = std::get_if<List>(&value.variant())) {
    part.form = SpecPart::Form::kList;
    return add_parts(spec, part, path, list->items());
  }
  if (const auto* tuple = std::get_if<Tuple>(&value.variant())) {
    part.form = SpecPart::Form::kTuple;
    return add_parts(spec, part, path, tuple->items());
  }
  const DType dtype = dtype_for(value);
  if (replay::text_of(dtype).empty())
    return invalid(path + " is " + word_of(value) + "; rows consist of numbers and arrays");
  const auto* array = std::get_if<ArrayRef>(&value.variant());
  return add_leaf(spec, part, path, dtype, array == nullptr ? std::span<const std::int64_t>() : array->shape);
}

Status add_parts(Spec& spec, SpecPart& part, const std::string& path, std::span<const Value> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    part.parts.emplace_back();
    if (Status added = add_part(spec, part.parts.back(), path + "[" + std::to_string(i) + "]", items[i]); !added) {
      return added;
    }
  }
  return success();
}

bool has_only(const SpecPart& part, const std::vector<std::size_t>& leaves) {
  if (part.form == SpecPart::Form::kLeaf) return std::ranges::find(leaves, part.leaf) != leaves.end();
  const auto has = [&](const SpecPart& each) { return has_only(each, leaves); };
  return !part.parts.empty() && std::ranges::all_of(part.parts, has);
}

replay::EpisodeKeys keys_of(const ReplayEpisodes& episodes) {
  const auto key = [](const std::string& text) { return SpecPart::Key{text}; };
  replay::EpisodeKeys keys;
  std::ranges::transform(episodes.next, std::back_inserter(keys.next), key);
  for (const auto& [path, frames] : episodes.stack) keys.stack.emplace_back(key(path), frames);
  if (episodes.reward) keys.reward = key(*episodes.reward);
  if (episodes.done) keys.done = key(*episodes.done);
  return keys;
}

replay::TableSpec table_of(const ReplaySampler& sampler) {
  replay::TableSpec table{.kind = static_cast<replay::SamplerKind>(sampler.kind), .alpha = 0, .beta = 0, .eps = 1};
  if (sampler.kind == ReplayKind::kPrioritized) {
    table.alpha = sampler.alpha;
    table.beta = sampler.beta;
    table.eps = sampler.eps;
  }
  table.max_times = sampler.max_times;
  return table;
}

}  // namespace

ReplayPaths::ReplayPaths(const Spec& spec) : leaves(spec.paths()), outputs(leaves) {
  for (const std::size_t leaf : spec.next) outputs.push_back(std::string(kNext) + "/" + leaves[leaf]);
  final.form = SpecPart::Form::kDict;
  for (std::size_t i = 0; !spec.next.empty() && i < spec.row.parts.size(); ++i) {
    if (!has_only(spec.row.parts[i], spec.next)) continue;
    final.keys.push_back(spec.row.keys[i]);
    final.parts.push_back(spec.row.parts[i]);
  }
}

replay::RateLimit limit_of(const ReplayRateLimit& limit) {
  return {limit.samples_per_insert, limit.min_size, limit.error_buffer.value_or(std::nan(""))};
}

void set_samplers(Spec& spec, const ReplaySampling& sampling) {
  if (sampling.samplers.empty() && !spec.samplers.empty()) return;
  spec.samplers.clear();
  for (const ReplaySampler& each : sampling.samplers) spec.samplers.emplace_back(each.name, table_of(each));
  if (spec.samplers.empty()) spec.samplers.emplace_back(ReplaySampler{}.name, table_of({}));
}

Status set_on_peer_death(Spec& spec, OnPeerDeath on_death) {
  if (on_death == OnPeerDeath::kEach)
    return invalid("on_peer_death is kEach; for a replay buffer it must be kRaise or kWait");
  if (on_death != OnPeerDeath::kRaise && on_death != OnPeerDeath::kWait)
    return no_enumerator("on_peer_death", on_death);
  spec.raises_on_death = on_death == OnPeerDeath::kRaise;
  return success();
}

Result<Spec> spec_of(const ReplayOptions& options) {
  Spec spec;
  Status accepted = set_on_peer_death(spec, options.limits.on_peer_death);
  if (!accepted) return std::move(accepted).error();
  if (options.example && !options.columns.empty())
    return invalid("both columns and an example were passed; pass one of them");
  std::vector<Below> columns;
  for (const ReplayColumn& each : options.columns) columns.push_back({&each, each.path});
  Status added =
      options.example ? add_part(spec, spec.row, "row", *options.example) : add_columns(spec, spec.row, columns);
  if (!added) return std::move(added).error();
  set_samplers(spec, options.sampling);
  const ReplayEpisodes& episodes = options.episodes;
  spec.n_step = episodes.n_step;
  spec.gamma = episodes.gamma;
  spec.repeats_first = episodes.stack_repeats_first;
  if (options.limits.rate) spec.limit = limit_of(*options.limits.rate);
  added = replay::set_leaves(spec, keys_of(episodes));
  if (added) added = replay::check(spec);
  if (!added) return std::move(added).error();
  return spec;
}

std::vector<ReplayColumn> columns_of(const Spec& spec, const ReplayPaths& paths) {
  std::vector<ReplayColumn> columns;
  for (std::size_t i = 0; i < spec.leaves.size(); ++i) {
    const SpecLeaf& leaf = spec.leaves[i];
    columns.push_back({paths.leaves[i], replay::dtype_of(leaf.dtype), {leaf.shape.begin(), leaf.shape.end()}});
  }
  return columns;
}

}  // namespace shmtree::api
