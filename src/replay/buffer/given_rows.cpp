#include "replay/buffer/given_rows.h"

#include <algorithm>
#include <string>

#include "platform/errors.h"

namespace shmtree::replay {

Status GivenRows::mark(const Buffer& buffer, const GivenMarks& given, Adding adding, std::vector<RowInfo>& infos) {
  const Spec& spec = buffer.spec();
  if (!given.priorities.empty()) {
    if (Status fit = buffer.tables()->check_priorities(given.priorities); !fit) return fit;
  }
  const bool has_ends = spec.says_ends() || !given.ends.empty();
  if (adding == Adding::kRows && spec.has_finals() && count_ != 0 && !has_ends) {
    return invalid("rows of a buffer with next= need ends, or a leaf that marks the ends of episodes");
  }
  infos.assign(has_ends || !given.priorities.empty() ? count_ : 0, {});
  for (std::size_t i = 0; i < infos.size(); ++i) {
    RowInfo& info = infos[i];
    if (!given.priorities.empty()) info.priority = static_cast<float>(given.priorities[i]);
    if (!has_ends || (!given.excluded.empty() && given.excluded[i] != 0)) continue;
    const auto ending = buffer.endings().of(columns_, i, count_);
    if (!ending) return ending.error();
    const bool is_named = !given.ends.empty() && given.ends[i];
    info.done = is_named || *ending != Ending::kNone;
    info.truncated = *ending == Ending::kTruncated || (is_named && *ending == Ending::kNone && spec.says_ends());
    info.terminated = *ending == Ending::kTerminated;
  }
  if (!infos.empty()) infos_ = infos;  // the memory of an empty vector may have earlier elements
  return adding == Adding::kOneRow && !given.finals ? success() : check_finals(spec, given);
}

Status GivenRows::check_finals(const Spec& spec, const GivenMarks& given) {
  if (!given.finals) {
    const auto cut = std::ranges::find_if(infos_, &RowInfo::truncated);
    if (!spec.has_finals() || cut == infos_.end()) return success();
    return invalid("row " + std::to_string(cut - infos_.begin()) +
                   " is truncated: the buffer has next=, so a truncated episode needs final, the observation " +
                   "after its last row");
  }
  if (!spec.has_finals()) return invalid("final needs a buffer with next=, which stores last observations");
  finals_ = *given.finals;
  has_final_for_each_row_ = given.finals_count == count_;
  if (has_final_for_each_row_) return success();
  const auto ends = static_cast<std::size_t>(std::ranges::count(infos_, true, &RowInfo::done));
  if (given.finals_count == ends) return success();
  return invalid("final has " + std::to_string(given.finals_count) + " rows; it must have " + std::to_string(count_) +
                 ", one for each row, or " + std::to_string(ends) + ", one for each row that ends an episode");
}

Status GivenRows::add_until(Writer& writer, std::size_t until, std::uint64_t* indices, const WaitContext& wait) {
  const std::size_t from = std::exchange(added_, until);
  if (until - from != 1) {
    return writer.extend({.columns = columns_, .from = from, .count = until - from, .infos = infos_.data()}, indices,
                         wait);
  }
  auto index = writer.add(columns_, infos_.empty() ? RowInfo{} : infos_[from], wait, from);
  if (!index) return std::move(index).error();
  indices[from] = *index;
  return success();
}

// Adds the rows of each episode, then its last observation.
Status GivenRows::add_episodes(Writer& writer, std::size_t until, std::uint64_t* indices, const WaitContext& wait) {
  for (std::size_t row = added_; row < until && !infos_.empty(); ++row) {
    if (!infos_[row].done) continue;
    Status added = add_until(writer, row + 1, indices, wait);
    const std::size_t final = has_final_for_each_row_ ? row : finals_added_++;
    if (added) added = writer.end(finals_, infos_[row].truncated, wait, final);
    if (!added) return added;
  }
  return added_ == until ? success() : add_until(writer, until, indices, wait);
}

Status GivenRows::add(Writer& writer, std::size_t from, std::size_t until, std::int64_t version, std::uint64_t* indices,
                      const WaitContext& wait) {
  columns_.back() = Column(&version);
  added_ = from;
  if (finals_.empty()) return add_until(writer, until, indices, wait);
  const std::uint64_t before = writer.added();
  Status done = add_episodes(writer, until, indices, wait);
  if (done) return done;
  Error error = std::move(done).error();
  error.completed = writer.added() - before;
  return error;
}

void exclude_resets(std::span<const std::shared_ptr<Stream>> streams, std::vector<char>& excluded) {
  excluded.resize(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (streams[i]->writer.has_ended()) excluded[i] = 1;
  }
}

}  // namespace shmtree::replay
