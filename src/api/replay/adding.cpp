// Adds rows: one or several to a stream, or one to each of several streams.
#include <algorithm>
#include <memory>
#include <utility>

#include "api/replay/replay_state.h"
#include "platform/errors.h"
#include "platform/never_destroyed.h"
#include "replay/buffer/given_rows.h"

namespace shmtree {

using api::ReplayCore;
using api::ReplayState;
using platform::WaitContext;
using replay::Adding;

namespace api {

namespace {

using Indices = std::vector<std::int64_t>;

Status check_count(const char* name, std::size_t given, std::size_t rows) {
  if (given == 0 || given == rows) return success();
  return invalid(std::string(name) + " has " + std::to_string(given) + " entries; it must have " +
                 std::to_string(rows) + ", one for each row");
}

// The rows of a call. Valid while this object and the Values exist.
class ReadRows {
 public:
  // `marks`: without `final`, which is passed alone. `excluded`: marks the rows that are not steps; may be empty.
  // `streams`: number of streams, for kOneEach.
  Status read(const ReplayCore& core, const Value& rows, const ReplayMarks& marks, const Value& final, Adding adding,
              std::span<const char> excluded = {}, std::size_t streams = 0) {
    const replay::Spec& spec = core.buffer->spec();
    const RowForm form = adding == Adding::kOneRow ? RowForm::kOne : RowForm::kMany;
    Status fits = rows_.read(spec, spec.row, form == RowForm::kOne ? "row" : "rows", rows, form);
    if (fits && adding == Adding::kOneEach && rows_.rows() != streams) {
      return invalid("rows has " + std::to_string(rows_.rows()) + " rows; it must have " + std::to_string(streams) +
                     ", one for each stream");
    }
    if (fits) fits = check_count("ends", marks.ends.size(), rows_.rows());
    if (fits) fits = check_count("priorities", marks.priorities.size(), rows_.rows());
    if (!fits) return fits;
    given_.emplace(rows_.columns(), rows_.rows());
    replay::GivenMarks given{marks.ends, marks.priorities, excluded};
    if (!std::holds_alternative<std::monostate>(final.variant())) {
      if (spec.has_finals()) fits = finals_.read(spec, core.paths.final, "final", final, form);
      if (!fits) return fits;
      given.finals = finals_.columns();
      given.finals_count = finals_.rows();
    }
    return given_->mark(*core.buffer, given, adding, infos_);
  }
  replay::GivenRows& given() noexcept { return *given_; }

 private:
  ReplayRows rows_, finals_;
  std::vector<replay::RowInfo> infos_;
  std::optional<replay::GivenRows> given_;
};

// Adds the rows [from, from + indices.size()) to a stream.
Status add_to(ReplayWriterState& writer, ReadRows& rows, std::size_t from, std::span<std::int64_t> indices,
              const WaitContext& wait) {
  auto stream = writer.open_stream();
  if (!stream) return std::move(stream).error();
  const std::int64_t version = writer.version.load(std::memory_order_relaxed);
  auto* const at = reinterpret_cast<std::uint64_t*>(indices.data());
  return replay::alone(**stream, wait, [&](replay::Writer& to) {
    return rows.given().add(to, from, from + indices.size(), version, at - from, wait);
  });
}

Result<Indices> add_to_one(ReplayWriterState* writer, const Value& rows, const ReplayMarks& marks, const Value& final,
                           Adding adding, const Timeout& timeout, const std::stop_token& stop) {
  return with_core(writer, "ReplayWriter", timeout, stop,
                   [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Result<Indices> {
                     if (!marks.reset.empty()) return invalid("reset needs a vector writer (vector_writer())");
                     ReadRows read;
                     Status done = read.read(*core, rows, marks, final, adding);
                     Indices indices(done ? read.given().count() : 0);
                     if (done) done = add_to(*writer, read, 0, indices, wait);
                     if (!done) return std::move(done).error();
                     return indices;
                   });
}

Result<Indices> add_to_all(const ReplayVectorState& state, const Value& rows, const ReplayMarks& marks,
                           const Timeout& timeout, const std::stop_token& stop) {
  const platform::Deadline deadline = platform::Deadline::after(timeout);
  std::vector<std::shared_ptr<replay::Stream>> streams;
  if (Status goes_on = endpoint::check_stop(stop); !goes_on) return std::move(goes_on).error();
  for (const auto& writer : state.states) {
    auto stream = writer->open_stream();
    if (!stream) return std::move(stream).error();
    streams.push_back(std::move(*stream));
  }
  Status done = check_count("reset", marks.reset.size(), streams.size());
  std::vector<char> excluded(marks.reset.begin(), marks.reset.end());
  if (done && state.autoreset == ReplayAutoreset::kNextStep) replay::exclude_resets(streams, excluded);
  ReadRows read;
  const ReplayCore& core = *state.states.front()->core;
  if (done) done = read.read(core, rows, marks, marks.final, Adding::kOneEach, excluded, streams.size());
  if (!done) return std::move(done).error();
  Indices indices(streams.size(), -1);
  done = replay::add_to_each(streams, excluded, [&](std::size_t i) {
    return with_core_until(state.states[i].get(), "ReplayWriter", deadline, stop,
                           [&](const std::shared_ptr<ReplayCore>&, const WaitContext& wait) {
                             return add_to(*state.states[i], read, i, std::span(indices).subspan(i, 1), wait);
                           });
  });
  if (!done) return std::move(done).error();
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

Result<std::int64_t> ReplayWriter::add(const Value& row, Timeout timeout, std::optional<double> priority,
                                       const std::stop_token& stop, const Value& final) const {
  ReplayMarks marks;
  if (priority) marks.priorities = {&*priority, 1};
  auto added = api::add_to_one(state_.get(), row, marks, final, Adding::kOneRow, timeout, stop);
  if (!added) return std::move(added).error();
  return added->front();
}

Result<std::vector<std::int64_t>> ReplayWriter::extend(const Value& rows, const ReplayMarks& marks, Timeout timeout,
                                                       const std::stop_token& stop) const {
  return api::add_to_one(state_.get(), rows, marks, marks.final, Adding::kRows, timeout, stop);
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
    return api::add_to_all(*state_, rows, marks, timeout, stop);
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
