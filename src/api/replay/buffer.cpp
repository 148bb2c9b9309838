// Implements ReplayBuffer: sampling, priorities and statistics.
#include <algorithm>
#include <utility>

#include "api/replay/replay_state.h"
#include "replay/files/saver.h"
#include "replay/rate_limiter/rate_limiter.h"
#include "replay/rows/members.h"
#include "shmtree/replay.h"

namespace shmtree {

using api::Buffer;
using api::ReplayCore;
using api::ReplayState;
using api::with_core;
using platform::WaitContext;
using replay::Spec;
using CorePtr = std::shared_ptr<ReplayCore>;

namespace api {

void ReplayState::close() {
  closed.store(true, std::memory_order_relaxed);
  std::shared_ptr<ReplayCore> last;  // Released outside the mutex.
  std::shared_ptr<endpoint::Name> last_name;
  std::vector<std::weak_ptr<ReplayWriterState>> open_writers;
  std::map<std::uint64_t, std::shared_ptr<ReplayWriterState>> of_threads;
  {
    const std::lock_guard guard(mutex);
    last = std::move(core);
    last_name = std::move(name);
    open_writers = std::move(writers);
    of_threads = std::move(by_thread);
  }
  if (last != nullptr) {
    last->buffer->sampling().end();
    last->buffer->tables()->wake_all();
  }
  for (const auto& each : open_writers) {
    if (const auto writer = each.lock()) writer->close();
  }
  for (const auto& [thread, writer] : of_threads) writer->close();
}

namespace {

Result<std::size_t> table_named(const Spec& spec, const std::string& name) {
  if (name.empty()) return 0;
  const auto found = std::ranges::find(spec.samplers, name, [](const auto& each) { return each.first; });
  if (found != spec.samplers.end()) return static_cast<std::size_t>(found - spec.samplers.begin());
  std::string others;
  for (const auto& [other, table] : spec.samplers) others += (others.empty() ? "\"" : ", \"") + other + "\"";
  return Error{Code::kInvalid, "no sampler named \"" + name + "\"; the buffer has " + others};
}

// Returns the terms that ReplayDraw and ReplaySequences have in common.
template <class How>
Result<replay::SampleTerms> terms_of(const ReplayCore& core, std::size_t n, const How& how) {
  auto table = table_named(core.buffer->spec(), how.sampler);
  if (!table) return std::move(table).error();
  replay::SampleTerms terms{.rows = n, .table = *table, .distinct = !how.replace};
  terms.threads = std::max(how.threads, 1u);
  terms.beta = how.beta.value_or(core.buffer->spec().samplers[*table].second.beta);
  terms.of_buffer = how.weights_of_buffer;
  return terms;
}

// Returns the addresses in the caller's memory for the leaves of n rows; empty if `out` is empty.
using Out = std::map<std::string, std::span<std::byte>>;
Result<std::vector<std::byte*>> destinations_for(const ReplayCore& core, std::size_t n, const Out& out) {
  std::vector<std::byte*> destinations;
  if (out.empty()) return destinations;
  for (std::size_t i = 0; i < core.paths.outputs.size(); ++i) {
    const std::string& path = core.paths.outputs[i];
    const auto found = out.find(path);
    if (found == out.end()) return Error{Code::kInvalid, "out has no memory for \"" + path + "\""};
    const std::uint64_t bytes = core.buffer->gather().bytes(i);
    if (found->second.size() / bytes != n || found->second.size() % bytes != 0) {
      return Error{Code::kInvalid, "the memory in out for \"" + path + "\" has " +
                                       std::to_string(found->second.size()) + " bytes; the batch needs " +
                                       std::to_string(n) + " x " + std::to_string(bytes)};
    }
    destinations.push_back(found->second.data());
  }
  if (out.size() == destinations.size()) return destinations;
  return Error{Code::kInvalid, "out has " + std::to_string(out.size()) + " entries; the batch has " +
                                   std::to_string(destinations.size()) + " leaves"};
}

// Allocates arrays in the arena for the data.
Result<std::vector<NewArray>> arrays_for(const ReplayCore& core, const replay::SampleTerms& terms,
                                         const WaitContext& wait) {
  const replay::Spec& spec = core.buffer->spec();
  std::vector<NewArray> arrays;
  for (std::size_t i = 0; i < spec.data_outputs(); ++i) {
    const replay::SpecLeaf leaf = spec.output(i);
    const DType dtype = replay::dtype_of(leaf.dtype);
    if (dtype == DType::kOther) return other_dtype(core.paths.outputs[i], leaf.dtype);
    auto array = core.arena->new_array(dtype, shape_of_output(spec, i, terms), wait);
    if (!array) return std::move(array).error();
    arrays.push_back(std::move(*array));
  }
  return arrays;
}

struct Destination {
  const Out& out;
  bool in_arena = false;
  const ReplayHindsight* hindsight = nullptr;
};

Result<ReplayBatch> sample(const CorePtr& core, const replay::SampleTerms& terms, const Destination& to,
                           const WaitContext& wait) {
  if (terms.rows == 0) return Error{Code::kInvalid, "n is 0 rows; a batch has at least 1 row"};
  if (to.in_arena && !to.out.empty())
    return Error{Code::kInvalid, "both out and in_arena were passed; pass one of them"};
  if (terms.rows > replay::Batch::kMaxRows || terms.length > replay::Batch::kMaxRows) return out_of_memory();
  auto destinations = destinations_for(*core, terms.all_rows(), to.out);
  if (!destinations) return std::move(destinations).error();
  auto state = std::make_shared<ReplayBatchState>(core, terms, destinations->empty() && !to.in_arena);
  if (to.in_arena) {
    auto arrays = arrays_for(*core, terms, wait);
    if (!arrays) return std::move(arrays).error();
    state->arrays = std::move(*arrays);
    for (const NewArray& each : state->arrays) destinations->push_back(static_cast<std::byte*>(each.mutable_data()));
  }
  Status sampled = state->batch.sample(*destinations, wait);
  if (!sampled) return std::move(sampled).error();
  if (to.hindsight != nullptr) set_rewards(*state, *to.hindsight);
  state->describe();
  return ReplayState::wrap(std::shared_ptr<const ReplayBatchState>(std::move(state)));
}

Result<std::vector<bool>> update(const CorePtr& core, std::span<const std::int64_t> index,
                                 std::span<const double> priority, const std::string& sampler) {
  if (index.size() != priority.size()) {
    return Error{Code::kInvalid, std::to_string(index.size()) + " indices and " + std::to_string(priority.size()) +
                                     " priorities; there must be as many of both"};
  }
  std::size_t table = replay::Tables::kAll;
  if (!sampler.empty()) {
    auto named = table_named(core->buffer->spec(), sampler);
    if (!named) return std::move(named).error();
    table = *named;
  }
  const auto applied = std::make_unique<bool[]>(index.size());
  const std::span mask(applied.get(), index.size());
  Status updated =
      core->buffer->update(table, {reinterpret_cast<const std::uint64_t*>(index.data()), index.size()}, priority, mask);
  if (!updated) return std::move(updated).error();
  return std::vector<bool>(mask.begin(), mask.end());
}

// Returns the statistics, except those since the last call.
ReplayStats stats_of(Buffer& buffer) {
  const replay::Shape& shape = buffer.store()->shape();
  ReplayStats stats{.rows = buffer.store()->size(), .capacity = shape.capacity, .chunk = shape.rows_per_chunk};
  stats.row_bytes = buffer.row_bytes();
  stats.max_bytes = shape.max_extents * shape.extent_bytes;
  stats.added = buffer.added();
  if (const replay::RateLimiter* const limit = buffer.tables()->limiter()) {
    stats.inserted = limit->inserts();
    stats.sampled = limit->samples();
  }
  for (std::size_t i = 0; i < buffer.tables()->size(); ++i) {
    stats.samples[buffer.spec().samplers[i].first] = (*buffer.tables())[i].samples();
  }
  const replay::SampleStatistics::Totals sampled = buffer.statistics().take();
  const auto rows = static_cast<double>(std::max<std::uint64_t>(sampled.rows, 1));
  stats.drawn = sampled.rows;
  stats.age_mean = sampled.ages / rows;
  stats.age_max = sampled.max_age;
  stats.version_lag_mean = sampled.lags / rows;
  stats.version_lag_max = sampled.max_lag;
  replay::Waiters waiters = replay::waiters_of(*buffer.store());
  stats.waiting_to_add = std::move(waiters.adding);
  stats.waiting_to_sample = std::move(waiters.sampling);
  return stats;
}

std::uint64_t all_samples(const ReplayStats& stats) {
  std::uint64_t all = 0;
  for (const auto& [sampler, rows] : stats.samples) all += rows;
  return all;
}

}  // namespace
}  // namespace api

// --- Sampling

Result<ReplayBatch> ReplayBuffer::sample(std::size_t n, Timeout timeout, const ReplayDraw& how,
                                         const std::stop_token& stop) const {
  return with_core(state_.get(), api::kReplayBuffer, timeout, stop,
                   [&](const CorePtr& core, const WaitContext& wait) -> Result<ReplayBatch> {
                     auto terms = api::terms_of(*core, n, how);
                     if (!terms) return std::move(terms).error();
                     if (!how.hindsight) return api::sample(core, *terms, {how.out, how.in_arena}, wait);
                     auto hindsight = api::hindsight_of(core->buffer->spec(), *how.hindsight);
                     if (!hindsight) return std::move(hindsight).error();
                     terms->hindsight = *hindsight;
                     return api::sample(core, *terms, {how.out, how.in_arena, &*how.hindsight}, wait);
                   });
}

Result<ReplayBatch> ReplayBuffer::sample_sequences(std::size_t n, std::size_t length, Timeout timeout,
                                                   const ReplaySequences& how, const std::stop_token& stop) const {
  return with_core(state_.get(), api::kReplayBuffer, timeout, stop,
                   [&](const CorePtr& core, const WaitContext& wait) -> Result<ReplayBatch> {
                     if (length == 0) return Error{Code::kInvalid, "length is 0 rows; a sequence has at least 1 row"};
                     if (how.episodes && (how.stride != 1 || !how.sampler.empty() || how.burn_in != 0)) {
                       return Error{Code::kInvalid, "episodes needs stride 1, no sampler and no burn_in"};
                     }
                     auto terms = api::terms_of(*core, n, how);
                     if (!terms) return std::move(terms).error();
                     if (std::max<std::uint64_t>(length, how.burn_in) > replay::Batch::kMaxRows) return out_of_memory();
                     terms->length = how.burn_in + length;
                     terms->stride = how.stride;
                     terms->partial = how.pad ? replay::Partial::kPad : replay::Partial::kRefuse;
                     if (how.episodes) terms->partial = replay::Partial::kWhole;
                     terms->burn_in = how.burn_in;
                     terms->any_first = how.sampler.empty();
                     return api::sample(core, *terms, {how.out, how.in_arena}, wait);
                   });
}

Result<std::vector<bool>> ReplayBuffer::update_priorities(std::span<const std::int64_t> index,
                                                          std::span<const double> priority,
                                                          const std::string& sampler) const {
  return with_core(state_.get(), api::kReplayBuffer, {}, {}, [&](const CorePtr& core, const WaitContext&) {
    return api::update(core, index, priority, sampler);
  });
}
Result<std::vector<bool>> ReplayBuffer::update_priorities(std::span<const std::int64_t> index,
                                                          std::span<const float> priority,
                                                          const std::string& sampler) const {
  return with_core(state_.get(), api::kReplayBuffer, {}, {}, [&](const CorePtr& core, const WaitContext&) {
    return api::update(core, index, std::vector<double>(priority.begin(), priority.end()), sampler);
  });
}

// --- Statistics

Result<std::string> ReplayBuffer::handle() const {
  return with_core(state_.get(), api::kReplayBuffer, {}, {},
                   [&](const CorePtr& core, const WaitContext&) -> Result<std::string> {
                     std::shared_ptr<endpoint::Name> name;
                     {
                       const std::lock_guard guard(state_->mutex);
                       name = state_->name;
                     }
                     const std::uint64_t block = memory::pack(core->buffer->block());
                     return api::give_handle(core->buffer->arena(), block, name.get());
                   });
}

double ReplayBuffer::max_priority() const noexcept {
  const CorePtr core = state_ == nullptr ? nullptr : state_->open_core();
  return core == nullptr ? 0 : core->buffer->tables()->max_priority(core->buffer->priority_table());
}
std::uint64_t ReplayBuffer::size() const noexcept {
  const CorePtr core = state_ == nullptr ? nullptr : state_->open_core();
  return core == nullptr ? 0 : core->buffer->store()->size();
}
std::uint64_t ReplayBuffer::capacity() const noexcept {
  const CorePtr core = state_ == nullptr ? nullptr : state_->open_core();
  return core == nullptr ? 0 : core->buffer->store()->shape().capacity;
}
std::vector<ReplayColumn> ReplayBuffer::columns() const {
  const CorePtr core = state_ == nullptr ? nullptr : state_->open_core();
  return core == nullptr ? std::vector<ReplayColumn>() : api::columns_of(core->buffer->spec(), core->paths);
}

Result<ReplayStats> ReplayBuffer::stats() const {
  return with_core(state_.get(), api::kReplayBuffer, {}, {},
                   [&](const CorePtr& core, const WaitContext&) -> Result<ReplayStats> {
                     ReplayStats stats = api::stats_of(*core->buffer);
                     const api::ReplayCounts now{platform::monotonic_ns(), stats.added, api::all_samples(stats)};
                     stats.samples_per_insert =
                         stats.added == 0 ? 0 : static_cast<double>(now.sampled) / static_cast<double>(stats.added);
                     api::ReplayCounts before = now;
                     {
                       const std::lock_guard guard(state_->mutex);
                       if (state_->counts.at_ns != 0) before = state_->counts;
                       state_->counts = now;
                     }
                     if (const double seconds = 1e-9 * static_cast<double>(now.at_ns - before.at_ns); seconds > 0) {
                       stats.added_per_s = static_cast<double>(now.added - before.added) / seconds;
                       stats.sampled_per_s = static_cast<double>(now.sampled - before.sampled) / seconds;
                     }
                     return stats;
                   });
}

Result<Arena> ReplayBuffer::arena() const {
  return with_core(state_.get(), api::kReplayBuffer, {}, {},
                   [](const CorePtr& core, const WaitContext&) -> Result<Arena> {
                     return api::ArenaState::wrap(core->buffer->arena());
                   });
}

Status ReplayBuffer::clear(Timeout timeout, const std::stop_token& stop) const {
  return with_core(state_.get(), api::kReplayBuffer, timeout, stop,
                   [](const CorePtr& core, const WaitContext& wait) { return core->buffer->tables()->clear(wait); });
}

void ReplayBuffer::close() {
  if (state_ != nullptr) state_->close();
}
bool ReplayBuffer::closed() const noexcept {
  return state_ == nullptr || state_->closed.load(std::memory_order_relaxed);
}

// --- Files

Result<ReplaySaved> ReplayBuffer::save(const std::string& path, const ReplaySave& how,
                                       const std::stop_token& stop) const {
  return with_core(state_.get(), api::kReplayBuffer, {}, stop,
                   [&](const CorePtr& core, const WaitContext& wait) -> Result<ReplaySaved> {
                     auto report =
                         replay::save(*core->buffer->store(), core->buffer->tables().get(), path, wait, how.progress);
                     if (!report) return std::move(report).error();
                     return ReplaySaved{report->save, report->rows, report->written, report->bytes};
                   });
}

}  // namespace shmtree
