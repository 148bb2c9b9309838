#include "replay/buffer/endings.h"

#include <cstring>
#include <string>
#include <utility>

#include "platform/errors.h"

namespace shmtree::replay {

// A negative zero is not true, so the sign bit is ignored.
bool Endings::Key::is_true(const std::byte* at) const noexcept {
  if (bytes == 1) return *at != std::byte{};
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, bytes);
  if (is_float) bits &= ~(std::uint64_t{1} << (8 * bytes - 1));
  return bits != 0;
}

std::optional<Endings::Key> Endings::key_of(const Spec& spec, const std::optional<std::size_t>& leaf,
                                            const char* name) {
  if (!leaf) return std::nullopt;
  const SpecLeaf& of = spec.leaves[*leaf];
  Key key{.leaf = *leaf, .bytes = of.bytes(), .is_float = dtype_of(of.dtype) >= DType::kFloat16, .name = name};
  for (std::size_t i = 0; i < spec.row.keys.size(); ++i) {
    const SpecPart& part = spec.row.parts[i];
    const bool is_it = part.form == SpecPart::Form::kLeaf && part.leaf == *leaf && spec.row.keys[i].is_text;
    if (is_it) key.name = spec.row.keys[i].bytes;
  }
  return key;
}

Endings::Endings(const Spec& spec)
    : done_(key_of(spec, spec.done, "done")),
      terminated_(key_of(spec, spec.terminated, "terminated")),
      truncated_(key_of(spec, spec.truncated, "truncated")) {}

// Returns nullopt for a row that contradicts itself.
std::optional<Ending> Endings::ending_of(const Marked& is) const noexcept {
  if (done_ && !is.done && (is.terminated || is.truncated)) return std::nullopt;
  if (is.terminated) return Ending::kTerminated;
  if (is.truncated) return Ending::kTruncated;
  if (!is.done) return Ending::kNone;
  if (terminated_ && truncated_) return std::nullopt;
  if (terminated_) return Ending::kTruncated;
  return truncated_ ? Ending::kTerminated : Ending::kDone;
}

Error Endings::contradiction(const std::string& row, const Marked& is) const {
  std::string text = row + " has ";
  const auto add = [&](const std::optional<Key>& key, bool value) {
    if (key) text += key->name + (value ? " = true, " : " = false, ");
  };
  add(terminated_, is.terminated);
  add(truncated_, is.truncated);
  add(done_, is.done);
  return invalid(text + "and " + done_->name + " must be true exactly where an episode terminated or was truncated");
}

Result<Ending> Endings::of(std::span<const Column> columns, std::size_t row, std::size_t count) const {
  const auto is = [&](const std::optional<Key>& key) {
    return key && key->is_true(columns[key->leaf].first + row * columns[key->leaf].stride);
  };
  const Marked marked{is(done_), is(terminated_), is(truncated_)};
  const auto ending = ending_of(marked);
  if (ending) [[likely]]
    return *ending;
  return contradiction(count == 1 ? "the row" : "row " + std::to_string(row), marked);
}

}  // namespace shmtree::replay
