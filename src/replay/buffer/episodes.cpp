#include "replay/buffer/episodes.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "platform/errors.h"
#include "replay/buffer/buffer.h"

namespace shmtree::replay {

namespace {

// A range of the rows of a call.
struct Stretch {
  std::span<const Writer::Column> columns{};
  const Marks& marks;
  std::uint64_t* indices = nullptr;

  // Adds `count` rows from `from` on.
  Status add(Writer& writer, std::size_t from, std::size_t count, const WaitContext& wait) const {
    static_assert(sizeof(bool) == sizeof(char));
    std::vector<Writer::Column> begin(columns.begin(), columns.end());
    for (Writer::Column& column : begin) column.first += from * column.stride;
    const auto at = [from](const std::vector<char>& mask) {
      return mask.empty() ? nullptr : reinterpret_cast<const bool*>(mask.data()) + from;
    };
    return writer.extend({.columns = begin,
                          .count = count,
                          .ends = at(marks.ends),
                          .truncated = at(marks.truncated),
                          .terminated = at(marks.terminated),
                          .priorities = marks.priorities.empty() ? nullptr : marks.priorities.data() + from},
                         indices + from, wait);
  }
};

// Adds the rows of each episode, then its end with the last observation.
Status add_episodes(Writer& writer, const Spec& spec, const GivenRows& rows, const Stretch& all,
                    const WaitContext& wait) {
  const Marks& marks = rows.marks;
  std::size_t from = 0, ends = 0;
  for (std::size_t i = 0; i < marks.ends.size(); ++i) {
    if (marks.ends[i] == 0) continue;
    Status added = all.add(writer, std::exchange(from, i + 1), i + 1 - from, wait);
    if (added) added = writer.end(rows.finals.leaves(spec, i, ends++), marks.truncated[i] != 0, wait);
    if (!added) return added;
  }
  return all.add(writer, from, rows.count - from, wait);
}

}  // namespace

// --- Endings

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

template <class At, class Name>
Result<Ending> Endings::ending_at(const At& at, const Name& name) const {
  const auto is = [&](const std::optional<Key>& key) { return key && key->is_true(at(*key)); };
  const Marked marked{is(done_), is(terminated_), is(truncated_)};
  const auto ending = ending_of(marked);
  if (ending) return *ending;
  return contradiction(name(), marked);
}

Result<Ending> Endings::of(std::span<const void* const> leaves) const {
  return ending_at([&](const Key& key) { return static_cast<const std::byte*>(leaves[key.leaf]); },
                   [] { return std::string("the row"); });
}

Result<std::vector<Ending>> Endings::of(std::span<const Writer::Column> columns, std::size_t count,
                                        std::span<const char> excluded) const {
  std::vector<Ending> endings(count, Ending::kNone);
  for (std::size_t row = 0; row < count; ++row) {
    if (!excluded.empty() && excluded[row] != 0) continue;
    auto ending = ending_at([&](const Key& key) { return columns[key.leaf].first + row * columns[key.leaf].stride; },
                            [&] { return "row " + std::to_string(row); });
    if (!ending) return std::move(ending).error();
    endings[row] = *ending;
  }
  return endings;
}

// --- Marks

bool Marks::cuts_some_off() const noexcept {
  return std::ranges::find(truncated, 1) != truncated.end();
}

Result<Marks> marks_of(const Buffer& buffer, std::span<const Writer::Column> columns, std::size_t count,
                       const GivenMarks& given) {
  const Spec& spec = buffer.spec();
  Marks marks;
  Status fit = buffer.tables()->check_priorities(given.priorities);
  if (!fit) return std::move(fit).error();
  for (const double each : given.priorities) marks.priorities.push_back(static_cast<float>(each));
  if (!spec.says_ends() && given.ends.empty()) return marks;
  auto endings = buffer.endings().of(columns, count, given.excluded);
  if (!endings) return std::move(endings).error();
  marks.ends.resize(count);
  marks.truncated.resize(count);
  marks.terminated.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_left_out = !given.excluded.empty() && given.excluded[i] != 0;
    const bool is_named = !given.ends.empty() && given.ends[i] && !is_left_out;
    const Ending ending = (*endings)[i];
    const bool is_only_named = is_named && ending == Ending::kNone;
    marks.ends[i] = is_named || ending != Ending::kNone;
    marks.truncated[i] = ending == Ending::kTruncated || (is_only_named && spec.says_ends());
    marks.terminated[i] = ending == Ending::kTerminated;
  }
  return marks;
}

// --- Last observations, and rows with them

Result<Finals> Finals::of(const Spec& spec, std::vector<Writer::Column> columns, std::size_t count, std::size_t rows,
                          const Marks& marks) {
  if (!spec.has_finals()) return invalid("final needs a buffer with next=, which stores last observations");
  const auto ends = static_cast<std::size_t>(std::ranges::count(marks.ends, 1));
  Finals finals;
  finals.columns_ = std::move(columns);
  finals.is_by_end_ = count != rows;
  if (!finals.is_by_end_ || count == ends) return finals;
  return invalid("final has " + std::to_string(count) + " rows; it must have " + std::to_string(rows) +
                 ", one for each row, or " + std::to_string(ends) + ", one for each row that ends an episode");
}

Status Finals::check_absence(const Spec& spec, const Marks& marks) {
  if (!spec.has_finals() || !marks.cuts_some_off()) return success();
  const auto row = static_cast<std::size_t>(std::ranges::find(marks.truncated, 1) - marks.truncated.begin());
  return invalid("row " + std::to_string(row) +
                 " is truncated: the buffer has next=, so a truncated episode needs final, the observation " +
                 "after its last row");
}

std::vector<const void*> Finals::leaves(const Spec& spec, std::size_t row, std::size_t end) const {
  std::vector<const void*> found;
  if (empty()) return found;
  found.resize(spec.leaves.size() + 1);
  for (std::size_t i = 0; i < spec.next.size(); ++i) {
    found[spec.next[i]] = columns_[i].first + (is_by_end_ ? end : row) * columns_[i].stride;
  }
  return found;
}

Status add_rows(Writer& writer, const Spec& spec, const GivenRows& rows, std::int64_t version, std::uint64_t* indices,
                const WaitContext& wait) {
  std::vector<Writer::Column> columns(rows.columns.begin(), rows.columns.end());
  columns.push_back({reinterpret_cast<const std::byte*>(&version), 0});
  const Stretch all{columns, rows.marks, indices};
  const std::uint64_t before = writer.added();
  Status added =
      rows.finals.empty() ? all.add(writer, 0, rows.count, wait) : add_episodes(writer, spec, rows, all, wait);
  if (added) return added;
  Error error = std::move(added).error();
  error.completed = writer.added() - before;
  return error;
}

Result<std::uint64_t> add_with_final(Writer& writer, std::span<const void* const> leaves, const RowInfo& info,
                                     std::span<const void* const> final, const WaitContext& wait) {
  auto added = writer.add(leaves, info, wait);
  if (!added || !info.done || final.empty()) return added;
  Status ended = writer.end(final, info.truncated, wait);
  if (ended) return added;
  Error error = std::move(ended).error();
  error.completed = 1;
  return error;
}

Result<std::uint64_t> add_row(Writer& writer, const Spec& spec, const GivenRows& rows, std::size_t row, std::size_t end,
                              std::int64_t version, const WaitContext& wait) {
  std::vector<const void*> leaves;
  for (const Writer::Column& column : rows.columns) leaves.push_back(column.first + row * column.stride);
  leaves.push_back(&version);
  RowInfo info;
  if (rows.marks.ends_at(row)) {
    info = {.done = true, .truncated = rows.marks.truncated[row] != 0, .terminated = rows.marks.terminated[row] != 0};
  }
  if (!rows.marks.priorities.empty()) info.priority = rows.marks.priorities[row];
  return add_with_final(writer, leaves, info, rows.finals.leaves(spec, row, end), wait);
}

}  // namespace shmtree::replay
