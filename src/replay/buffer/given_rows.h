// The rows of one call, with the ends of their episodes and their last observations.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "replay/buffer/stream.h"

namespace shmtree::replay {

// The kinds of calls that add rows.
enum class Adding : char {
  kOneRow,   // a row to a stream; its last observation may follow later
  kRows,     // rows to a stream
  kOneEach,  // a row to each of several streams
};

// Arguments of a caller about its rows. Each span has one element for each row, or is empty.
struct GivenMarks {
  std::span<const bool> ends{};
  std::span<const double> priorities{};
  std::span<const char> excluded{};  // rows that are skipped; they end nothing
  // Last observations, with a column for each of Spec::leaves: one for each row, or one for each row that ends its
  // episode, in order.
  std::optional<std::span<const Column>> finals{};
  std::size_t finals_count = 0;
};

// The rows of a call. The caller owns the memory.
class GivenRows {
 public:
  // `columns`: one for each of Spec::leaves, and a last one that add() sets.
  GivenRows(std::span<Column> columns, std::size_t count) noexcept : columns_(columns), count_(count) {}

  // A row ends its episode if `given.ends` names it or its own leaves say so; the leaves take precedence. If only
  // `ends` names a row, its episode was cut off, or terminated if the buffer has no such leaves. Stores the result in
  // `infos`. Returns kInvalid, with the numbers, for a priority that no row can have and for rows that contradict
  // themselves. The same holds for last observations that are missing, or fit neither the rows nor their ends.
  Status mark(const Buffer& buffer, const GivenMarks& given, Adding adding, std::vector<RowInfo>& infos);
  // Adds the rows [from, until) to a stream, marked with `version`, and the last observations of those that end their
  // episode. Add each row once, in order. Writes the index of row n to indices[n]. After an error, Error::completed is
  // the number of rows added. Errors: those of Writer::extend() and Writer::end().
  Status add(Writer& writer, std::size_t from, std::size_t until, std::int64_t version, std::uint64_t* indices,
             const WaitContext& wait);
  std::size_t count() const noexcept { return count_; }

 private:
  Status check_finals(const Spec& spec, const GivenMarks& given);
  Status add_until(Writer& writer, std::size_t until, std::uint64_t* indices, const WaitContext& wait);
  Status add_episodes(Writer& writer, std::size_t until, std::uint64_t* indices, const WaitContext& wait);

  std::span<Column> columns_;
  std::size_t count_;
  std::span<const RowInfo> infos_{};  // empty: no row ends an episode, and none has a priority
  std::span<const Column> finals_{};  // empty: no last observations
  bool has_final_for_each_row_ = true;
  std::size_t added_ = 0, finals_added_ = 0;
};

// Adds row n to stream n by add(n), for each row that `excluded` (may be empty) does not mark. After an error,
// Error::completed is the number of streams, from the first on, that have stored or skipped their row. Skips no row
// before one is stored, so that the program can repeat the call if `completed` is 0.
template <class Add>
Status add_to_each(std::span<const std::shared_ptr<Stream>> streams, std::span<const char> excluded, Add add) {
  const auto skips = [&](std::size_t i) { return !excluded.empty() && excluded[i] != 0; };
  const auto begin_skipped = [&] {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (skips(i)) streams[i]->writer.begin_episode();
    }
  };
  std::uint64_t completed = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (skips(i)) continue;
    Status added = add(i);
    const std::uint64_t stored = added ? 1 : added.error().completed;
    if (stored != 0 && completed == 0) begin_skipped();
    if (stored != 0 || completed != 0) completed = i + stored;
    if (added) continue;
    Error error = std::move(added).error();
    error.completed = completed;
    return error;
  }
  if (completed == 0) begin_skipped();  // every stream skips its row
  return success();
}
// Marks the rows of streams whose last row ended its episode: their environments reset in this step.
void exclude_resets(std::span<const std::shared_ptr<Stream>> streams, std::vector<char>& excluded);

}  // namespace shmtree::replay
