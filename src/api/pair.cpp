// Arenas, senders, and how both ends are made, named and handed on.
#include <algorithm>
#include <charconv>

#include "api/state.h"
#include "endpoint/put.h"
#include "features/handle.h"
#include "features/value_codec.h"
#include "platform/machine.h"

namespace shmtree {

namespace {

using api::Loan;
using channel::Channel;
using channel::End;
using platform::WaitContext;

}  // namespace

namespace api {

// Without memory of its own, and never destroyed: handles are moved in destructors, and at exit.
std::shared_ptr<ChannelState> closed_end() noexcept {
  static union Place {
    Place() noexcept : state(nullptr) {}
    ~Place() {}
    ChannelState state;
  } place;
  return {std::shared_ptr<void>(), &place.state};
}

void ChannelState::close() noexcept {
  const Call call(*this);
  if (closed.exchange(true)) return;
  channel->leave(end);
  channel->wake_all();  // threads that wait at it
}

void ChannelState::release() noexcept {
  std::shared_ptr<endpoint::Name> old_name;  // each needs the one after it
  std::shared_ptr<Channel> old_channel;
  std::shared_ptr<ArenaState> old_arena;
  const std::lock_guard guard(releasing);
  if (platform::is_in_use(this)) return;
  old_name.swap(name);
  old_channel.swap(channel);
  old_arena.swap(arena);
}

ChannelStats ChannelState::stats() const {
  const channel::ChannelStats now = channel->stats();
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
  features::Handle handle = features::handle_of(*arena->arena);
  auto grant = channel->grant(end);
  if (!grant) return std::move(grant).error();
  handle.block = memory::pack(channel->block());
  handle.grant = *grant;
  if (name != nullptr) handle.name = name->path();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : features::encode(handle)) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<std::shared_ptr<ChannelState>> ChannelState::open(const std::string& text, End end) {
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
  auto handle = features::decode(bytes);
  if (!handle) return std::move(handle).error();
  auto opened = features::open_arena(*handle);
  if (!opened) return std::move(opened).error();
  auto channel = Channel::open(*opened, memory::unpack(handle->block), WaitContext{});
  if (!channel) return std::move(channel).error();
  Status in_time = (*channel)->check_grant(handle->grant, end, handle->pid);
  if (!in_time) return std::move(in_time).error();
  auto name = endpoint::join_name(handle->name, *opened);
  auto state = join(std::make_shared<ArenaState>(std::move(*opened)), *channel, end, std::move(name));
  if (state) (*channel)->claim(handle->grant, end);
  return state;
}

Result<std::shared_ptr<ChannelState>> ChannelState::open_named(const std::string& named, End end) {
  auto name = endpoint::open_name(named);
  if (!name) return std::move(name).error();
  const features::NamedThing& thing = (*name)->thing();
  if (thing.kind != features::NamedKind::kChannel) {
    return Error{Code::kInvalid, "the name " + named + " is in use for something that is no pair's channel"};
  }
  auto channel = Channel::open(thing.arena, memory::unpack(thing.block), WaitContext{});
  if (!channel) return std::move(channel).error();
  return join(std::make_shared<ArenaState>(thing.arena), std::move(*channel), end, std::move(*name));
}

Result<ArrayRef> ArenaState::new_array(DType dtype, std::vector<std::int64_t> shape, const WaitContext& wait) {
  std::uint64_t bytes = item_bytes(dtype);
  if (bytes == 0) return Error{Code::kInvalid, "an array in an arena needs elements of a fixed size"};
  for (const std::int64_t count : shape) {
    if (count < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(count), &bytes)) {
      return Error{Code::kInvalid, "a dimension of " + std::to_string(count) + " elements cannot be"};
    }
  }
  auto block = arena->allocate(std::max<std::uint64_t>(bytes, 1), memory::BlockKind::kArray, wait);
  if (!block) return std::move(block).error();
  auto lease = arena->hold_new(std::move(*block));
  if (!lease) return std::move(lease).error();
  auto loan = std::make_shared<Loan>();
  loan->lease = std::move(*lease);
  loan->bytes = bytes;
  std::vector<std::weak_ptr<Loan>> gone;  // freed outside the mutex
  {
    const std::lock_guard guard(mutex);
    for (auto it = loans.begin(); it != loans.end();) {
      if (!it->second.expired()) {
        ++it;
        continue;
      }
      gone.push_back(std::move(it->second));
      it = loans.erase(it);
    }
    loans[loan->lease.data()] = loan;
  }
  ArrayRef array{.data = loan->lease.data(), .dtype = dtype, .shape = std::move(shape)};
  array.owner = std::shared_ptr<const void>(loan, loan.get());
  return array;
}

std::shared_ptr<Loan> ArenaState::loan_at(const std::byte* begin, std::uint64_t bytes) {
  std::shared_ptr<Loan> found;  // let go of outside the mutex
  const std::lock_guard guard(mutex);
  const auto at = loans.find(begin);
  if (at != loans.end()) found = at->second.lock();
  return found != nullptr && bytes == found->bytes ? found : nullptr;
}

bool ArenaState::lend(Loan& loan, const void* message) {
  const endpoint::ByteRange all{0, loan.bytes};
  const std::lock_guard guard(mutex);
  if (!loan.claims.are_ours() || !loan.claims.are_free(all, message, true)) return false;
  loan.claims.promise(all, message, true);
  return true;
}

}  // namespace api

namespace {

// The arrays of one message that lie in its arena: they go by reference, the first time.
class LoanedArrays final : public features::ExternalArrays {
 public:
  explicit LoanedArrays(api::ArenaState& arena) : arena_(arena) {}
  ~LoanedArrays() override {
    if (!loans_.empty()) [[unlikely]]
      withdraw();
  }

  bool find(const void* begin, std::uint64_t bytes, format::External& range, std::int64_t& at) override {
    std::shared_ptr<Loan> loan = arena_.loan_at(static_cast<const std::byte*>(begin), bytes);
    if (loan == nullptr) return false;
    const auto known = std::find(loans_.begin(), loans_.end(), loan);
    range = format::External{static_cast<std::uint32_t>(known - loans_.begin()), 0, loan->lease.bytes()};
    at = 0;
    if (known != loans_.end()) return true;
    loans_.reserve(loans_.size() + 1);  // what can fail comes before what is promised
    blocks_.push_back(loan->lease.ref());
    if (!arena_.lend(*loan, this)) return blocks_.pop_back(), false;
    loans_.push_back(std::move(loan));
    return true;
  }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return blocks_; }
  // The message was put.
  void settle() noexcept {
    if (loans_.empty()) return;
    const std::lock_guard guard(arena_.mutex);
    for (const auto& loan : loans_) loan->claims.settle(this);
  }

 private:
  void withdraw() noexcept {
    const std::lock_guard guard(arena_.mutex);
    for (const auto& loan : loans_) loan->claims.withdraw(this);
  }
  api::ArenaState& arena_;
  std::vector<std::shared_ptr<Loan>> loans_;
  std::vector<memory::BlockRef> blocks_;
};

}  // namespace

// --- Arena
// ------------------------------------------------------------------------------------------------------------

Result<Arena> Arena::create(const ArenaOptions& options) {
  return or_out_of_memory([&]() -> Result<Arena> {
    auto made = memory::Arena::create({options.max_bytes, options.prefault, options.huge_pages});
    if (!made) return std::move(made).error();
    return api::ArenaState::wrap(std::move(*made));
  });
}

Result<Arena> Arena::shared() try {
  static platform::LeafMutex mutex;
  static std::optional<Arena>* const kept = new std::optional<Arena>;  // outlives static objects that send at exit
  static std::uint64_t owner = 0;
  const auto pid = static_cast<std::uint64_t>(platform::process_id());
  {
    const std::lock_guard guard(mutex);
    if (kept->has_value() && owner == pid) return **kept;
  }
  auto made = create();  // a forked child makes its own
  if (!made) return made;
  const std::lock_guard guard(mutex);
  if (!kept->has_value() || owner != pid) {
    *kept = *made;
    owner = pid;
  }
  return **kept;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<ArrayRef> Arena::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return or_out_of_memory([&] { return state_->new_array(dtype, std::move(shape), waiting(timeout)); });
}
Result<ArrayRef> Arena::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                                  const std::stop_token& stop) const {
  return or_out_of_memory([&] {
    endpoint::OrStopped<endpoint::UntilDone> until(stop, nullptr);
    return state_->new_array(dtype, std::move(shape), waiting(timeout, &until));
  });
}

ArenaUsage Arena::usage() const {
  const memory::ArenaStats stats = state_->arena->stats();
  return {stats.max_bytes, stats.committed_bytes, stats.used_bytes, stats.held_bytes};
}

std::uint64_t Arena::trim() const {
  return state_->arena->trim();
}

// --- Sender
// -----------------------------------------------------------------------------------------------------------

namespace {

// What endpoint::put() puts.
class Message {
 public:
  Message(api::ArenaState& arena, format::FrameBuilder& builder) : builder_(builder), loans_(arena) {}
  Status encode(const Value& value) { return features::encode(value, builder_, &loans_); }
  format::FrameBuilder& builder() noexcept { return builder_; }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return loans_.blocks(); }
  void settle() noexcept { loans_.settle(); }

 private:
  format::FrameBuilder& builder_;
  LoanedArrays loans_;
};

// The two callers of put() differ in what ends the wait; the one without a stop_token is where programs spend time.
[[gnu::always_inline]] inline Result<std::uint64_t> put_encoded(api::ChannelState& state, Message& message,
                                                                const WaitContext& wait) {
  auto ticket = endpoint::put(*state.channel, message, wait);
  if (!ticket) ticket = state.told(std::move(ticket).error());
  return ticket;
}

[[gnu::always_inline]] inline Result<std::uint64_t> put(api::ChannelState& state, const Value& value,
                                                        const WaitContext& wait) {
  thread_local format::FrameBuilder builder;  // a message needs about as much memory as the one before
  builder.clear();
  Message message(*state.arena, builder);
  Status encoded = message.encode(value);
  if (!encoded) return std::move(encoded).error();
  return put_encoded(state, message, wait);
}

}  // namespace

Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout) const try {
  const api::Call call(*state_);
  if (call.closed()) return closed_here("sender");
  return shmtree::put(*state_, value, state_->wait(timeout));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout, const std::stop_token& stop) const {
  return api::until_stopped(*state_, "sender", timeout, stop,
                            [&](const WaitContext& wait) { return shmtree::put(*state_, value, wait); });
}

bool Sender::has_space() const {
  const api::Call call(*state_);
  return !call.closed() && state_->channel->has_room();
}

namespace {

// Acks are waited for as long as the process has an end of the channel, be it another one.
Status wait_for(api::ChannelState& state, std::optional<std::uint64_t> ticket, const Timeout& timeout,
                const std::stop_token& stop = {}) {
  return or_out_of_memory([&]() -> Status {
    const api::Call call(state);
    const auto channel = call.any_channel();
    if (channel == nullptr) return closed_here("sender");
    endpoint::OrStopped<endpoint::UntilLeft> until(stop, channel.get(), *channel);
    Status acked = channel->wait_for_ack(ticket, waiting(timeout, &until));
    if (!acked && acked.code() == Code::kInterrupted && !channel->is_used_here()) return closed_here("sender");
    return acked;
  });
}

}  // namespace

Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout) const {
  return wait_for(*state_, ticket, timeout);
}
Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout, const std::stop_token& stop) const {
  return wait_for(*state_, ticket, timeout, stop);
}
Status Sender::wait_for_all_ack(Timeout timeout) const {
  return wait_for(*state_, std::nullopt, timeout);
}
Status Sender::wait_for_all_ack(Timeout timeout, const std::stop_token& stop) const {
  return wait_for(*state_, std::nullopt, timeout, stop);
}
std::uint64_t Sender::pending_acks() const {
  const api::Call call(*state_);
  const auto channel = call.any_channel();
  return channel == nullptr ? 0 : channel->pending_acks(waiting(Timeout{}));
}

namespace {

Result<ArrayRef> make_array(api::ChannelState& state, DType dtype, std::vector<std::int64_t> shape,
                            const WaitContext& wait) {
  auto array = state.arena->new_array(dtype, std::move(shape), wait);
  if (!array) return state.told(std::move(array).error());
  return array;
}

}  // namespace

Result<ArrayRef> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return api::with_open(*state_, "sender",
                        [&] { return make_array(*state_, dtype, std::move(shape), state_->wait(timeout)); });
}
Result<ArrayRef> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                                   const std::stop_token& stop) const {
  return api::until_stopped(*state_, "sender", timeout, stop, [&](const WaitContext& wait) {
    return make_array(*state_, dtype, std::move(shape), wait);
  });
}

Result<ChannelStats> Sender::stats() const {
  return api::with_open(*state_, "sender", [this]() -> Result<ChannelStats> { return state_->stats(); });
}

Result<std::string> Sender::handle() const {
  return api::with_open(*state_, "sender", [this] { return state_->handle(); });
}

Result<Sender> Sender::open(const std::string& handle) {
  auto state = or_out_of_memory([&] { return api::ChannelState::open(handle, End::kSending); });
  if (!state) return std::move(state).error();
  return api::ChannelState::sender(std::move(*state));
}

void Sender::close() {
  state_->close();
}
bool Sender::closed() const noexcept {
  return state_->closed.load();
}

// --- pairs
// ------------------------------------------------------------------------------------------------------------

namespace {

// Who opens a name gets at all of its arena: it has no other channels in it, unless it was given.
Arena arena_for(const PairOptions& options) {
  if (options.arena) return *options.arena;
  return (options.name.empty() ? Arena::shared() : Arena::create()).value();
}

}  // namespace

std::pair<Sender, Receiver> make_pair(const PairOptions& options) try {
  const Arena arena = arena_for(options);
  const std::shared_ptr<api::ArenaState>& state = api::ArenaState::of(arena);
  channel::ChannelOptions made{.capacity = options.capacity, .max_bytes = options.max_bytes};
  made.allow_pickle = options.allow_pickle.value_or(options.name.empty());
  made.max_unsettled = options.max_unsettled;
  made.max_attempts = options.max_attempts;
  made.ending = options.on_peer_death == OnPeerDeath::kWait ? channel::Ending::kWait : channel::Ending::kRaise;
  auto channel = Channel::create(state->arena, made).value();
  std::shared_ptr<endpoint::Name> name;
  if (!options.name.empty()) {
    features::NamedThing thing{.kind = features::NamedKind::kChannel, .arena = state->arena};
    thing.block = memory::pack(channel->block());
    name = endpoint::create_name(options.name, thing).value();
  }
  auto sending = api::ChannelState::join(state, channel, End::kSending, name).value();
  auto receiving = api::ChannelState::join(state, channel, End::kReceiving, name).value();
  return {api::ChannelState::sender(std::move(sending)), api::ChannelState::receiver(std::move(receiving))};
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

Result<Sender> open_sender(const std::string& name) {
  auto state = or_out_of_memory([&] { return api::ChannelState::open_named(name, End::kSending); });
  if (!state) return std::move(state).error();
  return api::ChannelState::sender(std::move(*state));
}

Result<Receiver> open_receiver(const std::string& name) {
  auto state = or_out_of_memory([&] { return api::ChannelState::open_named(name, End::kReceiving); });
  if (!state) return std::move(state).error();
  return api::ChannelState::receiver(std::move(*state));
}

}  // namespace shmtree
