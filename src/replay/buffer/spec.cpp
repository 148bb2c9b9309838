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
    const auto kind = static_cast<std::uint32_t>(table.kind);
    if (kind < 1 || kind > 5) return invalid("a sampler has the unknown kind " + std::to_string(kind));
    if (!is_sound(table.alpha) || !is_sound(table.beta) || !is_sound(table.eps)) {
      return invalid("alpha, beta and eps of the sampler \"" + name + "\" must be finite and not negative");
    }
    for (std::size_t k = 0; k < i; ++k) {
      if (spec.samplers[k].first == name) return invalid("two samplers have the name \"" + name + "\"");
    }
  }
  if (!spec.limit) return success();
  const RateLimit& limit = *spec.limit;
  const bool has_buffer = !std::isnan(limit.error_buffer);
  if (!is_sound(limit.samples_per_insert) || limit.samples_per_insert == 0 || limit.min_size == 0 ||
      (has_buffer && !is_sound(limit.error_buffer))) {
    return invalid("a limit of " + std::to_string(limit.samples_per_insert) + " samples per insert from " +
                   std::to_string(limit.min_size) + " rows on; the first must be positive, the second at least 1");
  }
  return success();
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

class NoteWriter {
 public:
  void number(std::uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void real(double value) { number(std::bit_cast<std::uint64_t>(value)); }
  void text(const std::string& value) {
    number(value.size());
    bytes_ += value;
  }
  void part(const SpecPart& part) {
    number(static_cast<std::uint64_t>(part.form));
    if (part.form == SpecPart::Form::kLeaf) return;
    number(part.parts.size());
    for (std::size_t i = 0; i < part.parts.size(); ++i) {
      if (part.form == SpecPart::Form::kDict) {
        number(part.keys[i].is_text ? 1 : 0);
        text(part.keys[i].bytes);
      }
      this->part(part.parts[i]);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads a note. After the first invalid value, all further values are zero or empty.
class NoteReader {
 public:
  explicit NoteReader(std::span<const std::byte> left) noexcept : left_(left) {}

  bool failed() const noexcept { return failed_; }
  bool at_end() const noexcept { return left_.empty(); }
  std::uint64_t number() noexcept {
    std::uint64_t value = 0;
    if (!has(sizeof value)) return 0;
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return value;
  }
  std::uint64_t number_below(std::uint64_t bound) noexcept {
    const std::uint64_t value = number();
    if (value >= bound) failed_ = true;
    return failed_ ? 0 : value;
  }
  // Reads a number of elements, each of at least 8 bytes. Rejects counts that exceed the rest of the note, so that the
  // caller never reserves more memory than the note justifies.
  std::uint64_t count() noexcept { return number_below(left_.size() / sizeof(std::uint64_t) + 1); }
  double real() noexcept { return std::bit_cast<double>(number()); }
  std::string text() {
    const std::uint64_t bytes = number();
    if (!has(bytes)) return {};
    std::string value(reinterpret_cast<const char*>(left_.data()), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }
  SpecPart part(std::size_t depth, std::size_t& leaves) {
    SpecPart found;
    if (depth > Spec::kMaxNesting) failed_ = true;
    found.form = static_cast<SpecPart::Form>(number_below(4));
    if (failed_) return found;
    if (found.form == SpecPart::Form::kLeaf) {
      found.leaf = leaves++;
      return found;
    }
    for (std::uint64_t i = count(); i > 0 && !failed_; --i) {
      if (found.form == SpecPart::Form::kDict) {
        const bool is_text = number_below(2) == 1;
        found.keys.push_back({text(), is_text});
      }
      found.parts.push_back(part(depth + 1, leaves));
    }
    return found;
  }

 private:
  bool has(std::uint64_t bytes) noexcept {
    if (failed_ || left_.size() < bytes) failed_ = true;
    return !failed_;
  }

  std::span<const std::byte> left_;
  bool failed_ = false;
};

Error incompatible(const std::string& why) {
  return Error{.code = Code::kIncompatible,
               .message = "the specification of this replay buffer cannot be read: " + why};
}

void write_samplers(NoteWriter& out, const Spec& spec) {
  out.number(spec.samplers.size());
  for (const auto& [name, table] : spec.samplers) {
    out.text(name);
    out.number(static_cast<std::uint64_t>(table.kind));
    out.real(table.alpha);
    out.real(table.beta);
    out.real(table.eps);
    out.number(table.max_times);
  }
  out.number(spec.limit ? 1 : 0);
  if (!spec.limit) return;
  out.real(spec.limit->samples_per_insert);
  out.number(spec.limit->min_size);
  out.real(spec.limit->error_buffer);
}

void read_samplers(NoteReader& in, Spec& spec) {
  constexpr std::uint64_t k32Bits = std::uint64_t{1} << 32;
  for (std::uint64_t i = in.count(); i > 0 && !in.failed(); --i) {
    std::string name = in.text();
    TableSpec table;
    table.kind = static_cast<SamplerKind>(in.number_below(k32Bits));
    table.alpha = in.real();
    table.beta = in.real();
    table.eps = in.real();
    table.max_times = static_cast<std::uint32_t>(in.number_below(k32Bits));
    spec.samplers.emplace_back(std::move(name), table);
  }
  if (in.number_below(2) == 0) return;
  RateLimit& limit = spec.limit.emplace();
  limit.samples_per_insert = in.real();
  limit.min_size = in.number();
  limit.error_buffer = in.real();
}

void read_leaves(NoteReader& in, Spec& spec) {
  std::size_t leaves = 0;
  spec.row = in.part(0, leaves);
  for (; leaves > 0 && !in.failed(); --leaves) {
    SpecLeaf& leaf = spec.leaves.emplace_back();
    leaf.dtype = in.text();
    leaf.item_bytes = in.number();
    for (std::uint64_t i = in.count(); i > 0 && !in.failed(); --i) leaf.shape.push_back(in.number());
  }
}

std::optional<std::size_t> leaf_or_none(std::uint64_t number) {
  return number == kNone ? std::optional<std::size_t>() : number;
}

void read_outputs(NoteReader& in, Spec& spec) {
  constexpr std::uint64_t k32Bits = std::uint64_t{1} << 32;
  for (std::uint64_t i = in.count(); i > 0 && !in.failed(); --i) spec.next.push_back(in.number());
  spec.n_step = static_cast<std::uint32_t>(in.number_below(k32Bits));
  spec.gamma = in.real();
  for (std::uint64_t i = in.count(); i > 0 && !in.failed(); --i) {
    const std::uint64_t leaf = in.number();
    spec.stack.emplace_back(leaf, static_cast<std::uint32_t>(in.number_below(k32Bits)));
  }
  spec.repeats_first = in.number_below(2) == 1;
  spec.reward = leaf_or_none(in.number());
  spec.done = leaf_or_none(in.number());
}

}  // namespace

std::string pack(const Spec& spec) {
  NoteWriter out;
  out.number(kNoteMagic);
  out.number(kNoteVersion);
  out.part(spec.row);
  for (const SpecLeaf& leaf : spec.leaves) {
    out.text(leaf.dtype);
    out.number(leaf.item_bytes);
    out.number(leaf.shape.size());
    for (const std::uint64_t size : leaf.shape) out.number(size);
  }
  out.number(spec.next.size());
  for (const std::size_t leaf : spec.next) out.number(leaf);
  out.number(spec.n_step);
  out.real(spec.gamma);
  out.number(spec.stack.size());
  for (const auto& [leaf, frames] : spec.stack) {
    out.number(leaf);
    out.number(frames);
  }
  out.number(spec.repeats_first ? 1 : 0);
  out.number(spec.reward.value_or(kNone));
  out.number(spec.done.value_or(kNone));
  write_samplers(out, spec);
  out.number(spec.raises_on_death ? 1 : 0);
  out.number(spec.terminated.value_or(kNone));
  out.number(spec.truncated.value_or(kNone));
  out.number(spec.ends_unknown ? 1 : 0);
  return out.take();
}

Result<Spec> unpack(std::span<const std::byte> note) try {
  NoteReader in(note);
  if (in.number() != kNoteMagic) return incompatible("it is not a note of a replay buffer");
  const std::uint64_t version = in.number();
  if (version < kNoteWithoutDeaths || version > kNoteVersion) {
    return platform::other_version("its note has version", version, kNoteVersion);
  }
  Spec spec;
  read_leaves(in, spec);
  read_outputs(in, spec);
  read_samplers(in, spec);
  if (version > kNoteWithoutDeaths) spec.raises_on_death = in.number_below(2) == 1;
  if (version > kNoteWithoutEnds) {
    spec.terminated = leaf_or_none(in.number());
    spec.truncated = leaf_or_none(in.number());
    spec.ends_unknown = in.number_below(2) == 1;
  }
  if (in.failed() || !in.at_end()) return incompatible("it is truncated, or longer than its sizes state");
  Status checked = check(spec);
  if (!checked) return incompatible(checked.error().message);
  return spec;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
