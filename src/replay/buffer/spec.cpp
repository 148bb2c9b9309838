#include "replay/buffer/spec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <tuple>

#include "platform/errors.h"
#include "platform/other_version.h"
#include "replay/rate_limiter/rate_limiter.h"

namespace shmtree::replay {

namespace {

struct Type {
  DType dtype = DType::kOther;
  std::string_view text{}, name{};
};
constexpr Type kTypes[] = {
    {DType::kBool, "|b1", "bool"},           {DType::kInt8, "|i1", "int8"},
    {DType::kUInt8, "|u1", "uint8"},         {DType::kInt16, "<i2", "int16"},
    {DType::kUInt16, "<u2", "uint16"},       {DType::kInt32, "<i4", "int32"},
    {DType::kUInt32, "<u4", "uint32"},       {DType::kInt64, "<i8", "int64"},
    {DType::kUInt64, "<u8", "uint64"},       {DType::kFloat16, "<f2", "float16"},
    {DType::kFloat32, "<f4", "float32"},     {DType::kFloat64, "<f8", "float64"},
    {DType::kComplex64, "<c8", "complex64"}, {DType::kComplex128, "<c16", "complex128"},
};

std::string shown(const SpecLeaf& leaf) {
  const auto found = std::ranges::find(kTypes, leaf.dtype, &Type::text);
  std::string text = found == std::end(kTypes) ? leaf.dtype : std::string(found->name);
  text += ", shape (";
  for (const std::uint64_t size : leaf.shape) text += std::to_string(size) + ",";
  return text + ")";
}

bool is_number(const SpecLeaf& leaf) {
  const DType dtype = dtype_of(leaf.dtype);
  return leaf.shape.empty() && dtype != DType::kOther && dtype <= DType::kFloat64;
}

bool is_sound(double number) {
  return std::isfinite(number) && number >= 0;
}

Status check_leaf(const SpecLeaf& leaf) {
  std::uint64_t bytes = leaf.item_bytes;
  bool overflows = false;
  for (const std::uint64_t size : leaf.shape) overflows |= __builtin_mul_overflow(bytes, size, &bytes);
  if (overflows || bytes == 0) return invalid("a leaf of " + shown(leaf) + " has no bytes, or more than 2**64");
  if (leaf.shape.size() > Spec::kMaxLeafDims) {
    return invalid("a leaf has " + std::to_string(leaf.shape.size()) + " dimensions; it must have at most " +
                   std::to_string(Spec::kMaxLeafDims));
  }
  const DType dtype = dtype_of(leaf.dtype);
  if (dtype == DType::kOther || item_bytes(dtype) == leaf.item_bytes) return success();
  return invalid("elements of " + shown(leaf) + " cannot have " + std::to_string(leaf.item_bytes) + " bytes");
}

// Checks that leaves are numbered in the order of the pytree.
Status check_part(const SpecPart& part, std::size_t depth, std::size_t& leaves) {
  if (depth > Spec::kMaxNesting)
    return invalid("a row is nested deeper than " + std::to_string(Spec::kMaxNesting) + " levels");
  if (part.form == SpecPart::Form::kLeaf) {
    if (part.leaf == leaves++) return success();
    return invalid("leaves are not numbered in the order of the row");
  }
  const bool is_dict = part.form == SpecPart::Form::kDict;
  if (part.keys.size() != (is_dict ? part.parts.size() : 0))
    return invalid("a dict of the row has a different number of keys and values");
  std::vector<const SpecPart::Key*> keys;
  for (const SpecPart::Key& key : part.keys) keys.push_back(&key);
  const auto order = [](const auto* a, const auto* b) {
    return std::tie(a->is_text, a->bytes) < std::tie(b->is_text, b->bytes);
  };
  std::ranges::sort(keys, order);
  const auto same = [](const auto* a, const auto* b) { return *a == *b; };
  if (std::ranges::adjacent_find(keys, same) != keys.end()) return invalid("a dict of the row has a key twice");
  for (const SpecPart& each : part.parts) {
    if (Status checked = check_part(each, depth + 1, leaves); !checked) return checked;
  }
  return success();
}

Status check_samplers(const Spec& spec) {
  if (spec.samplers.empty()) return invalid("a replay buffer needs a sampler");
  if (spec.samplers.size() > kMaxTables) {
    return invalid(std::to_string(spec.samplers.size()) + " samplers; there must be at most " +
                   std::to_string(kMaxTables));
  }
  for (std::size_t i = 0; i < spec.samplers.size(); ++i) {
    const auto& [name, table] = spec.samplers[i];
    if (Status good = check_table(table); !good) return good;
    for (std::size_t k = 0; k < i; ++k) {
      if (spec.samplers[k].first == name) return invalid("two samplers have the name \"" + name + "\"");
    }
  }
  if (!spec.limit) return success();
  auto good = RateLimiter::checked(*spec.limit, ~std::uint64_t{0});
  return good ? success() : Status(std::move(good).error());
}

Status check_named_leaves(const Spec& spec) {
  const auto is_there = [&](std::size_t leaf) { return leaf < spec.leaves.size(); };
  const auto stack_is_there = [&](const auto& each) { return is_there(each.first); };
  if (!std::ranges::all_of(spec.next, is_there) || !std::ranges::all_of(spec.stack, stack_is_there) ||
      !is_there(spec.reward.value_or(0)) || !is_there(spec.done.value_or(0)) ||
      !is_there(spec.terminated.value_or(0)) || !is_there(spec.truncated.value_or(0))) {
    return invalid("a leaf number is out of range");
  }
  if (std::ranges::adjacent_find(spec.next, std::greater_equal<>()) != spec.next.end() ||
      (!spec.next.empty() && spec.row.form != SpecPart::Form::kDict)) {
    return invalid("next has leaf numbers that are out of range or not ascending");
  }
  for (const auto& [leaf, frames] : spec.stack) {
    if (frames < 1 || frames > Gather::kMaxFrames) {
      return invalid("a stack of " + std::to_string(frames) + " frames; it must be 1 to " +
                     std::to_string(Gather::kMaxFrames));
    }
  }
  return success();
}

Status check_numbers(const Spec& spec) {
  if (spec.n_step < 1) return invalid("n_step is 0; it must be at least 1");
  if (!is_sound(spec.gamma)) {
    return invalid("gamma is " + std::to_string(spec.gamma) + "; it must be finite and not negative");
  }
  if (spec.n_step > 1 && !spec.reward) {
    return invalid("n_step is " + std::to_string(spec.n_step) + ", but rows have no reward leaf to sum");
  }
  if (spec.n_step > 1) {
    const SpecLeaf& leaf = spec.leaves[*spec.reward];
    const DType dtype = dtype_of(leaf.dtype);
    if (!leaf.shape.empty() || (dtype != DType::kFloat32 && dtype != DType::kFloat64)) {
      return invalid("rewards are of " + shown(leaf) + "; their sums need a float32 or float64");
    }
  }
  return success();
}

Status check_ends(const Spec& spec) {
  for (const auto& [name, leaf] : {std::pair("done", spec.done), std::pair("terminated", spec.terminated),
                                   std::pair("truncated", spec.truncated)}) {
    if (leaf && !is_number(spec.leaves[*leaf])) {
      return invalid("the leaf \"" + std::string(name) + "\" ends episodes, but is of " + shown(spec.leaves[*leaf]) +
                     "; it must be one number, or set `done` of Episodes to None");
    }
  }
  const char* const what = !spec.next.empty() ? "next" : spec.n_step > 1 ? "n_step" : spec.stack.empty() ? "" : "stack";
  return spec.ends_unknown && *what != 0 ? no_ends(what) : success();
}

std::uint32_t frames_of(const Spec& spec, std::size_t leaf) noexcept {
  const auto found = std::ranges::find(spec.stack, leaf, [](const auto& each) { return each.first; });
  return found == spec.stack.end() ? 0 : found->second;
}

Output output_of(const Spec& spec, std::size_t leaf, OutputKind plain, OutputKind stacked) {
  const std::uint32_t frames = frames_of(spec, leaf);
  if (frames == 0) return {.kind = plain, .leaf = leaf};
  return {.kind = stacked, .leaf = leaf, .frames = frames, .repeats_first = spec.repeats_first};
}

void add_paths(const SpecPart& part, const std::string& path, std::vector<std::string>& out) {
  if (part.form == SpecPart::Form::kLeaf) return out.push_back(path);
  for (std::size_t i = 0; i < part.parts.size(); ++i) {
    const bool has_name = part.form == SpecPart::Form::kDict && part.keys[i].is_text;
    const std::string key = has_name ? part.keys[i].bytes : std::to_string(i);
    add_paths(part.parts[i], path.empty() ? key : path + "/" + key, out);
  }
}

void add_leaves(const SpecPart& part, std::vector<std::size_t>& out) {
  if (part.form == SpecPart::Form::kLeaf) return out.push_back(part.leaf);
  for (const SpecPart& each : part.parts) add_leaves(each, out);
}

using Key = SpecPart::Key;

std::string shown(const Key& key) {
  return key.is_text ? "\"" + key.bytes + "\"" : "a key that is not a text";
}

Error no_key(const Spec& spec, const std::string& what, const Key& key) {
  std::string keys;
  for (const Key& each : spec.row.keys) keys += (keys.empty() ? "" : ", ") + shown(each);
  return invalid(what + " has " + shown(key) + ", which is not a key of the rows; they have " +
                 (keys.empty() ? "no keys" : keys));
}

// Returns the leaves below `key`, a key or a path of the rows.
std::vector<std::size_t> leaves_below(const Spec& spec, const Key& key) {
  std::vector<std::size_t> found;
  const auto part = std::ranges::find(spec.row.keys, key);
  if (part != spec.row.keys.end()) {
    add_leaves(spec.row.parts[static_cast<std::size_t>(part - spec.row.keys.begin())], found);
  } else if (key.is_text) {
    const std::vector<std::string> paths = spec.paths();
    for (std::size_t leaf = 0; leaf < paths.size(); ++leaf) {
      if (paths[leaf] == key.bytes || paths[leaf].starts_with(key.bytes + "/")) found.push_back(leaf);
    }
  }
  return found;
}

// Sets the only leaf of `key`. `what`: name and default key of the option.
Status set_leaf(const Spec& spec, const char* what, const std::optional<Key>& key, std::optional<std::size_t>& leaf) {
  if (!key) return success();
  if (*key == Key{what} && leaves_below(spec, *key).empty()) return success();
  auto found = leaf_at(spec, what, *key);
  if (found) {
    leaf = *found;
    return success();
  }
  const char* const option = std::string_view(what) == "reward" ? what : "done";
  return invalid(found.error().message + "; or set `" + option + "` of Episodes to None");
}

}  // namespace

DType dtype_of(std::string_view text) noexcept {
  const auto found = std::ranges::find(kTypes, text, &Type::text);
  return found == std::end(kTypes) ? DType::kOther : found->dtype;
}

std::string_view text_of(DType dtype) noexcept {
  const auto found = std::ranges::find(kTypes, dtype, &Type::dtype);
  return found == std::end(kTypes) ? std::string_view() : found->text;
}

std::uint64_t SpecLeaf::bytes() const noexcept {
  std::uint64_t bytes = item_bytes;
  for (const std::uint64_t size : shape) bytes *= size;
  return bytes;
}

std::vector<TableSpec> Spec::tables() const {
  std::vector<TableSpec> found;
  for (const auto& [name, table] : samplers) found.push_back(table);
  return found;
}

std::vector<std::string> Spec::paths() const {
  std::vector<std::string> found;
  add_paths(row, "", found);
  return found;
}

std::vector<std::uint64_t> Spec::leaf_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const SpecLeaf& leaf : leaves) bytes.push_back(leaf.bytes());
  bytes.push_back(sizeof(std::int64_t));
  return bytes;
}

Result<Shape> Spec::shape(std::uint64_t capacity, std::uint64_t chunk, std::uint64_t streams) const {
  return shape_of(
      leaf_bytes(),
      {.capacity = capacity, .rows_per_chunk = chunk, .streams = streams, .ahead = ahead(), .finals = has_finals()});
}

GatherOptions Spec::outputs() const {
  GatherOptions options{.n_step = n_step, .gamma = gamma};
  std::vector<Output>& outputs = options.outputs;
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    outputs.push_back(output_of(*this, leaf, OutputKind::kHere, OutputKind::kStack));
  }
  if (n_step > 1) {
    outputs[*reward] = {.kind = OutputKind::kRewardSum,
                        .leaf = *reward,
                        .is_double = dtype_of(leaves[*reward].dtype) == DType::kFloat64};
  }
  for (const std::size_t leaf : next) {
    outputs.push_back(output_of(*this, leaf, OutputKind::kSuccessor, OutputKind::kSuccessorStack));
  }
  outputs.push_back({.kind = OutputKind::kHere, .leaf = leaves.size()});
  outputs.push_back({.kind = OutputKind::kStream});
  outputs.push_back({.kind = OutputKind::kStep});
  if (has_discount()) outputs.push_back({.kind = OutputKind::kDiscount});
  return options;
}

SpecLeaf Spec::output(std::size_t number) const {
  const std::size_t leaf = number < leaves.size() ? number : next[number - leaves.size()];
  SpecLeaf found = leaves[leaf];
  const std::uint32_t frames = frames_of(*this, leaf);
  if (frames != 0) found.shape.insert(found.shape.begin(), frames);
  return found;
}

Status check(const Spec& spec) {
  std::size_t leaves = 0;
  Status checked = check_part(spec.row, 0, leaves);
  if (checked && (leaves != spec.leaves.size() || leaves == 0))
    checked = invalid("rows need at least one leaf, each once");
  for (std::size_t i = 0; checked && i < spec.leaves.size(); ++i) checked = check_leaf(spec.leaves[i]);
  if (checked) checked = check_samplers(spec);
  if (checked) checked = check_named_leaves(spec);
  if (checked) checked = check_numbers(spec);
  return checked ? check_ends(spec) : checked;
}

Status set_leaves(Spec& spec, const EpisodeKeys& keys) {
  constexpr const char* kNext = "next";
  for (const Key& key : keys.next) {
    if (std::ranges::find(spec.row.keys, key) == spec.row.keys.end()) return no_key(spec, kNext, key);
    std::ranges::copy(leaves_below(spec, key), std::back_inserter(spec.next));
  }
  std::ranges::sort(spec.next);
  spec.next.erase(std::unique(spec.next.begin(), spec.next.end()), spec.next.end());
  if (!spec.next.empty() && std::ranges::find(spec.row.keys, Key{kNext}) != spec.row.keys.end()) {
    return invalid("row[\"next\"] conflicts with the successors that batches have there: rename the leaf");
  }
  for (const auto& [key, frames] : keys.stack) {
    const std::vector<std::size_t> leaves = leaves_below(spec, key);
    if (leaves.empty()) return no_key(spec, "stack", key);
    for (const std::size_t leaf : leaves) spec.stack.emplace_back(leaf, frames);
  }
  Status found = set_leaf(spec, "reward", keys.reward, spec.reward);
  if (!keys.done) return found;
  if (found) found = set_leaf(spec, "done", keys.done, spec.done);
  if (found) found = set_leaf(spec, "terminated", Key{"terminated"}, spec.terminated);
  if (found) found = set_leaf(spec, "truncated", Key{"truncated"}, spec.truncated);
  spec.ends_unknown = !spec.says_ends();
  return found;
}

Result<std::size_t> leaf_at(const Spec& spec, const char* what, const Key& key) {
  const std::vector<std::size_t> found = leaves_below(spec, key);
  if (found.empty()) return no_key(spec, what, key);
  if (found.size() == 1) return found.front();
  return invalid(std::string(what) + " is " + shown(key) + ", which has " + std::to_string(found.size()) +
                 " columns; it must have one");
}

Error no_ends(const std::string& what) {
  return invalid(what + " needs to know where episodes end, but rows have no key \"terminated\", \"truncated\" or " +
                 "\"done\": add those that the environment returns. To end episodes by calls alone, set `done` "
                 "of Episodes to None");
}

// --- The note: the bytes of a Spec

namespace {

constexpr std::uint64_t kNoteMagic = 0x0065746f6e746d73;  // "smtnote"
constexpr std::uint64_t kNoteVersion = 3;
constexpr std::uint64_t kNoteWithoutDeaths = 1;     // version without `raises_on_death`
constexpr std::uint64_t kNoteWithoutEnds = 2;       // version in which only `done` ends episodes
constexpr std::uint64_t kNone = ~std::uint64_t{0};  // stands for a missing leaf

// Writes values to a note, or reads them from one, so that one function describes the order of the bytes. After the
// first invalid value that it reads, all further values are zero or empty.
class Note {
 public:
  enum class Mode : std::uint8_t { kWrite, kRead };

  Note() = default;
  explicit Note(std::span<const std::byte> bytes) noexcept : mode_(Mode::kRead), left_(bytes) {}

  bool reads() const noexcept { return mode_ == Mode::kRead; }
  bool is_read() const noexcept { return !failed_ && left_.empty(); }
  std::string take() { return std::move(written_); }

  template <class... Values>
  requires(sizeof...(Values) > 1) void operator()(Values&... values) { ((*this)(values), ...); }
  void operator()(std::uint64_t& value) {
    if (!reads())
      written_.append(reinterpret_cast<const char*>(&value), sizeof value);
    else if (has(sizeof value))
      std::memcpy(&value, skip(sizeof value), sizeof value);
    else
      value = 0;
  }
  void operator()(std::uint32_t& value) { below(std::uint64_t{1} << 32, value); }
  void operator()(bool& value) { below(2, value); }
  void operator()(double& value) {
    auto bits = std::bit_cast<std::uint64_t>(value);
    (*this)(bits);
    value = std::bit_cast<double>(bits);
  }
  void operator()(std::string& value) {
    std::uint64_t bytes = value.size();
    (*this)(bytes);
    if (!reads())
      written_ += value;
    else if (has(bytes))
      value.assign(reinterpret_cast<const char*>(skip(bytes)), bytes);
  }
  void operator()(std::optional<std::size_t>& leaf) {
    std::uint64_t number = leaf.value_or(kNone);
    (*this)(number);
    leaf = number == kNone ? std::optional<std::size_t>() : number;
  }
  template <class First, class Second>
  void operator()(std::pair<First, Second>& both) {
    (*this)(both.first, both.second);
  }
  template <class Element>
  void operator()(std::vector<Element>& list) {
    each(list, [&](std::size_t i) { (*this)(list[i]); });
  }
  void operator()(SpecLeaf& leaf) { (*this)(leaf.dtype, leaf.item_bytes, leaf.shape); }
  void operator()(TableSpec& table) {
    below(std::uint64_t{1} << 32, table.kind);
    (*this)(table.alpha, table.beta, table.eps, table.max_times);
  }
  void operator()(std::optional<RateLimit>& limit) {
    bool is_there = limit.has_value();
    (*this)(is_there);
    if (!is_there) return;
    RateLimit& of = reads() ? limit.emplace() : *limit;
    (*this)(of.samples_per_insert, of.min_size, of.error_buffer);
  }
  // Numbers the leaves in their order.
  void part(SpecPart& part, std::size_t depth, std::size_t& leaves) {
    failed_ = failed_ || depth > Spec::kMaxNesting;
    below(4, part.form);
    if (failed_) return;
    if (part.form == SpecPart::Form::kLeaf) {
      part.leaf = leaves++;
      return;
    }
    each(part.parts, [&](std::size_t i) {
      if (part.form == SpecPart::Form::kDict) {
        if (reads()) part.keys.emplace_back();
        (*this)(part.keys[i].is_text, part.keys[i].bytes);
      }
      this->part(part.parts[i], depth + 1, leaves);
    });
  }

 private:
  bool has(std::uint64_t bytes) noexcept {
    failed_ = failed_ || left_.size() < bytes;
    return !failed_;
  }
  const std::byte* skip(std::uint64_t bytes) noexcept {
    const std::byte* const at = left_.data();
    left_ = left_.subspan(bytes);
    return at;
  }
  template <class Number>
  void below(std::uint64_t bound, Number& value) {
    auto number = static_cast<std::uint64_t>(value);
    (*this)(number);
    failed_ = failed_ || number >= bound;
    value = static_cast<Number>(failed_ ? 0 : number);
  }
  // Adds the elements that it reads one by one: their number is untrusted, and each takes at least 8 bytes of the note.
  template <class Element, class Act>
  void each(std::vector<Element>& list, Act act) {
    std::uint64_t count = list.size();
    (*this)(count);
    for (std::uint64_t i = 0; i < count && !failed_; ++i) {
      if (reads()) list.emplace_back();
      act(i);
    }
  }

  const Mode mode_ = Mode::kWrite;
  std::string written_{};
  std::span<const std::byte> left_{};
  bool failed_ = false;
};

Error incompatible(const std::string& why) {
  return Error{.code = Code::kIncompatible,
               .message = "the specification of this replay buffer cannot be read: " + why};
}

// The fields in the order of their bytes, which docs/internals/replay-layout.md shows.
void transfer(Note& note, Spec& spec, std::uint64_t version) {
  std::size_t leaves = 0;
  note.part(spec.row, 0, leaves);
  if (note.reads()) spec.leaves.resize(leaves);
  for (SpecLeaf& leaf : spec.leaves) note(leaf);
  note(spec.next, spec.n_step, spec.gamma, spec.stack, spec.repeats_first, spec.reward, spec.done);
  note(spec.samplers, spec.limit);
  if (version > kNoteWithoutDeaths) note(spec.raises_on_death);
  if (version > kNoteWithoutEnds) note(spec.terminated, spec.truncated, spec.ends_unknown);
}

}  // namespace

std::string pack(Spec spec) {
  Note note;
  std::uint64_t magic = kNoteMagic, version = kNoteVersion;
  note(magic, version);
  transfer(note, spec, version);
  return note.take();
}

Result<Spec> unpack(std::span<const std::byte> bytes) try {
  Note note(bytes);
  std::uint64_t magic = 0, version = 0;
  note(magic, version);
  if (magic != kNoteMagic) return incompatible("it is not a note of a replay buffer");
  if (version < kNoteWithoutDeaths || version > kNoteVersion) {
    return platform::other_version("its note has version", version, kNoteVersion);
  }
  Spec spec;
  transfer(note, spec, version);
  if (!note.is_read()) return incompatible("it is truncated, or longer than its sizes state");
  Status checked = check(spec);
  if (!checked) return incompatible(checked.error().message);
  return spec;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
