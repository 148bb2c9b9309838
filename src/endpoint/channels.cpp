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

Result<KnownChannel> make_new(const std::string& name, NamedKind kind, const std::shared_ptr<Arena>& arena,
                              ChannelOptions options) {
  options.is_named = true;
  auto channel = Channel::create(arena, options);
  if (!channel) return std::move(channel).error();
  discovery::NamedThing thing{.kind = kind, .arena = arena};
  thing.block = memory::pack((*channel)->block());
  auto known = create_name(name, thing);
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

Result<KnownChannel> make_channel(const std::string& name, NamedKind kind, std::shared_ptr<Arena> arena,
                                  const ChannelOptions& options, bool exist_ok) {
  const auto open = [&]() -> Result<KnownChannel> {
    auto known = open_channel(name, kind);
    if (!known) return known;
    Status same = check_is(*known, arena.get(), options);
    if (!same) return about(name, std::move(same).error());
    return known;
  };
  std::shared_ptr<Arena> own = arena;
  const auto make = [&]() -> Result<KnownChannel> {
    if (own == nullptr) {
      auto made = Arena::create({});
      if (!made) return std::move(made).error();
      own = std::move(*made);
    }
    return make_new(name, kind, own, options);
  };
  return open_or_make(exist_ok, open, make);
}

}  // namespace shmtree::endpoint
