// Makes, names, opens, transfers and closes the ends of channels.
#include <charconv>

#include "api/state.h"
#include "discovery/handle.h"
#include "endpoint/channels.h"
#include "endpoint/message_transfers.h"
#include "platform/never_destroyed.h"

namespace shmtree {

using api::Channel;
using channel::End;
using platform::WaitContext;

namespace api {

namespace {

struct ClosedEnd {
  ChannelState state{nullptr, End::kSending};
};

}  // namespace

// Allocates nothing, since handles are moved in destructors and at exit.
std::shared_ptr<ChannelState> closed_end() noexcept {
  return {std::shared_ptr<void>(), &platform::never_destroyed<ClosedEnd>().state};
}

platform::WeakRegistry<ChannelState>& ChannelState::all() noexcept {
  return platform::never_destroyed<platform::WeakRegistry<ChannelState>>();
}

ChannelState::~ChannelState() {
  all().erase(this);
}

ChannelStats ChannelState::stats() const {
  memory::poll_for_deaths(*channel().arena(), 0);
  channel::ChannelStats now = channel().stats();
  return {now.put,
          now.received,
          now.queued,
          now.queued_bytes,
          now.taken,
          now.senders,
          now.receivers,
          now.senders_attached,
          now.receivers_attached,
          now.senders_in_transit,
          now.receivers_in_transit,
          now.dropped,
          std::move(now.senders_never_used),
          std::move(now.receivers_never_used)};
}

namespace {

std::string handle_text(const discovery::Handle& handle) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : discovery::encode(handle)) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Calls begin(), which begins the transfer of an object, and returns the handle of the object as text.
template <class Begin>
Result<std::string> transfer_text(const memory::Arena& arena, std::uint64_t block, const endpoint::Name* name,
                                  Begin begin) {
  discovery::Handle handle = discovery::handle_of(arena);
  endpoint::MessageTransfers transfers;  // The destructor of the guard ends the transfer unless the text was made.
  const endpoint::MessageTransfers::Pickling pickling(&transfers);
  auto number = begin();
  if (!number) return std::move(number).error();
  handle.block = block;
  handle.transfer = *number;
  if (name != nullptr) handle.name = name->path();
  std::string text = handle_text(handle);
  transfers.keep();
  return text;
}

}  // namespace

Result<std::string> give_handle(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                const endpoint::Name* name) {
  return transfer_text(*arena, block, name, [&] { return endpoint::MessageTransfers::begin(arena, block, name); });
}

Result<std::string> ChannelState::handle() const {
  const auto known = name();
  channel().note_named();
  return transfer_text(*arena->arena, memory::pack(channel().block()), known.get(), [&] {
    return endpoint::MessageTransfers::begin(channel().shared_from_this(), end, known.get());
  });
}

Result<std::vector<std::byte>> handle_bytes(const std::string& text) {
  if (text.size() % 2 != 0) {
    return Error{Code::kInvalid,
                 "this text is not a handle: it has " + std::to_string(text.size()) + " characters, an odd number"};
  }
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    const char* from = text.data() + 2 * i;
    if (std::from_chars(from, from + 2, value, 16).ptr != from + 2) {
      return Error{Code::kInvalid, "this text is not a handle: it has characters other than 0-9 and a-f"};
    }
    bytes[i] = static_cast<std::byte>(value);
  }
  return bytes;
}

Result<std::shared_ptr<ChannelState>> ChannelState::open(const std::string& text, End end, bool of_queue,
                                                         ChannelKind of) {
  auto bytes = handle_bytes(text);
  if (!bytes) return std::move(bytes).error();
  return open_bytes(*bytes, end, of_queue, of);
}

Result<std::shared_ptr<ChannelState>> ChannelState::open_bytes(std::span<const std::byte> bytes, End end, bool of_queue,
                                                               ChannelKind of) {
  auto handle = discovery::decode(bytes);
  if (!handle) return std::move(handle).error();
  auto opened = discovery::open_arena(*handle);
  if (!opened) return std::move(opened).error();
  auto channel = Channel::open(*opened, memory::unpack(handle->block), WaitContext{});
  if (!channel) return std::move(channel).error();
  const bool is_queue = (*channel)->is_queue();
  if (is_queue != of_queue) {
    return Error{Code::kInvalid, is_queue ? "this is the handle of a queue: open it with Queue::open()"
                                          : "this is the handle of an end of a pair, not of a queue"};
  }
  Status in_time = (*channel)->ends().check_transfer(handle->transfer, end, handle->pid);
  if (!in_time) return std::move(in_time).error();
  auto name = endpoint::join_name(handle->name, *opened);
  auto state = join(ArenaState::for_arena(*opened), *channel, end, name, of);
  if (state) endpoint::end_transfer(**channel, handle->transfer, end, name.get());
  return state;
}

// Python writes an end as a node of kind registered, which contains the handle and a flag that says if the end may
// pickle.
Result<std::shared_ptr<ChannelState>> ChannelState::open_item(const Item& item, std::string_view name, End end,
                                                              bool of_queue) {
  if (item.kind() != Kind::kRegistered || item.class_name() != name) return item.mismatch(name);
  const Item parts = item.at(0);
  if (parts.kind() != Kind::kTuple || parts.size() != 2) return item.mismatch("a handle");
  auto handle = parts.at(0).try_as<std::span<const std::byte>>();
  if (!handle) return std::move(handle).error();
  return open_bytes(*handle, end, of_queue);
}

Result<std::shared_ptr<ChannelState>> ChannelState::open_named(const std::string& named, End end,
                                                               const Timeout& timeout, discovery::NamedKind kind,
                                                               ChannelKind of) {
  auto known = endpoint::open_object<Channel>(named, kind, timeout);
  if (!known) return std::move(known).error();
  auto arena = ArenaState::for_arena(known->object->arena());
  return join(std::move(arena), std::move(known->object), end, std::move(known->name), of);
}

namespace {

// Returns values[enumerator]. Throws BadResult if it is not an enumerator. The enum must count from 0.
template <class Enum, class Value>
Value value_of(const char* option, Enum enumerator, std::initializer_list<Value> values) {
  const auto index = static_cast<std::size_t>(enumerator);
  if (index >= values.size()) throw BadResult(no_enumerator(option, enumerator));
  return values.begin()[index];
}

channel::ChannelOptions channel_options(const PairOptions& options) {
  using channel::Ending;
  channel::ChannelOptions made{.capacity = options.capacity, .max_bytes = options.max_bytes};
  made.max_unacked = options.max_unacked;
  made.max_attempts = options.max_attempts;
  made.portable = options.portable;
  made.ending = value_of("on_peer_death", options.on_peer_death, {Ending::kRaise, Ending::kWait, Ending::kEach});
  made.keep_open = value_of("keep_open", KeepOpen::Value{options.keep_open},
                            {channel::KeepOpen::kNo, channel::KeepOpen::kReceivers, channel::KeepOpen::kBoth});
  made.drop_oldest = value_of("on_full", options.on_full, {false, true});
  return made;
}

}  // namespace

std::pair<std::shared_ptr<ChannelState>, std::shared_ptr<ChannelState>> ChannelState::make(const PairOptions& options,
                                                                                           discovery::NamedKind kind,
                                                                                           ChannelKind of) try {
  channel::ChannelOptions made_with = channel_options(options);
  made_with.takes_requests = of == ChannelKind::kRequests;
  const auto made = endpoint::make_channel(request_of(options, kind), made_with).value();
  const auto arena = ArenaState::for_arena(made.object->arena());
  auto sending = join(arena, made.object, End::kSending, made.name, of).value();
  return {std::move(sending), join(arena, made.object, End::kReceiving, made.name, of).value()};
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

}  // namespace api

std::pair<Sender, Receiver> make_pair(const PairOptions& options) {
  auto [sending, receiving] = api::ChannelState::make(options, discovery::NamedKind::kChannel);
  return {api::ChannelState::handle_to<Sender>(std::move(sending)),
          api::ChannelState::handle_to<Receiver>(std::move(receiving))};
}

Result<Sender> open_sender(const std::string& name, Timeout timeout) {
  return api::ChannelState::made<Sender>([&] { return api::ChannelState::open_named(name, End::kSending, timeout); });
}
Result<Receiver> open_receiver(const std::string& name, Timeout timeout) {
  return api::ChannelState::made<Receiver>(
      [&] { return api::ChannelState::open_named(name, End::kReceiving, timeout); });
}

}  // namespace shmtree