// Adds many rows at once, to one stream or one to each of several.
#include <algorithm>
#include <utility>

#include "api/replay/replay_state.h"
#include "platform/errors.h"
#include "platform/never_destroyed.h"
#include "replay/buffer/episodes.h"

namespace shmtree {

using api::ReplayCore;
using api::ReplayRows;
using api::ReplayState;
using api::with_core;
using platform::WaitContext;
using replay::GivenRows;

namespace api {

namespace {

Status check_count(const char* name, std::size_t given, std::size_t rows) {
  if (given == 0 || given == rows) return success();
  return invalid(std::string(name) + " has " + std::to_string(given) + " entries; it must have " +
                 std::to_string(rows) + ", one for each row");
}

// The rows of a call. Valid while this object and the Values exist.
class ReadRows {
 public:
  // `excluded`: marks the rows that are not steps; may be empty. `streams`: number of rows that the call must have; 0:
  // any number.
  Status read(const ReplayCore& core, const Value& rows, const ReplayMarks& marks, std::span<const char> excluded,
              std::size_t streams) {
    const Buffer& buffer = *core.buffer;
    Status fits = rows_.read(buffer.spec(), buffer.spec().row, "rows", rows, RowForm::kMany);
    if (fits && streams != 0 && rows_.rows() != streams) {
      return invalid("rows has " + std::to_string(rows_.rows()) + " rows; it must have " + std::to_string(streams) +
                     ", one for each stream");
    }
    if (fits) fits = check_count("ends", marks.ends.size(), rows_.rows());
    if (fits) fits = check_count("priorities", marks.priorities.size(), rows_.rows());
    if (fits) fits = check_count("reset", excluded.size(), rows_.rows());
    if (!fits) return fits;
    given_.columns = rows_.columns();
    given_.count = rows_.rows();
    auto checked = replay::marks_of(buffer, given_.columns, given_.count, {marks.ends, marks.priorities, excluded});
    if (!checked) return std::move(checked).error();
    given_.marks = std::move(*checked);
    return read_finals(core, marks.final);
  }
  const GivenRows& given() const noexcept { return given_; }

 private:
  Status read_finals(const ReplayCore& core, const Value& final) {
    const replay::Spec& spec = core.buffer->spec();
    if (std::holds_alternative<std::monostate>(final.variant())) {
      return replay::Finals::check_absence(spec, given_.marks);
    }
    std::vector<replay::Writer::Column> columns;
    if (spec.has_finals()) {
      Status fits = finals_.read(spec, core.paths.final, "final", final, RowForm::kMany);
      if (!fits) return fits;
      for (const std::size_t leaf : spec.next) columns.push_back(finals_.columns()[leaf]);
    }
    auto finals = replay::Finals::of(spec, std::move(columns), finals_.rows(), given_.count, given_.marks);
    if (!finals) return std::move(finals).error();
    given_.finals = std::move(*finals);
    return success();
  }

  ReplayRows rows_, finals_;
  GivenRows given_;
};

Result<std::int64_t> add_one(const std::shared_ptr<ReplayWriterState>& writer, const GivenRows& rows, std::size_t row,
                             std::size_t end, const platform::Deadline& deadline, const std::stop_token& stop) {
  return with_core_until(writer.get(), "ReplayWriter", deadline, stop,
                         [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Result<std::int64_t> {
                           auto stream = writer->open_stream();
                           if (!stream) return std::move(stream).error();
                           const std::int64_t version = writer->version.load(std::memory_order_relaxed);
                           auto added = replay::alone(**stream, wait, [&](replay::Writer& to) {
                             return replay::add_row(to, core->buffer->spec(), rows, row, end, version, wait);
                           });
                           if (!added) return std::move(added).error();
                           return static_cast<std::int64_t>(*added);
                         });
}

using Indices = std::vector<std::int64_t>;

// Marks the rows that are not steps: those that the caller marks, and those in which an environment resets.
Result<std::vector<char>> excluded_of(const ReplayVectorState& state, const ReplayMarks& marks) {
  const std::size_t streams = state.states.size();
  Status fits = check_count("reset", marks.reset.size(), streams);
  if (!fits) return std::move(fits).error();
  std::vector<char> excluded(marks.reset.begin(), marks.reset.end());
  if (state.autoreset != ReplayAutoreset::kNextStep) return excluded;
  excluded.resize(streams);
  for (std::size_t i = 0; i < streams; ++i) {
    auto stream = state.states[i]->open_stream();
    if (!stream) return std::move(stream).error();
    if ((*stream)->writer.has_ended()) excluded[i] = 1;
  }
  return excluded;
}

// Notes that the left-out rows were skipped: the next row of their streams begins an episode.
Status begin_skipped(const ReplayVectorState& state, std::span<const char> excluded) {
  for (std::size_t i = 0; i < excluded.size(); ++i) {
    if (excluded[i] == 0) continue;
    auto stream = state.states[i]->open_stream();
    if (!stream) return std::move(stream).error();
    (*stream)->writer.begin_episode();
  }
  return success();
}

// Adds a row to each stream, and returns their indices, -1 for those that are left out. After an error, `completed` is
// the number of streams, from the first on, that have stored or skipped their row. Skips no row before one is stored,
// so that the program can repeat the call if `completed` is 0.
Result<Indices> add_to_each(const ReplayVectorState& state, const Value& rows, const ReplayMarks& marks,
                            const Timeout& timeout, const std::stop_token& stop) {
  const platform::Deadline deadline = platform::Deadline::after(timeout);
  const std::size_t streams = state.states.size();
  Status goes_on = endpoint::check_stop(stop);
  if (!goes_on) return std::move(goes_on).error();
  auto excluded = excluded_of(state, marks);
  if (!excluded) return std::move(excluded).error();
  ReadRows read;
  Status fits = read.read(*state.states.front()->core, rows, marks, *excluded, streams);
  if (!fits) return std::move(fits).error();
  Indices indices(streams, -1);
  std::uint64_t completed = 0;
  for (std::size_t i = 0, ends = 0; i < streams; ++i) {
    if (!excluded->empty() && (*excluded)[i] != 0) continue;
    auto one = add_one(state.states[i], read.given(), i, ends, deadline, stop);
    const std::uint64_t stored = one ? 1 : one.error().completed;
    Status skipped = stored != 0 && completed == 0 ? begin_skipped(state, *excluded) : success();
    if (stored != 0 || completed != 0) completed = i + stored;
    if (!one || !skipped) {
      Error error = one ? std::move(skipped).error() : std::move(one).error();
      error.completed = completed;
      return error;
    }
    indices[i] = *one;
    ends += read.given().marks.ends_at(i) ? 1 : 0;
  }
  if (completed == 0) {  // All rows are skipped.
    Status skipped = begin_skipped(state, *excluded);
    if (!skipped) return std::move(skipped).error();
  }
  return indices;
}

}  // namespace

ReplayVectorWriter ReplayState::wrap(std::vector<std::shared_ptr<ReplayWriterState>> states,
                                     ReplayAutoreset autoreset) {
  auto vector = std::make_shared<ReplayVectorState>();
  vector->autoreset = autoreset;
  for (const auto& each : states) vector->writers.push_back(wrap(each));
  vector->states = std::move(states);
  return ReplayVectorWriter(std::move(vector));
}

}  // namespace api

Result<std::vector<std::int64_t>> ReplayWriter::extend(const Value& rows, const ReplayMarks& marks, Timeout timeout,
                                                       const std::stop_token& stop) const {
  using api::Indices;
  const auto act = [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Result<Indices> {
    const replay::Spec& spec = core->buffer->spec();
    if (!marks.reset.empty()) return invalid("reset needs a vector writer (vector_writer())");
    api::ReadRows read;
    Status fits = read.read(*core, rows, marks, {}, 0);
    if (!fits) return std::move(fits).error();
    if (spec.has_finals() && marks.ends.empty() && !spec.says_ends()) {
      return invalid("rows of a buffer with next need ends, or a leaf that marks the ends of episodes");
    }
    auto stream = state_->open_stream();
    if (!stream) return std::move(stream).error();
    const std::int64_t version = state_->version.load(std::memory_order_relaxed);
    Indices indices(read.given().count);
    Status added = replay::alone(**stream, wait, [&](replay::Writer& writer) {
      return replay::add_rows(writer, spec, read.given(), version, reinterpret_cast<std::uint64_t*>(indices.data()),
                              wait);
    });
    if (!added) return std::move(added).error();
    return indices;
  };
  return with_core(state_.get(), "ReplayWriter", timeout, stop, act);
}

Result<ReplayVectorWriter> ReplayBuffer::vector_writer(std::size_t n, ReplayAutoreset autoreset) const {
  constexpr std::size_t kMaxStreams = std::size_t{1} << 20;
  return or_out_of_memory([&]() -> Result<ReplayVectorWriter> {
    if (state_ == nullptr) return closed_here("ReplayBuffer");
    if (n == 0 || n > kMaxStreams) {
      return invalid("n is " + std::to_string(n) + " streams; it must be from 1 to " + std::to_string(kMaxStreams));
    }
    auto writers = state_->new_writers(n);
    if (!writers) return std::move(writers).error();
    return ReplayState::wrap(std::move(*writers), autoreset);
  });
}

Result<std::vector<std::int64_t>> ReplayVectorWriter::add(const Value& rows, const ReplayMarks& marks, Timeout timeout,
                                                          const std::stop_token& stop) const {
  return or_out_of_memory([&]() -> Result<std::vector<std::int64_t>> {
    if (state_ == nullptr) return closed_here("ReplayVectorWriter");
    return api::add_to_each(*state_, rows, marks, timeout, stop);
  });
}

const std::vector<ReplayWriter>& ReplayVectorWriter::writers() const& noexcept {
  return state_ == nullptr ? platform::never_destroyed<std::vector<ReplayWriter>>() : state_->writers;
}

void ReplayVectorWriter::set_version(std::int64_t version) noexcept {
  if (state_ == nullptr) return;
  for (ReplayWriter& each : state_->writers) each.set_version(version);
}

void ReplayVectorWriter::close() {
  if (state_ == nullptr) return;
  for (ReplayWriter& each : state_->writers) each.close();
}
bool ReplayVectorWriter::closed() const noexcept {
  return std::ranges::all_of(writers(), [](const ReplayWriter& each) { return each.closed(); });
}

}  // namespace shmtree
