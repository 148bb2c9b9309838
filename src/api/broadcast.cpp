// Implements Broadcast of the public API.
#include "shmtree/broadcast.h"

#include <utility>

#include "api/broadcast_state.h"
#include "api/flat.h"
#include "endpoint/plain_messages.h"

namespace shmtree {

using api::BroadcastState;
using broadcast::Publisher;
using platform::WaitContext;
using Ticket = Result<std::uint64_t>;

namespace api {
namespace {

template <class Act>
auto with_publisher(BroadcastState* state, const Timeout& timeout, const std::stop_token& stop, Act act) {
  return with_part<Publisher>(state, "Broadcast", timeout, stop, std::move(act));
}
template <class Read>
std::uint64_t number_of_publisher(BroadcastState* state, Read read) noexcept {
  return number_of<Publisher>(state, std::move(read));
}

Ticket put(BroadcastState& state, Publisher& publisher, const Value& value, const WaitContext& wait) {
  OwnedMessage owned(*state.arena, publisher.ring()->allows_pickle());
  Status encoded = owned.message.encode(value);
  if (!encoded) return std::move(encoded).error();
  return endpoint::put(publisher, owned.message, wait);
}

Result<broadcast::Policy> policy_of(OnLag on_lag) {
  switch (on_lag) {
    case OnLag::kBlock: return broadcast::Policy::kBlock;
    case OnLag::kSkip: return broadcast::Policy::kSkip;
    case OnLag::kLatest: return broadcast::Policy::kLatest;
    case OnLag::kRaise: return broadcast::Policy::kRaise;
  }
  return no_enumerator("on_lag", on_lag);
}

}  // namespace
}  // namespace api

using api::with_publisher;

// --- Putting

Ticket Broadcast::put(const Value& value, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) {
    return api::put(*state_, publisher, value, wait);
  });
}

Status Broadcast::put_many(std::span<const Value> values, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) -> Status {
    for (std::size_t i = 0; i < values.size(); ++i) {
      Ticket ticket = or_out_of_memory([&] { return api::put(*state_, publisher, values[i], wait); });
      if (ticket) continue;
      Error error = std::move(ticket).error();
      error.completed = i;
      return error;
    }
    return success();
  });
}

Ticket Broadcast::put_bytes(std::span<const std::byte> bytes, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) -> Ticket {
    const auto frame = endpoint::FlatFrame::make(bytes, broadcast::kInlineBytes);
    if (!frame) return frame.error();
    return endpoint::put(publisher, *frame, wait);
  });
}

Result<detail::Lent> Broadcast::lend(std::size_t bytes, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) {
    return detail::lend(publisher.ring()->arena(), memory::BlockKind::kPublished, bytes, wait);
  });
}

Ticket Broadcast::put_lent(detail::LoanedBlock* lent, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) -> Ticket {
    Status usable = detail::check_loan(lent, publisher.ring()->arena(), memory::BlockKind::kPublished);
    if (!usable) return std::move(usable).error();
    broadcast::Outgoing outgoing{.block = std::move(lent->block), .held = std::move(lent->held)};
    outgoing.bytes = lent->frame_bytes;
    auto ticket = publisher.put(outgoing, wait);
    if (!ticket) {
      lent->block = std::move(outgoing.block);
      lent->held = std::move(outgoing.held);
    }
    return ticket;
  });
}

Result<Subscriber> Broadcast::subscribe(const Subscription& how, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop,
                        [&](Publisher& publisher, const WaitContext& wait) -> Result<Subscriber> {
                          const auto policy = api::policy_of(how.on_lag);
                          if (!policy) return policy.error();
                          const bool from_oldest = how.start == StartAt::kOldest;
                          if (!from_oldest && how.start != StartAt::kNext)
                            return api::no_enumerator("start", how.start);
                          auto made = broadcast::Subscriber::create(publisher.ring(), *policy, from_oldest, wait);
                          if (!made) return std::move(made).error();
                          return api::SubscriberState::wrap(std::move(*made), state_->name());
                        });
}

// --- Statistics

bool Broadcast::has_space() const noexcept {
  return api::number_of_publisher(state_.get(),
                                  [](const Publisher& publisher) { return publisher.ring()->has_space() ? 1u : 0u; });
}
Status Broadcast::wait_for_subscribers(std::size_t count, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) {
    return publisher.ring()->wait_for_readers(count, wait);
  });
}
Status Broadcast::wait_for_ack(std::uint64_t ticket, Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) {
    return publisher.wait_until_passed(ticket, wait);
  });
}
Status Broadcast::wait_for_all_ack(Timeout timeout, const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher& publisher, const WaitContext& wait) {
    return publisher.wait_until_passed(std::nullopt, wait);
  });
}
std::uint64_t Broadcast::pending_acks() const noexcept {
  return api::number_of_publisher(state_.get(), [](const Publisher& publisher) { return publisher.pending(); });
}
std::uint64_t Broadcast::capacity() const noexcept {
  return api::number_of_publisher(state_.get(),
                                  [](const Publisher& publisher) { return publisher.ring()->capacity(); });
}
Result<BroadcastStats> Broadcast::stats() const {
  return with_publisher(state_.get(), {}, {}, [](Publisher& publisher, const WaitContext&) -> Result<BroadcastStats> {
    const broadcast::Ring& ring = *publisher.ring();
    memory::poll_for_deaths(*ring.arena(), 0);
    return BroadcastStats{.put = ring.tail(),
                          .capacity = ring.capacity(),
                          .history = ring.history(),
                          .kept = ring.tail() - ring.oldest(),
                          .subscribers = ring.readers(),
                          .publishers = ring.publishers()};
  });
}

Result<NewArray> Broadcast::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                                      const std::stop_token& stop) const {
  return with_publisher(state_.get(), timeout, stop, [&](Publisher&, const WaitContext& wait) {
    return state_->arena->new_array(dtype, std::move(shape), wait);
  });
}

// --- Making and opening

Result<std::string> Broadcast::handle() const {
  return with_publisher(state_.get(), {}, {}, [&](Publisher& publisher, const WaitContext&) -> Result<std::string> {
    return state_->handle(publisher.ring()->block());
  });
}
Result<Broadcast> Broadcast::open(const std::string& handle) {
  return or_out_of_memory([&] { return BroadcastState::open(api::find_handle(handle)); });
}

void Broadcast::close() {
  if (state_ != nullptr) state_->close([](Publisher& publisher) { publisher.close(); });
}
void Broadcast::fail() {
  if (state_ != nullptr) state_->close([](Publisher& publisher) { publisher.close(memory::Failure::kNoExitCode); });
}
Status Broadcast::set_spin(std::chrono::nanoseconds spin) const {
  return api::set_spin(state_.get(), "Broadcast", spin);
}
std::chrono::nanoseconds Broadcast::spin() const noexcept {
  return api::spin_of(state_.get());
}
bool Broadcast::closed() const noexcept {
  return state_ == nullptr || state_->closed();
}

Broadcast make_broadcast(const BroadcastOptions& options) {
  if (options.on_peer_death != OnPeerDeath::kRaise && options.on_peer_death != OnPeerDeath::kWait) {
    throw BadResult(Error{Code::kInvalid, "on_peer_death of a Broadcast must be kRaise or kWait"});
  }
  const auto request = api::request_of(options, discovery::NamedKind::kBroadcast);
  return BroadcastState::make(request, broadcast::Options{.capacity = options.capacity,
                                                          .history = options.history,
                                                          .max_bytes = options.max_bytes,
                                                          .allow_pickle = request.allows_pickle(),
                                                          .waits = options.on_peer_death == OnPeerDeath::kWait ||
                                                                   options.keep_open != KeepOpen::kNo});
}

Result<Broadcast> open_broadcast(const std::string& name, Timeout timeout) {
  return BroadcastState::open_named(name, discovery::NamedKind::kBroadcast, timeout);
}

Result<Broadcast> ItemAs<Broadcast>::make(const Item& item) {
  return or_out_of_memory(
      [&] { return BroadcastState::open(api::find_item(item, "shmtree:Broadcast", "a Broadcast")); });
}

}  // namespace shmtree
