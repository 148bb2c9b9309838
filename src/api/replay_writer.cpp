// Streams of rows, as users have them.
#include <algorithm>
#include <utility>

#include "api/replay_state.h"

namespace shmtree {

using api::ReplayCore;
using api::ReplayRow;
using api::ReplayWriterState;
using api::with_core;
using platform::WaitContext;
using replay::Stream;

namespace api {

// Two threads may both make the first one: that of one of them is kept, and the other was never written to.
Result<std::shared_ptr<Stream>> ReplayWriterState::open_stream() {
  std::shared_ptr<Stream> known;
  {
    const std::lock_guard guard(mutex);
    known = stream;
  }
  std::shared_ptr<Stream> mine = known;
  auto opened = replay::stream_of(*core->buffer, mine);
  if (!opened || mine == known) return opened;
  const std::lock_guard guard(mutex);
  if (stream != known) return stream;
  std::swap(stream, known);  // let go of outside the mutex
  stream = mine;
  return mine;
}

namespace {

constexpr const char* kWhat = "ReplayWriter";

// Of one row; kNoPriority for none.
Result<float> checked_priority(const ReplayCore& core, std::optional<double> priority) {
  if (!priority) return replay::kNoPriority;
  Status fits = core.buffer->tables()->check_priorities({&*priority, 1});
  if (!fits) return std::move(fits).error();
  return static_cast<float>(*priority);
}

Error invalid(std::string message) {
  return Error{Code::kInvalid, std::move(message)};
}

Status check_marks(const replay::Spec& spec, std::size_t rows, const ReplayMarks& marks) {
  if (!marks.ends.empty() && marks.ends.size() != rows) {
    return invalid("ends has " + std::to_string(marks.ends.size()) + " marks, for " + std::to_string(rows) + " rows");
  }
  if (!marks.priorities.empty() && marks.priorities.size() != rows) {
    return invalid(std::to_string(marks.priorities.size()) + " priorities, for " + std::to_string(rows) + " rows");
  }
  if (spec.has_finals() && marks.ends.empty() && !spec.done) {
    return invalid("rows with successors need ends, or a leaf that says where episodes end");
  }
  return success();
}

}  // namespace
}  // namespace api

Result<std::int64_t> ReplayWriter::add(const Value& row, Timeout timeout, std::optional<double> priority) const {
  return with_core(state_.get(), api::kWhat, timeout,
                   [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Result<std::int64_t> {
                     const replay::Spec& spec = core->buffer->spec();
                     ReplayRow read;
                     Status fits = read.read(spec, spec.row, "row", row);
                     if (!fits) return std::move(fits).error();
                     auto checked = api::checked_priority(*core, priority);
                     if (!checked) return std::move(checked).error();
                     replay::RowInfo info{.priority = *checked};
                     if (spec.done) info.done = core->buffer->is_done(read.leaves()[*spec.done]);
                     auto stream = state_->open_stream();
                     if (!stream) return std::move(stream).error();
                     const std::int64_t version = state_->version.load(std::memory_order_relaxed);
                     read.leaves().push_back(&version);
                     auto added = replay::alone(
                         **stream, wait, [&](replay::Writer& writer) { return writer.add(read.leaves(), info, wait); });
                     if (!added) return std::move(added).error();
                     return static_cast<std::int64_t>(*added);
                   });
}

Status ReplayWriter::end(const Value& final, bool truncated, Timeout timeout) const {
  return with_core(state_.get(), api::kWhat, timeout,
                   [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Status {
                     const replay::Spec& spec = core->buffer->spec();
                     ReplayRow read;
                     if (!std::holds_alternative<std::monostate>(final.variant())) {
                       if (!spec.has_finals()) {
                         return api::invalid("final is for buffers with next, which keep the last observations");
                       }
                       Status fits = read.read(spec, core->paths.final, "final", final);
                       if (!fits) return fits;
                       read.leaves().push_back(nullptr);
                     }
                     auto stream = state_->open_stream();
                     if (!stream) return std::move(stream).error();
                     return replay::alone(**stream, wait, [&](replay::Writer& writer) {
                       return writer.end(read.leaves(), truncated, wait);
                     });
                   });
}

Result<std::vector<std::int64_t>> ReplayWriter::extend(const Value& rows, const ReplayMarks& marks,
                                                       Timeout timeout) const {
  using Indices = std::vector<std::int64_t>;
  return with_core(state_.get(), api::kWhat, timeout,
                   [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Result<Indices> {
                     api::ReplayRows read;
                     Status fits = read.read(core->buffer->spec(), rows);
                     if (fits) fits = api::check_marks(core->buffer->spec(), read.rows(), marks);
                     if (!fits) return std::move(fits).error();
                     auto checked =
                         replay::marks_of(*core->buffer, read.columns(), read.rows(), marks.ends, marks.priorities);
                     if (!checked) return std::move(checked).error();
                     auto stream = state_->open_stream();
                     if (!stream) return std::move(stream).error();
                     const std::int64_t version = state_->version.load(std::memory_order_relaxed);
                     read.columns().push_back({reinterpret_cast<const std::byte*>(&version), 0});
                     static_assert(sizeof(bool) == sizeof(char));
                     const auto flags = [](const std::vector<char>& from) {
                       return from.empty() ? nullptr : reinterpret_cast<const bool*>(from.data());
                     };
                     const replay::Writer::Rows all{
                         .columns = read.columns(),
                         .count = read.rows(),
                         .ends = flags(checked->ends),
                         .truncated = flags(checked->truncated),
                         .priorities = checked->priorities.empty() ? nullptr : checked->priorities.data()};
                     Indices indices(read.rows());
                     Status added = replay::alone(**stream, wait, [&](replay::Writer& writer) {
                       return writer.extend(all, reinterpret_cast<std::uint64_t*>(indices.data()), wait);
                     });
                     if (!added) return std::move(added).error();
                     return indices;
                   });
}

void ReplayWriter::set_version(std::int64_t version) noexcept {
  if (state_ != nullptr) state_->version.store(version, std::memory_order_relaxed);
}

Result<std::uint32_t> ReplayWriter::stream() const {
  return with_core(state_.get(), api::kWhat, {},
                   [&](const std::shared_ptr<ReplayCore>&, const WaitContext& wait) -> Result<std::uint32_t> {
                     auto stream = state_->open_stream();
                     if (!stream) return std::move(stream).error();
                     return replay::alone(
                         **stream, wait, [&](replay::Writer&) -> Result<std::uint32_t> { return (*stream)->number(); });
                   });
}

// Where another thread is at work in the stream, it ends with that call.
void ReplayWriter::close() {
  if (state_ == nullptr) return;
  state_->closed.store(true, std::memory_order_relaxed);
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard guard(state_->mutex);
    stream = std::move(state_->stream);
  }
  if (stream == nullptr || !stream->belongs_to_this_process()) return replay::let_go(std::move(stream));
  if (!stream->mutex.try_lock()) return;
  const std::lock_guard guard(stream->mutex, std::adopt_lock);
  stream->writer.close();
}
bool ReplayWriter::closed() const noexcept {
  return state_ == nullptr || state_->closed.load(std::memory_order_relaxed);
}

}  // namespace shmtree
