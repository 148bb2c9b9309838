#include "shmtree/pair.h"

#include <charconv>
#include <map>
#include <mutex>

#include "channel/channel.h"
#include "features/handle.h"
#include "features/names.h"
#include "features/transfer.h"
#include "features/value_codec.h"
#include "platform/fork.h"
#include "platform/machine.h"

namespace shmtree {

namespace {

using channel::Channel;
using channel::End;
using memory::Lease;
using platform::Deadline;
using platform::WaitContext;

WaitContext waiting(const Timeout& timeout) {
  return WaitContext{Deadline::after(timeout)};
}

Error closed_here(const char* end) {
  return Error{Code::kClosed, std::string("this ") + end + " was closed in this process"};
}

// Memory handed out by new_array.
struct Loan {
  Lease lease;
  std::atomic<bool> given{false};  // put by reference: its bytes belong to the receiver now, a second put copies
};

}  // namespace

namespace api {

struct ArenaState {
  explicit ArenaState(std::shared_ptr<memory::Arena> made) : arena(std::move(made)) {}

  static Arena wrap(std::shared_ptr<memory::Arena> made) {
    return Arena(std::make_shared<ArenaState>(std::move(made)));
  }
  static const std::shared_ptr<ArenaState>& of(const Arena& arena) noexcept { return arena.state_; }

  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, const Timeout& timeout);
  // The loan that [begin, begin + bytes) lies in, or null.
  std::shared_ptr<Loan> loan_at(const std::byte* begin, std::uint64_t bytes);

  std::shared_ptr<memory::Arena> arena;
  platform::LeafMutex mutex;
  std::map<const std::byte*, std::weak_ptr<Loan>> loans;  // by first byte
};

struct ChannelState {
  ChannelState(std::shared_ptr<ArenaState> of, std::shared_ptr<Channel> made, End which)
      : arena(std::move(of)), channel(std::move(made)), end(which) {}
  ~ChannelState() { close(); }
  ChannelState(const ChannelState&) = delete;
  ChannelState& operator=(const ChannelState&) = delete;

  static Sender sender(std::shared_ptr<ChannelState> state) { return Sender(std::move(state)); }
  static Receiver receiver(std::shared_ptr<ChannelState> state) { return Receiver(std::move(state)); }

  // Joins the end; the state leaves it again.
  static Result<std::shared_ptr<ChannelState>> join(std::shared_ptr<ArenaState> arena, std::shared_ptr<Channel> channel,
                                                    End end, std::shared_ptr<features::Name> name = nullptr) {
    Status joined = channel->join(end);
    if (!joined) return std::move(joined).error();
    auto state = std::make_shared<ChannelState>(std::move(arena), std::move(channel), end);
    state->name = std::move(name);
    return state;
  }
  Result<std::string> handle() const;
  static Result<std::shared_ptr<ChannelState>> open(const std::string& handle, End end);
  static Result<std::shared_ptr<ChannelState>> open_named(const std::string& name, End end);
  void close() noexcept {
    if (!closed.exchange(true)) channel->leave(end);
  }

  std::shared_ptr<ArenaState> arena;
  std::shared_ptr<Channel> channel;
  End end;
  std::shared_ptr<features::Name> name{};  // this process's part in the channel's name, if it has one
  std::atomic<bool> closed{false};
};

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
  auto state = join(std::make_shared<ArenaState>(std::move(*opened)), *channel, end);
  if (state) (*channel)->claim(handle->grant, end);
  return state;
}

Result<std::shared_ptr<ChannelState>> ChannelState::open_named(const std::string& named, End end) {
  auto name = features::Name::open(named);
  if (!name) return std::move(name).error();
  const features::NamedThing& thing = (*name)->thing();
  if (thing.kind != features::NamedKind::kChannel) {
    return Error{Code::kInvalid, "the name " + named + " is in use for something that is no pair's channel"};
  }
  auto channel = Channel::open(thing.arena, memory::unpack(thing.block), WaitContext{});
  if (!channel) return std::move(channel).error();
  return join(std::make_shared<ArenaState>(thing.arena), std::move(*channel), end, std::move(*name));
}

Result<ArrayRef> ArenaState::new_array(DType dtype, std::vector<std::int64_t> shape, const Timeout& timeout) {
  std::uint64_t bytes = item_bytes(dtype);
  if (bytes == 0) return Error{Code::kInvalid, "an array in an arena needs elements of a fixed size"};
  for (const std::int64_t count : shape) {
    if (count < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(count), &bytes)) {
      return Error{Code::kInvalid, "a dimension of " + std::to_string(count) + " elements cannot be"};
    }
  }
  auto block = arena->allocate(std::max<std::uint64_t>(bytes, 1), memory::BlockKind::kArray, waiting(timeout));
  if (!block) return std::move(block).error();
  auto lease = arena->hold_new(std::move(*block));
  if (!lease) return std::move(lease).error();
  auto loan = std::make_shared<Loan>();
  loan->lease = std::move(*lease);
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
  std::shared_ptr<Loan> found;
  const std::lock_guard guard(mutex);
  auto after = loans.upper_bound(begin);
  if (after == loans.begin()) return nullptr;
  found = std::prev(after)->second.lock();
  if (found == nullptr) return nullptr;
  const auto offset = static_cast<std::uint64_t>(begin - found->lease.data());
  return offset <= found->lease.bytes() && bytes <= found->lease.bytes() - offset ? found : nullptr;
}

}  // namespace api

namespace {

// The arrays of one message that lie in its arena: they go by reference, the first time.
class LoanedArrays final : public features::ExternalArrays {
 public:
  explicit LoanedArrays(api::ArenaState& arena) : arena_(arena) {}

  bool find(const void* begin, std::uint64_t bytes, format::External& range, std::int64_t& at) override {
    const auto* first = static_cast<const std::byte*>(begin);
    std::shared_ptr<Loan> loan = arena_.loan_at(first, bytes);
    if (loan == nullptr || loan->given.load()) return false;
    std::size_t reference = 0;
    while (reference < loans_.size() && loans_[reference] != loan) ++reference;
    range = format::External{static_cast<std::uint32_t>(reference), 0, loan->lease.bytes()};
    at = first - loan->lease.data();
    if (reference == loans_.size()) {
      blocks_.push_back(loan->lease.ref());
      loans_.push_back(std::move(loan));
    }
    return true;
  }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return blocks_; }
  void give() noexcept {
    for (const auto& loan : loans_) loan->given.store(true);
  }

 private:
  api::ArenaState& arena_;
  std::vector<std::shared_ptr<Loan>> loans_;
  std::vector<memory::BlockRef> blocks_;
};

Result<Item> to_item(memory::Arena& arena, channel::Incoming& message) {
  const auto blocks = features::referred_blocks(arena, arena.referred_to_by(message.block()));
  const auto frame = message.frame();
  Result<Item> item = Error{};
  // A tree with arrays of other blocks has to hold them: it is not copied.
  const bool copied = blocks.empty() && (message.bytes() <= features::kCopiedMessageBytes ||
                                         features::is_hoarding(arena, message, blocks));
  if (!message.in_block() || copied) {
    item = features::decode(frame, nullptr, blocks);
  } else {
    auto lease = message.adopt();
    if (!lease) return std::move(lease).error();
    item = features::decode(frame, std::make_shared<Lease>(std::move(*lease)), blocks);
  }
  if (item) return item;
  Error error = std::move(item).error();
  error.ticket = message.ticket();
  error.message = "message " + std::to_string(message.ticket()) + ": " + error.message;
  return error;
}

}  // namespace

// --- Arena
// ------------------------------------------------------------------------------------------------------------

Result<Arena> Arena::create(const ArenaOptions& options) {
  auto made = memory::Arena::create({options.max_bytes, options.prefault, options.huge_pages});
  if (!made) return std::move(made).error();
  return api::ArenaState::wrap(std::move(*made));
}

Result<Arena> Arena::shared() {
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
}

Result<ArrayRef> Arena::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return state_->new_array(dtype, std::move(shape), timeout);
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

Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout) const {
  if (closed()) return closed_here("sender");
  const WaitContext wait = waiting(timeout);
  thread_local format::FrameBuilder builder;  // a message needs about as much memory as the one before
  builder.clear();
  LoanedArrays loans(*state_->arena);
  Status encoded = features::encode(value, builder, &loans);
  if (!encoded) return std::move(encoded).error();
  features::InlineFrame scratch;
  channel::Outgoing message;
  Status staged = features::stage(builder, loans.blocks(), *state_->channel, scratch, message, wait);
  if (!staged) return std::move(staged).error();
  auto ticket = state_->channel->put(message, wait);
  if (ticket) loans.give();
  return ticket;
}

bool Sender::has_space() const {
  return !closed() && state_->channel->has_room();
}

Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout) const {
  return state_->channel->wait_for_ack(ticket, waiting(timeout));
}
Status Sender::wait_for_all_ack(Timeout timeout) const {
  return state_->channel->wait_for_ack(std::nullopt, waiting(timeout));
}
std::uint64_t Sender::pending_acks() const {
  return state_->channel->pending_acks(waiting(Timeout{}));
}

Result<ArrayRef> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return state_->arena->new_array(dtype, std::move(shape), timeout);
}

Result<std::string> Sender::handle() const {
  return state_->handle();
}

Result<Sender> Sender::open(const std::string& handle) {
  auto state = api::ChannelState::open(handle, End::kSending);
  if (!state) return std::move(state).error();
  return api::ChannelState::sender(std::move(*state));
}

void Sender::close() {
  state_->close();
}
bool Sender::closed() const noexcept {
  return state_->closed.load();
}

// --- Receiver
// ---------------------------------------------------------------------------------------------------------

Result<Item> Receiver::get(Timeout timeout) const {
  if (closed()) return closed_here("receiver");
  channel::Incoming message;
  Status got = state_->channel->get(message, waiting(timeout));
  if (!got) return std::move(got).error();
  return to_item(*state_->arena->arena, message);
}

Result<std::vector<Item>> Receiver::get_many(std::size_t most, Timeout timeout) const {
  if (closed()) return closed_here("receiver");
  if (most == 0) return Error{Code::kInvalid, "get_many of 0 items"};
  auto messages = state_->channel->get_many(most, waiting(timeout));
  if (!messages) return std::move(messages).error();
  std::vector<Item> items;
  items.reserve(messages->size());
  for (channel::Incoming& message : *messages) {
    auto item = to_item(*state_->arena->arena, message);
    if (!item) {
      Error error = std::move(item).error();
      error.completed = items.size();
      return error;
    }
    items.push_back(std::move(*item));
  }
  return items;
}

struct TakenItem::State {
  channel::Delivery delivery;
  Item item;
  std::uint64_t ticket;
  bool redelivered;
};

TakenItem::TakenItem(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
TakenItem::TakenItem(TakenItem&&) noexcept = default;
TakenItem& TakenItem::operator=(TakenItem&&) noexcept = default;
TakenItem::~TakenItem() = default;
const Item& TakenItem::item() const noexcept {
  return state_->item;
}
std::uint64_t TakenItem::ticket() const noexcept {
  return state_->ticket;
}
bool TakenItem::redelivered() const noexcept {
  return state_->redelivered;
}
Status TakenItem::ack() {
  return state_->delivery.ack(WaitContext{});
}
Status TakenItem::nack() {
  return state_->delivery.nack(WaitContext{});
}

Result<TakenItem> Receiver::take(Timeout timeout) const {
  if (closed()) return closed_here("receiver");
  auto delivery = state_->channel->take(waiting(timeout));
  if (!delivery) return std::move(delivery).error();
  channel::Incoming& message = delivery->message();
  const std::uint64_t ticket = message.ticket();
  const bool redelivered = message.redelivered();
  auto item = to_item(*state_->arena->arena, message);
  if (!item) {
    delivery->ack(WaitContext{}).ok();  // a damaged message is consumed: handing it round would not mend it
    return std::move(item).error();
  }
  return TakenItem(std::unique_ptr<TakenItem::State>(
      new TakenItem::State{std::move(*delivery), std::move(*item), ticket, redelivered}));
}

std::uint64_t Receiver::size() const {
  return state_->channel->size();
}
Result<int> Receiver::fileno() const {
  return state_->channel->wake_fd(End::kReceiving);
}
Result<std::string> Receiver::handle() const {
  return state_->handle();
}

Result<Receiver> Receiver::open(const std::string& handle) {
  auto state = api::ChannelState::open(handle, End::kReceiving);
  if (!state) return std::move(state).error();
  return api::ChannelState::receiver(std::move(*state));
}

void Receiver::close() {
  state_->close();
}
bool Receiver::closed() const noexcept {
  return state_->closed.load();
}

// --- pairs
// ------------------------------------------------------------------------------------------------------------

std::pair<Sender, Receiver> make_pair(const PairOptions& options) {
  const Arena arena = options.arena ? *options.arena : Arena::shared().value();
  const std::shared_ptr<api::ArenaState>& state = api::ArenaState::of(arena);
  channel::ChannelOptions made{.capacity = options.capacity, .max_bytes = options.max_bytes};
  made.ending = options.on_peer_death == OnPeerDeath::kWait ? channel::Ending::kWait : channel::Ending::kRaise;
  auto channel = Channel::create(state->arena, made).value();
  std::shared_ptr<features::Name> name;
  if (!options.name.empty()) {
    features::NamedThing thing{.kind = features::NamedKind::kChannel, .arena = state->arena};
    thing.block = memory::pack(channel->block());
    name = features::Name::create(options.name, thing).value();
  }
  auto sending = api::ChannelState::join(state, channel, End::kSending, name).value();
  auto receiving = api::ChannelState::join(state, channel, End::kReceiving, name).value();
  return {api::ChannelState::sender(std::move(sending)), api::ChannelState::receiver(std::move(receiving))};
}

Result<Sender> open_sender(const std::string& name) {
  auto state = api::ChannelState::open_named(name, End::kSending);
  if (!state) return std::move(state).error();
  return api::ChannelState::sender(std::move(*state));
}

Result<Receiver> open_receiver(const std::string& name) {
  auto state = api::ChannelState::open_named(name, End::kReceiving);
  if (!state) return std::move(state).error();
  return api::ChannelState::receiver(std::move(*state));
}

}  // namespace shmtree
