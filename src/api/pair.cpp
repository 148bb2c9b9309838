// How the ends are made, named, handed on and closed.
#include <charconv>

#include "api/state.h"
#include "discovery/handle.h"
#include "endpoint/given_ends.h"

namespace shmtree {

using api::Channel;
using channel::End;
using platform::WaitContext;

namespace api {

// Without memory of its own, and never destroyed: handles are moved in destructors, and at exit.
std::shared_ptr<ChannelState> closed_end() noexcept {
  static union Place {
    Place() noexcept : state(nullptr, End::kSending) {}
    ~Place() {}
    ChannelState state;
  } place;
  return {std::shared_ptr<void>(), &place.state};
}

ChannelStats ChannelState::stats() const {
  memory::look_for_dead(*channel().arena(), 0);
  const channel::ChannelStats now = channel().stats();
  return {now.put,
          now.received,
          now.queued,
          now.queued_bytes,
          now.taken,
          now.senders,
          now.receivers,
          now.senders_on_their_way,
          now.receivers_on_their_way};
}

// A handle's bytes in hexadecimal.
Result<std::string> ChannelState::handle() const {
  discovery::Handle handle = discovery::handle_of(*arena->arena);
  endpoint::GivenEnds given;  // taken back unless the text is made
  const endpoint::GivenEnds::Pickling pickling(&given);
  auto grant = endpoint::GivenEnds::grant(channel().shared_from_this(), end);
  if (!grant) return std::move(grant).error();
  handle.block = memory::pack(channel().block());
  handle.grant = *grant;
  if (const auto known = name()) handle.name = known->path();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : discovery::encode(handle)) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  given.keep();
  return text;
}

Result<std::shared_ptr<ChannelState>> ChannelState::open(const std::string& text, End end, bool of_queue) {
  if (text.size() % 2 != 0) {
    return Error{Code::kInvalid,
                 "this text is no handle: it has " + std::to_string(text.size()) + " characters, an odd number"};
  }
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    const char* from = text.data() + 2 * i;
    if (std::from_chars(from, from + 2, value, 16).ptr != from + 2) {
      return Error{Code::kInvalid, "this text is no handle: it has other characters than 0-9 and a-f"};
    }
    bytes[i] = static_cast<std::byte>(value);
  }
  auto handle = discovery::decode(bytes);
  if (!handle) return std::move(handle).error();
  auto opened = discovery::open_arena(*handle);
  if (!opened) return std::move(opened).error();
  auto channel = Channel::open(*opened, memory::unpack(handle->block), WaitContext{});
  if (!channel) return std::move(channel).error();
  if (of_queue && (*channel)->ending() != channel::Ending::kNever)
    return Error{Code::kInvalid, "this is the handle of a pair's end, and no queue's"};
  Status in_time = (*channel)->ends().check_grant(handle->grant, end, handle->pid);
  if (!in_time) return std::move(in_time).error();
  auto name = endpoint::join_name(handle->name, *opened);
  auto state = join(std::make_shared<ArenaState>(std::move(*opened)), *channel, end, std::move(name));
  if (state) (*channel)->membership().claim(handle->grant, end);
  return state;
}

Result<std::shared_ptr<ChannelState>> ChannelState::open_named(const std::string& named, End end,
                                                               discovery::NamedKind kind) {
  auto name = endpoint::open_name(named);
  if (!name) return std::move(name).error();
  const discovery::NamedThing& thing = (*name)->thing();
  if (thing.kind != kind) {
    const char* wanted = kind == discovery::NamedKind::kQueue ? "queue" : "pair's channel";
    return Error{Code::kInvalid, "the name " + named + " is in use for something that is no " + wanted};
  }
  auto channel = Channel::open(thing.arena, memory::unpack(thing.block), WaitContext{});
  if (!channel) return std::move(channel).error();
  return join(std::make_shared<ArenaState>(thing.arena), std::move(*channel), end, std::move(*name));
}

namespace {

// Who opens a name gets at all of its arena: it has no other channels in it, unless it was given.
Arena arena_for(const PairOptions& options) {
  if (options.arena) {
    if (ArenaState::of(*options.arena) == nullptr) throw BadResult(no_arena());
    return *options.arena;
  }
  return (options.name.empty() ? Arena::shared() : Arena::create()).value();
}

}  // namespace

std::pair<std::shared_ptr<ChannelState>, std::shared_ptr<ChannelState>> ChannelState::make(const PairOptions& options,
                                                                                           channel::Ending ending) try {
  const Arena given = arena_for(options);
  const std::shared_ptr<ArenaState>& arena = ArenaState::of(given);
  channel::ChannelOptions made{.capacity = options.capacity, .max_bytes = options.max_bytes, .ending = ending};
  made.allow_pickle = options.allow_pickle.value_or(options.name.empty());
  made.max_unsettled = options.max_unsettled;
  made.max_attempts = options.max_attempts;
  auto channel = Channel::create(arena->arena, made).value();
  std::shared_ptr<endpoint::Name> name;
  if (!options.name.empty()) {
    const bool queue = ending == channel::Ending::kNever;
    discovery::NamedThing thing{.kind = queue ? discovery::NamedKind::kQueue : discovery::NamedKind::kChannel,
                                .arena = arena->arena};
    thing.block = memory::pack(channel->block());
    name = endpoint::create_name(options.name, thing).value();
  }
  auto sending = join(arena, channel, End::kSending, name).value();
  return {std::move(sending), join(arena, channel, End::kReceiving, name).value()};
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

}  // namespace api

std::pair<Sender, Receiver> make_pair(const PairOptions& options) {
  const bool waits = options.on_peer_death == OnPeerDeath::kWait;
  auto [sending, receiving] =
      api::ChannelState::make(options, waits ? channel::Ending::kWait : channel::Ending::kRaise);
  return {api::ChannelState::handle_to<Sender>(std::move(sending)),
          api::ChannelState::handle_to<Receiver>(std::move(receiving))};
}

Result<Sender> open_sender(const std::string& name) {
  return api::ChannelState::made<Sender>([&] { return api::ChannelState::open_named(name, End::kSending); });
}
Result<Receiver> open_receiver(const std::string& name) {
  return api::ChannelState::made<Receiver>([&] { return api::ChannelState::open_named(name, End::kReceiving); });
}

}  // namespace shmtree