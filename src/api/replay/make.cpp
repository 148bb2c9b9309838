// Makes, opens and loads replay buffers.
#include <utility>

#include "api/published.h"
#include "api/replay/replay_state.h"
#include "discovery/handle.h"
#include "endpoint/message_transfers.h"
#include "replay/buffer/home.h"
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

// Returns the arena for a buffer, null for none. kInvalid for a moved-from arena.
Result<std::shared_ptr<memory::Arena>> arena_of(const std::optional<Arena>& given) {
  if (!given) return std::shared_ptr<memory::Arena>();
  if (ArenaState::of(*given) == nullptr) return no_arena();
  return ArenaState::of(*given)->arena;
}

BufferSize sizes_of(const ReplayOptions& options) {
  if (options.max_bytes != 0 && options.capacity != 0) {
    throw BadResult(Error{Code::kInvalid, "both capacity (" + std::to_string(options.capacity) +
                                              " rows) and max_bytes (" + std::to_string(options.max_bytes) +
                                              ") were passed; pass one of them"});
  }
  return {options.capacity, options.limits.chunk, options.limits.streams};
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

}  // namespace
}  // namespace api

ReplayBuffer make_replay(const ReplayOptions& options) try {
  const Spec spec = api::spec_of(options).value();
  const auto arena = api::arena_of(options.arena).value();
  const replay::Home home(arena);
  const BufferSize sizes = home.within(spec, api::sizes_of(options), options.max_bytes).value();
  endpoint::ObjectRequest request{.kind = discovery::NamedKind::kReplay,
                                  .name = api::name_in(options.name),
                                  .arena = arena,
                                  .exist_ok = options.exist_ok};
  request.make_arena = [&] { return home.arena_for(spec, sizes); };
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
  auto arena = api::arena_of(how.arena);
  if (!arena) return std::move(arena).error();
  const ReplayLimits limits = how.limits.value_or(ReplayLimits{});
  auto buffer = loader->make_buffer(std::move(*spec), {how.capacity, limits.chunk, limits.streams}, std::move(*arena),
                                    WaitContext{});
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
