#include "endpoint/channels.h"

#include <utility>

namespace shmtree::endpoint {

using channel::Channel;
using channel::ChannelOptions;
using discovery::NamedKind;
using memory::Arena;

namespace {

// Those that make a name and those whose last process ends take turns, if ever, a few times.
constexpr int kMostTurns = 16;

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
    return Error{Code::kInvalid, "it is that of a channel in another arena than the one given"};
  }
  return known.channel->check_options(options);
}

}  // namespace

Result<KnownChannel> open_channel(const std::string& name, NamedKind kind) {
  auto known = open_name(name);
  if (!known) return std::move(known).error();
  const discovery::NamedThing& thing = (*known)->thing();
  if (thing.kind != kind) {
    const char* const wanted = kind == NamedKind::kQueue ? "queue" : "pair's channel";
    return Error{Code::kInvalid, "the name " + name + " is in use for something that is no " + wanted};
  }
  auto channel = Channel::open(thing.arena, memory::unpack(thing.block), platform::WaitContext{});
  if (!channel) return std::move(channel).error();
  return KnownChannel{std::move(*channel), std::move(*known)};
}

Result<KnownChannel> make_channel(const std::string& name, NamedKind kind, std::shared_ptr<Arena> arena,
                                  const ChannelOptions& options, bool exist_ok) {
  std::shared_ptr<Arena> own;
  for (int turn = 0;; ++turn) {
    if (exist_ok) {
      auto known = open_channel(name, kind);
      if (known) {
        Status same = check_is(*known, arena.get(), options);
        if (!same) return about(name, std::move(same).error());
        return known;
      }
      if (known.code() != Code::kNotFound) return known;
    }
    if (arena == nullptr && own == nullptr) {
      auto made = Arena::create({});
      if (!made) return std::move(made).error();
      own = std::move(*made);
    }
    auto made = make_new(name, kind, arena != nullptr ? arena : own, options);
    if (made || !exist_ok || made.code() != Code::kExists || turn == kMostTurns) return made;
  }
}

}  // namespace shmtree::endpoint
