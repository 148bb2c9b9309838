// Makes, opens and loads replay buffers.
#include <algorithm>
#include <bit>
#include <utility>

#include "api/published.h"
#include "api/replay/replay_state.h"
#include "discovery/handle.h"
#include "endpoint/message_transfers.h"
#include "platform/machine.h"
#include "replay/files/loader.h"

namespace shmtree {

using api::Buffer;
using api::ReplayState;
using platform::WaitContext;
using replay::BufferSize;
using replay::Spec;

namespace api {

Result<ReplayBuffer> ReplayState::open_block(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                             std::shared_ptr<endpoint::Name> name) {
  auto buffer = Buffer::open(arena, memory::unpack(block), WaitContext{});
  if (!buffer) return std::move(buffer).error();
  return wrap(std::move(*buffer), std::move(name));
}

Result<ReplayBuffer> ReplayState::open_bytes(std::span<const std::byte> bytes) {
  auto handle = discovery::decode(bytes);
  if (!handle) return std::move(handle).error();
  auto opened = discovery::open_arena(*handle);
  if (!opened) return std::move(opened).error();
  auto name = endpoint::join_name(handle->name, *opened);
  auto buffer = open_block(*opened, handle->block, name);
  if (buffer) endpoint::end_transfer(**opened, handle->block, handle->transfer, name.get());
  return buffer;
}

namespace {

// Memory available to a buffer, and its source for errors. kInvalid for a moved-from arena.
struct Home {
  std::uint64_t bytes = 0;
  const char* source = "the machine has";
  std::shared_ptr<memory::Arena> arena = nullptr;  // Null: the buffer gets its own.

  std::string left() const { return std::string("; ") + source + " " + std::to_string(bytes) + " bytes"; }
};
Result<Home> replay_home_for(const std::optional<Arena>& given) {
  if (!given) return Home{.bytes = platform::available_memory_bytes()};
  if (ArenaState::of(*given) == nullptr) return no_arena();
  const std::shared_ptr<memory::Arena>& arena = ArenaState::of(*given)->arena;
  return Home{arena->pool().max_bytes(), "the arena has", arena};
}

// Returns the capacity in rows; computes it from max_bytes if only that is given.
Result<std::uint64_t> capacity_of(const Spec& spec, const ReplayOptions& options, const Home& home) {
  if (options.max_bytes == 0) return options.capacity;
  if (options.capacity != 0) {
    return Error{Code::kInvalid, "both capacity (" + std::to_string(options.capacity) + " rows) and max_bytes (" +
                                     std::to_string(options.max_bytes) + ") were passed; pass one of them"};
  }
  auto rows = Buffer::capacity_within(spec, options.max_bytes, {0, options.limits.chunk, options.limits.streams});
  if (!rows || options.max_bytes <= home.bytes) return rows;
  return Error{Code::kInvalid, "max_bytes is " + std::to_string(options.max_bytes) + home.left()};
}

// Returns an arena that a full buffer fits into. Its own arena has spare memory for other objects.
Result<std::shared_ptr<memory::Arena>> arena_for(const Spec& spec, const BufferSize& sizes, const Home& home) {
  constexpr std::uint64_t kMinSpare = std::uint64_t{16} << 20;
  const auto needed = Buffer::total_bytes(spec, sizes);
  if (!needed) return needed.error();
  if (*needed > home.bytes) {
    return Error{Code::kInvalid, "a replay buffer of " + std::to_string(sizes.capacity) + " rows takes " +
                                     std::to_string(*needed) + " bytes" + home.left() +
                                     ": use a smaller capacity, or max_bytes"};
  }
  if (home.arena != nullptr) return home.arena;
  return memory::Arena::create({.max_bytes = *needed + std::max(kMinSpare, *needed / 8)});
}

// Applies the options to the spec of a saved buffer.
Status change(Spec& spec, const ReplayLoad& how) {
  if (how.sampling) set_samplers(spec, *how.sampling);
  if (how.gamma) spec.gamma = *how.gamma;
  if (how.limits) {
    spec.limit.reset();
    if (how.limits->rate) spec.limit = limit_of(*how.limits->rate);
    Status accepted = set_on_peer_death(spec, how.limits->on_peer_death);
    if (!accepted) return accepted;
  }
  return replay::check(spec);
}

// Returns the size of a loaded buffer. Its chunks are at most as large as the saved ones.
BufferSize sizes_for(const replay::Loader& loader, const ReplayLoad& how) {
  const std::uint64_t rows = how.capacity == 0 ? loader.capacity() : how.capacity;
  const ReplayLimits limits = how.limits.value_or(ReplayLimits{});
  if (limits.chunk != 0) return {rows, limits.chunk, limits.streams};
  const std::uint64_t streams = std::max<std::uint64_t>(limits.streams, 1);
  const std::uint64_t most = how.capacity == 0 ? rows : std::max<std::uint64_t>(rows / 16 / streams, 1);
  return {rows, std::min(loader.rows_per_chunk(), std::bit_floor(most)), limits.streams};
}

}  // namespace
}  // namespace api

ReplayBuffer make_replay(const ReplayOptions& options) try {
  const Spec spec = api::spec_of(options).value();
  const api::Home home = api::replay_home_for(options.arena).value();
  const BufferSize sizes{api::capacity_of(spec, options, home).value(), options.limits.chunk, options.limits.streams};
  endpoint::ObjectRequest request{.kind = discovery::NamedKind::kReplay,
                                  .name = api::name_in(options.name),
                                  .arena = home.arena,
                                  .exist_ok = options.exist_ok};
  request.make_arena = [&] { return api::arena_for(spec, sizes, home); };
  const auto made = endpoint::make_object<Buffer>(request, WaitContext{}, spec, sizes).value();
  if (options.sampling.seed) made.object->set_seed(*options.sampling.seed);
  return ReplayState::wrap(made.object, made.name);
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

Result<ReplayBuffer> open_replay(const std::string& name, Timeout timeout) {
  return or_out_of_memory([&]() -> Result<ReplayBuffer> {
    auto known = endpoint::open_object<Buffer>(name, discovery::NamedKind::kReplay, timeout);
    if (!known) return std::move(known).error();
    return ReplayState::wrap(std::move(known->object), std::move(known->name));
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

Result<ReplayBuffer> load_replay(const std::string& path, const ReplayLoad& how) try {
  auto loader = replay::Loader::open(path);
  if (!loader) return std::move(loader).error();
  auto spec = loader->spec();
  if (!spec) return std::move(spec).error();
  Status fits = api::change(*spec, how);
  if (!fits) return std::move(fits).error();
  const BufferSize sizes = api::sizes_for(*loader, how);
  if (how.capacity == 0) {
    const auto overhead = Buffer::overhead_bytes(*spec, sizes);
    fits = overhead ? loader->check_overhead(*overhead) : Status(overhead.error());
    if (!fits) return std::move(fits).error();
  }
  auto home = api::replay_home_for(how.arena);
  if (!home) return std::move(home).error();
  auto arena = api::arena_for(*spec, sizes, *home);
  if (!arena) return std::move(arena).error();
  auto buffer = Buffer::create(std::move(*arena), std::move(*spec), sizes, WaitContext{});
  if (!buffer) return std::move(buffer).error();
  if (how.sampling && how.sampling->seed) (*buffer)->set_seed(*how.sampling->seed);
  Status loaded = loader->load_into(*(*buffer)->store(), (*buffer)->tables().get(), WaitContext{},
                                    (*buffer)->spec().samplers, how.progress);
  if (!loaded) return std::move(loaded).error();
  auto held_name = endpoint::register_object(api::name_in(how.name), discovery::NamedKind::kReplay, **buffer);
  if (!held_name) return std::move(held_name).error();
  return ReplayState::wrap(std::move(*buffer), std::move(*held_name));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree
