// Implements ReplayWriter.
#include <algorithm>
#include <utility>

#include "api/replay/replay_state.h"
#include "platform/errors.h"

namespace shmtree {

using api::ReplayCore;
using api::ReplayRows;
using api::ReplayWriterState;
using api::with_core;
using platform::WaitContext;
using replay::Stream;

namespace api {

// Two threads may both make the first stream. One of these is kept; the other was never written to.
Result<std::shared_ptr<Stream>> ReplayWriterState::open_stream() {
  std::shared_ptr<Stream> before;
  {
    const std::lock_guard guard(mutex);
    before = stream;
  }
  std::shared_ptr<Stream> mine = before;
  auto opened = replay::stream_of(*core->buffer, mine);
  if (!opened || mine == before) return opened;
  const std::lock_guard guard(mutex);
  if (stream != before) return stream;
  std::swap(stream, before);  // Released outside the mutex.
  stream = mine;
  return mine;
}

// If another thread is in a call of the stream, the stream ends after that call.
void ReplayWriterState::close() {
  closed.store(true, std::memory_order_relaxed);
  core->buffer->tables()->wake_all();
  std::shared_ptr<Stream> last;
  {
    const std::lock_guard guard(mutex);
    last = std::move(stream);
  }
  if (last == nullptr || !last->belongs_to_this_process()) return replay::release_stream(std::move(last));
  if (!last->mutex.try_lock()) return;
  const std::lock_guard guard(last->mutex, std::adopt_lock);
  last->writer.close();
}

namespace {

constexpr const char* kReplayWriter = "ReplayWriter";

}  // namespace
}  // namespace api

Status ReplayWriter::end(const Value& final, bool truncated, Timeout timeout, const std::stop_token& stop) const {
  return with_core(state_.get(), api::kReplayWriter, timeout, stop,
                   [&](const std::shared_ptr<ReplayCore>& core, const WaitContext& wait) -> Status {
                     const replay::Spec& spec = core->buffer->spec();
                     ReplayRows read;
                     if (!std::holds_alternative<std::monostate>(final.variant())) {
                       Status fits = read.read(spec, core->paths.final, "final", final, api::RowForm::kOne);
                       if (!fits) return fits;
                     }
                     auto stream = state_->open_stream();
                     if (!stream) return std::move(stream).error();
                     return replay::alone(**stream, wait, [&](replay::Writer& writer) {
                       return writer.end(read.columns(), truncated, wait);
                     });
                   });
}

void ReplayWriter::set_version(std::int64_t version) noexcept {
  if (state_ == nullptr) return;
  state_->version.store(version, std::memory_order_relaxed);
  state_->core->buffer->statistics().meet(version);
}

Result<std::uint32_t> ReplayWriter::stream() const {
  return with_core(state_.get(), api::kReplayWriter, {}, {},
                   [&](const std::shared_ptr<ReplayCore>&, const WaitContext& wait) -> Result<std::uint32_t> {
                     auto stream = state_->open_stream();
                     if (!stream) return std::move(stream).error();
                     return replay::alone(
                         **stream, wait, [&](replay::Writer&) -> Result<std::uint32_t> { return (*stream)->number(); });
                   });
}

void ReplayWriter::close() {
  if (state_ != nullptr) state_->close();
}
bool ReplayWriter::closed() const noexcept {
  return state_ == nullptr || state_->closed.load(std::memory_order_relaxed);
}

}  // namespace shmtree
