// The bytes of a Spec.
#include <bit>
#include <cstring>
#include <new>

#include "platform/other_version.h"
#include "replay/spec.h"

namespace shmtree::replay {

namespace {

constexpr std::uint64_t kNoteMagic = 0x0065746f6e746d73;  // "smtnote"
constexpr std::uint64_t kNoteVersion = 3;
constexpr std::uint64_t kNoteWithoutDeaths = 1;     // a version that lacks what is done about deaths
constexpr std::uint64_t kNoteWithoutEnds = 2;       // a version in which only `done` ends episodes
constexpr std::uint64_t kNone = ~std::uint64_t{0};  // of a leaf that is not named

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

// After the first thing that cannot be, all that is read is nothing.
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
  // Of things that take at least a number each, so that nothing is reserved for more than there can be.
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
    if (depth > Spec::kMostDepth) failed_ = true;
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
  return Error{.code = Code::kIncompatible, .message = "what this replay buffer is made of cannot be read: " + why};
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
  if (in.failed() || !in.at_end()) return incompatible("its note is cut off, or longer than it says");
  Status checked = check(spec);
  if (!checked) return incompatible(checked.error().message);
  return spec;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
