#include "endpoint/channels.h"

#include <utility>

namespace shmtree::endpoint {

using channel::Channel;
using channel::ChannelOptions;
using discovery::NamedKind;
using memory::Arena;

namespace {

Error about(const std::string& name, Error error) {
  error.message = "the name \"" + name + "\": " + error.message;
  return error;
}

// Checks a request, and returns the options that Channel::create() expects.
Result<ChannelOptions> checked_options(const ChannelRequest& request) {
  const bool is_named = request.name.has_value();
  if (request.exist_ok && !is_named) return Error{Code::kInvalid, "exist_ok requires a name"};
  ChannelOptions options = request.options;
  options.is_named = is_named;
  options.allow_pickle = request.allow_pickle.value_or(!is_named);
  if (request.kind == NamedKind::kQueue) {
    if (options.ending == channel::Ending::kEach) {
      return Error{Code::kInvalid, "on_peer_death is 'each'; it must be 'wait' or 'raise'"};
    }
    options.ending = options.ending == channel::Ending::kWait ? channel::Ending::kNever : channel::Ending::kQueueRaise;
  }
  return options;
}

Result<KnownChannel> make_new(const ChannelRequest& request, const std::shared_ptr<Arena>& arena,
                              const ChannelOptions& options) {
  auto channel = Channel::create(arena, options);
  if (!channel) return std::move(channel).error();
  if (!request.name) return KnownChannel{std::move(*channel), nullptr};
  discovery::NamedThing thing{.kind = request.kind, .arena = arena};
  thing.block = memory::pack((*channel)->block());
  auto known = create_name(*request.name, thing);
  if (!known) return std::move(known).error();
  return KnownChannel{std::move(*channel), std::move(*known)};
}

Status check_is(const KnownChannel& known, const Arena* arena, const ChannelOptions& options) {
  if (arena != nullptr && arena != known.channel->arena().get()) {
    return Error{Code::kInvalid, "it belongs to a channel in another arena than the one given"};
  }
  return known.channel->check_options(options);
}

}  // namespace

Result<KnownChannel> open_channel(const std::string& name, NamedKind kind,
                                  std::optional<std::chrono::nanoseconds> timeout) {
  auto known = open_name(name, timeout);
  if (!known) return std::move(known).error();
  const discovery::NamedThing& thing = (*known)->thing();
  if (thing.kind != kind) {
    const char* const wanted = kind == NamedKind::kQueue ? "queue" : "pair's channel";
    return Error{Code::kInvalid, "the name " + name + " belongs to an object that is not a " + wanted};
  }
  auto channel = Channel::open(thing.arena, memory::unpack(thing.block), platform::WaitContext{});
  if (!channel) return std::move(channel).error();
  return KnownChannel{std::move(*channel), std::move(*known)};
}

Result<KnownChannel> make_channel(const ChannelRequest& request) {
  auto options = checked_options(request);
  if (!options) return std::move(options).error();
  const auto open = [&]() -> Result<KnownChannel> {
    auto known = open_channel(*request.name, request.kind);
    if (!known) return known;
    Status same = check_is(*known, request.arena.get(), *options);
    if (!same) return about(*request.name, std::move(same).error());
    return known;
  };
  std::shared_ptr<Arena> arena = request.arena;
  const auto make = [&]() -> Result<KnownChannel> {
    if (arena == nullptr) {
      auto made = Arena::create({});
      if (!made) return std::move(made).error();
      arena = std::move(*made);
    }
    return make_new(request, arena, *options);
  };
  return open_or_make(request.exist_ok, open, make);
}

}  // namespace shmtree::endpoint
