// Replay buffers, as users have them.
#include "shmtree/replay.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "api/replay_state.h"
#include "discovery/handle.h"
#include "platform/machine.h"
#include "replay/limit.h"
#include "replay/loader.h"
#include "replay/saver.h"

namespace shmtree {

using api::Buffer;
using api::ReplayCore;
using api::ReplayState;
using api::with_core;
using platform::WaitContext;
using replay::Room;
using replay::Spec;
using CorePtr = std::shared_ptr<ReplayCore>;

namespace api {

Result<ReplayBuffer> ReplayState::open_block(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                             std::shared_ptr<endpoint::Name> name) {
  auto spec = Buffer::spec_at(arena, memory::unpack(block), WaitContext{});
  if (!spec) return std::move(spec).error();
  auto buffer = Buffer::open(arena, memory::unpack(block), std::move(*spec), WaitContext{});
  if (!buffer) return std::move(buffer).error();
  return wrap(std::move(*buffer), std::move(name));
}

Result<ReplayBuffer> ReplayState::open_bytes(std::span<const std::byte> bytes) {
  auto handle = discovery::decode(bytes);
  if (!handle) return std::move(handle).error();
  auto opened = discovery::open_arena(*handle);
  if (!opened) return std::move(opened).error();
  return open_block(*opened, handle->block, endpoint::join_name(handle->name, *opened));
}

void ReplayState::close() {
  closed.store(true, std::memory_order_relaxed);
  std::shared_ptr<ReplayCore> last;  // let go of outside the mutex
  std::shared_ptr<endpoint::Name> last_name;
  std::vector<std::weak_ptr<ReplayWriterState>> made;
  std::map<std::uint64_t, std::shared_ptr<ReplayWriterState>> of_threads;
  {
    const std::lock_guard guard(mutex);
    last = std::move(core);
    last_name = std::move(name);
    made = std::move(writers);
    of_threads = std::move(by_thread);
  }
  if (last != nullptr) {
    last->buffer->drawing().end();
    last->buffer->tables()->wake_all();
  }
  for (const auto& each : made) {
    if (const auto writer = each.lock()) writer->close();
  }
  for (const auto& [thread, writer] : of_threads) writer->close();
}

namespace {

// Bytes that a buffer may have there, and whose they are; kInvalid for an arena that was moved from.
struct Home {
  std::uint64_t bytes = 0;
  const char* whose = "the machine has";
  std::shared_ptr<memory::Arena> arena = nullptr;  // none: one of its own

  std::string left() const { return std::string(", and ") + whose + " " + std::to_string(bytes); }
};
Result<Home> home_of(const std::optional<Arena>& given) {
  if (!given) return Home{.bytes = platform::available_memory_bytes()};
  if (ArenaState::of(*given) == nullptr) return no_arena();
  const std::shared_ptr<memory::Arena>& arena = ArenaState::of(*given)->arena;
  return Home{arena->pool().max_bytes(), "the arena has", arena};
}

// Rows, where there is only a number of bytes.
Result<std::uint64_t> capacity_of(const Spec& spec, const ReplayOptions& options, const Home& home) {
  if (options.max_bytes == 0) return options.capacity;
  if (options.capacity != 0) {
    return Error{Code::kInvalid, "a capacity of " + std::to_string(options.capacity) + " rows and max_bytes of " +
                                     std::to_string(options.max_bytes) + "; it must be one of them"};
  }
  auto rows = Buffer::capacity_within(spec, options.max_bytes, {0, options.chunk, options.streams});
  if (!rows || options.max_bytes <= home.bytes) return rows;
  return Error{Code::kInvalid, "max_bytes is " + std::to_string(options.max_bytes) + home.left()};
}

// The arena, which a full buffer fits in: one of its own has room for what else lies in it.
Result<std::shared_ptr<memory::Arena>> arena_for(const Spec& spec, const Room& room, const Home& home) {
  constexpr std::uint64_t kLeastSpare = std::uint64_t{16} << 20;
  const auto needed = Buffer::total_bytes(spec, room);
  if (!needed) return needed.error();
  if (*needed > home.bytes) {
    return Error{Code::kInvalid, "a replay buffer of " + std::to_string(room.capacity) + " rows takes " +
                                     std::to_string(*needed) + " bytes" + home.left()};
  }
  if (home.arena != nullptr) return home.arena;
  return memory::Arena::create({.max_bytes = *needed + std::max(kLeastSpare, *needed / 8)});
}

std::shared_ptr<endpoint::Name> name_for(const std::string& name, const Buffer& buffer) {
  if (name.empty()) return nullptr;
  discovery::NamedThing thing{.kind = discovery::NamedKind::kReplay, .arena = buffer.store()->arena()};
  thing.block = memory::pack(buffer.store()->block());
  return endpoint::create_name(name, thing).value();
}

Result<std::size_t> table_named(const Spec& spec, const std::string& name) {
  if (name.empty()) return 0;
  const auto found = std::ranges::find(spec.samplers, name, [](const auto& each) { return each.first; });
  if (found != spec.samplers.end()) return static_cast<std::size_t>(found - spec.samplers.begin());
  std::string others;
  for (const auto& [other, table] : spec.samplers) others += (others.empty() ? "\"" : ", \"") + other + "\"";
  return Error{Code::kInvalid, "the sampler is \"" + name + "\"; the buffer has " + others};
}

// Memory of the caller's that the leaves of n rows go to; none for none.
Result<std::vector<std::byte*>> places_for(const ReplayCore& core, std::size_t n, const ReplayDraw& how) {
  std::vector<std::byte*> places;
  if (how.out.empty()) return places;
  for (std::size_t i = 0; i < core.paths.outputs.size(); ++i) {
    const std::string& path = core.paths.outputs[i];
    const auto found = how.out.find(path);
    if (found == how.out.end()) return Error{Code::kInvalid, "out has no place for \"" + path + "\""};
    const std::uint64_t bytes = core.buffer->gather().bytes(i);
    if (found->second.size() / bytes != n || found->second.size() % bytes != 0) {
      return Error{Code::kInvalid, "the place for \"" + path + "\" has " + std::to_string(found->second.size()) +
                                       " bytes; the batch needs " + std::to_string(n) + " x " + std::to_string(bytes)};
    }
    places.push_back(found->second.data());
  }
  if (how.out.size() == places.size()) return places;
  return Error{Code::kInvalid, "out has " + std::to_string(how.out.size()) + " places; the batch has " +
                                   std::to_string(places.size()) + " leaves"};
}

Result<ReplayBatch> draw(const CorePtr& core, const replay::DrawTerms& terms, std::span<std::byte* const> places,
                         const WaitContext& wait) {
  if (terms.rows == 0) return Error{Code::kInvalid, "a batch of 0 rows; it must be at least 1"};
  auto state = std::make_shared<ReplayBatchState>(core, terms, places.empty());
  Status drawn = state->batch.draw(places, wait);
  if (!drawn) return std::move(drawn).error();
  state->describe();
  return ReplayState::wrap(std::shared_ptr<const ReplayBatchState>(std::move(state)));
}

Result<std::vector<bool>> update(const CorePtr& core, std::span<const std::int64_t> index,
                                 std::span<const double> priority, const std::string& sampler) {
  if (index.size() != priority.size()) {
    return Error{Code::kInvalid, std::to_string(index.size()) + " indices, and " + std::to_string(priority.size()) +
                                     " priorities; they must be of one length"};
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

constexpr const char* kWhat = "ReplayBuffer";

}  // namespace
}  // namespace api

// --- Made and opened

ReplayBuffer make_replay(const ReplayOptions& options) try {
  Spec spec = api::spec_of(options).value();
  const api::Home home = api::home_of(options.arena).value();
  const Room room{api::capacity_of(spec, options, home).value(), options.chunk, options.streams};
  auto arena = api::arena_for(spec, room, home).value();
  auto buffer = Buffer::create(std::move(arena), std::move(spec), room, WaitContext{}).value();
  if (options.seed) buffer->set_seed(*options.seed);
  auto name = api::name_for(options.name, *buffer);
  return ReplayState::wrap(std::move(buffer), std::move(name));
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

Result<ReplayBuffer> open_replay(const std::string& name) {
  return or_out_of_memory([&]() -> Result<ReplayBuffer> {
    auto known = endpoint::open_name(name);
    if (!known) return std::move(known).error();
    const discovery::NamedThing& thing = (*known)->thing();
    if (thing.kind != discovery::NamedKind::kReplay) {
      return Error{Code::kInvalid, "the name " + name + " is in use for something that is no replay buffer"};
    }
    return ReplayState::open_block(thing.arena, thing.block, *known);
  });
}

Result<ReplayBuffer> ReplayBuffer::open(const std::string& handle) {
  return or_out_of_memory([&]() -> Result<ReplayBuffer> {
    auto bytes = api::handle_bytes(handle);
    if (!bytes) return std::move(bytes).error();
    return ReplayState::open_bytes(*bytes);
  });
}

Result<ReplayBuffer> ItemAs<ReplayBuffer>::make(const Item& item) {
  return or_out_of_memory([&]() -> Result<ReplayBuffer> {
    const bool is_one = item.kind() == Kind::kRegistered && item.class_name() == "shmtree:ReplayBuffer";
    if (!is_one) return item.mismatch("a ReplayBuffer");
    const Item parts = item.at(0);
    if (parts.kind() != Kind::kTuple || parts.size() != 1) return item.mismatch("a handle");
    auto handle = parts.at(0).try_as<std::span<const std::byte>>();
    if (!handle) return std::move(handle).error();
    return ReplayState::open_bytes(*handle);
  });
}

Result<std::string> ReplayBuffer::handle() const {
  return with_core(state_.get(), api::kWhat, {}, {},
                   [&](const CorePtr& core, const WaitContext&) -> Result<std::string> {
                     discovery::Handle handle = discovery::handle_of(*core->buffer->store()->arena());
                     handle.block = memory::pack(core->buffer->store()->block());
                     {
                       const std::lock_guard guard(state_->mutex);
                       if (state_->name != nullptr) handle.name = state_->name->path();
                     }
                     return api::handle_text(handle);
                   });
}

// --- Drawn

Result<ReplayBatch> ReplayBuffer::sample(std::size_t n, Timeout timeout, const ReplayDraw& how,
                                         const std::stop_token& stop) const {
  return with_core(state_.get(), api::kWhat, timeout, stop,
                   [&](const CorePtr& core, const WaitContext& wait) -> Result<ReplayBatch> {
                     auto table = api::table_named(core->buffer->spec(), how.sampler);
                     if (!table) return std::move(table).error();
                     auto places = api::places_for(*core, n, how);
                     if (!places) return std::move(places).error();
                     replay::DrawTerms terms{.rows = n, .table = *table, .distinct = !how.replace};
                     terms.threads = std::max(how.threads, 1u);
                     terms.beta = how.beta.value_or(core->buffer->spec().samplers[*table].second.beta);
                     terms.of_buffer = how.weights_of_buffer;
                     return api::draw(core, terms, *places, wait);
                   });
}

Result<ReplayBatch> ReplayBuffer::sample_sequences(std::size_t n, std::size_t length, Timeout timeout,
                                                   const ReplaySequences& how, const std::stop_token& stop) const {
  return with_core(state_.get(), api::kWhat, timeout, stop,
                   [&](const CorePtr& core, const WaitContext& wait) -> Result<ReplayBatch> {
                     if (length == 0) return Error{Code::kInvalid, "sequences of 0 rows; it must be at least 1"};
                     replay::DrawTerms terms{.rows = n};
                     terms.threads = std::max(how.threads, 1u);
                     terms.length = length;
                     terms.stride = how.stride;
                     terms.may_be_partial = how.pad;
                     return api::draw(core, terms, {}, wait);
                   });
}

Result<std::vector<bool>> ReplayBuffer::update_priorities(std::span<const std::int64_t> index,
                                                          std::span<const double> priority,
                                                          const std::string& sampler) const {
  return with_core(state_.get(), api::kWhat, {}, {}, [&](const CorePtr& core, const WaitContext&) {
    return api::update(core, index, priority, sampler);
  });
}
Result<std::vector<bool>> ReplayBuffer::update_priorities(std::span<const std::int64_t> index,
                                                          std::span<const float> priority,
                                                          const std::string& sampler) const {
  return with_core(state_.get(), api::kWhat, {}, {}, [&](const CorePtr& core, const WaitContext&) {
    return api::update(core, index, std::vector<double>(priority.begin(), priority.end()), sampler);
  });
}

// --- What is known of it

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
  return with_core(state_.get(), api::kWhat, {}, {},
                   [](const CorePtr& core, const WaitContext&) -> Result<ReplayStats> {
                     const Buffer& buffer = *core->buffer;
                     ReplayStats stats{.rows = buffer.store()->size(), .capacity = buffer.store()->shape().capacity};
                     stats.row_bytes = buffer.row_bytes();
                     if (const replay::Limit* const limit = buffer.tables()->limit()) {
                       stats.inserted = limit->inserts();
                       stats.sampled = limit->samples();
                     }
                     for (std::size_t i = 0; i < buffer.tables()->size(); ++i) {
                       stats.samples[buffer.spec().samplers[i].first] = (*buffer.tables())[i].samples();
                     }
                     return stats;
                   });
}

Status ReplayBuffer::clear(Timeout timeout, const std::stop_token& stop) const {
  return with_core(state_.get(), api::kWhat, timeout, stop,
                   [](const CorePtr& core, const WaitContext& wait) { return core->buffer->tables()->clear(wait); });
}

void ReplayBuffer::close() {
  if (state_ != nullptr) state_->close();
}
bool ReplayBuffer::closed() const noexcept {
  return state_ == nullptr || state_->closed.load(std::memory_order_relaxed);
}

// --- Files

Result<ReplaySaved> ReplayBuffer::save(const std::string& path, const std::stop_token& stop) const {
  return with_core(state_.get(), api::kWhat, {}, stop,
                   [&](const CorePtr& core, const WaitContext& wait) -> Result<ReplaySaved> {
                     auto report = replay::save(*core->buffer->store(), core->buffer->tables().get(), path, wait);
                     if (!report) return std::move(report).error();
                     return ReplaySaved{report->save, report->rows, report->written, report->bytes};
                   });
}

Result<ReplayBuffer> load_replay(const std::string& path, std::uint64_t capacity, const std::string& name) {
  try {
    auto loader = replay::Loader::open(path);
    if (!loader) return std::move(loader).error();
    auto spec = replay::unpack(loader->note());
    if (!spec) return std::move(spec).error();
    const std::uint64_t rows = capacity == 0 ? loader->capacity() : capacity;
    const std::uint64_t most = rows == loader->capacity() ? rows : std::max<std::uint64_t>(rows / 16, 1);
    const Room room{rows, std::min(loader->rows_per_place(), std::bit_floor(most)), 1};
    auto arena = api::arena_for(*spec, room, api::home_of(std::nullopt).value());
    if (!arena) return std::move(arena).error();
    auto buffer = Buffer::create(std::move(*arena), std::move(*spec), room, WaitContext{});
    if (!buffer) return std::move(buffer).error();
    Status loaded = loader->load_into(*(*buffer)->store(), (*buffer)->tables().get(), WaitContext{});
    if (!loaded) return std::move(loaded).error();
    auto known = api::name_for(name, **buffer);
    return ReplayState::wrap(std::move(*buffer), std::move(known));
  } catch (const BadResult& refused) {  // the name
    return refused.error();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

}  // namespace shmtree
