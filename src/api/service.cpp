// Implements Service and Request.
#include "shmtree/service.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "api/receiving.h"
#include "api/service_state.h"
#include "endpoint/receive.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/text.h"
#include "service/wire.h"

namespace shmtree {

using api::ChannelState;
using channel::End;
using platform::WaitContext;

using ServiceClient = service::Client<api::ReplySender>;

// Invariants: one call at a time answers a request: it takes `client` out of the state, under the mutex. A request that
// was not answered has the client.
struct Request::State {
  // `outcome`: see service/wire.h.
  Value message(Value outcome, Value content) const {
    std::vector<Value> header;
    header.reserve(2);
    header.emplace_back(number);
    header.push_back(std::move(outcome));
    return api::with_header(std::move(header), std::move(content));
  }
  static Status send(ServiceClient& to, const Value& message, const Timeout& timeout) {
    auto sent = to.send(timeout, [&](const Timeout& wait) { return to.sender.sender.put(message, wait); });
    if (sent) return success();
    if (sent.code() == Code::kClosed) return Error{Code::kClosed, "the client of this request is gone"};
    return std::move(sent).error();
  }
  // Takes the right to answer. kInvalid: a reply was sent, or another call is sending one. kClosed: the client has got
  // a failure. Also if a reply could not be sent.
  Result<std::shared_ptr<ServiceClient>> begin() {
    const std::lock_guard guard(mutex);
    if (client != nullptr) return std::exchange(client, nullptr);
    if (!over) return Error{Code::kInvalid, "this request was answered already; each request has one reply"};
    return Error{Code::kClosed, was_failed ? "this request has failed at the client"
                                           : "the reply to this request could not be sent before"};
  }
  // Sends the failure, shortened if there is no memory for it. If the client does not get it, the request stays
  // unanswered, so that the next call tries again.
  Status send_failure(std::shared_ptr<ServiceClient> to, std::string_view kind, std::string_view text,
                      const Timeout& timeout, Value outcome) {
    Status sent = or_out_of_memory([&] {
      return send(*to, message(outcome, Tuple{std::string(kind), std::string(text)}), timeout);
    });
    if (!sent && sent.code() != Code::kClosed && sent.code() != Code::kFull) {
      sent = or_out_of_memory([&] {
        return send(*to, message(outcome, Tuple{shortened(kind), shortened(text)}), timeout);
      });
    }
    const std::lock_guard guard(mutex);
    if (sent) {
      over = was_failed = true;
    } else {
      client = std::move(to);
    }
    return sent;
  }
  // A message with two such texts fits in a slot, so it needs no block.
  static std::string shortened(std::string_view text) {
    constexpr std::size_t kMax = 160;
    if (text.size() <= kMax) return std::string(text);
    std::string_view part = text.substr(0, kMax - 3);
    return std::string(part.substr(0, platform::utf8_prefix(part))) + "...";
  }
  void drop() noexcept {
    if (pid != platform::process_id()) return;
    auto to = begin();
    if (!to) return;
    const bool has_cause = !cause_text.empty();
    send_failure(std::move(*to), cause_kind,
                 has_cause ? cause_text : "the server dropped the request without an answer",
                 std::chrono::nanoseconds(0), has_cause ? Value(false) : Value(nullptr))
        .ok();
  }

  std::shared_ptr<ServiceClient> client;
  std::int64_t number;
  std::optional<double> deadline;
  Item value;
  int pid = platform::process_id();
  platform::ForkSafeMutex mutex{};
  bool over = false, was_failed = false;  // No reply was sent; the client has got a failure. Under mutex.
  std::string cause_kind{},
      cause_text{};  // The failure that could not be sent yet. Only the call that answers uses them.
};

Request::Request(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Request::Request(Request&& other) noexcept = default;
Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  if (state_ != nullptr) state_->drop();
  state_ = std::move(other.state_);
  return *this;
}
Request::~Request() {
  if (state_ != nullptr) state_->drop();
}

const Item& Request::value() const& noexcept {
  return state_ == nullptr ? platform::never_destroyed<Item>() : state_->value;
}

Status Request::reply(Value value, Timeout timeout) {
  return answer(true, std::move(value), timeout);
}

Status Request::end(Timeout timeout) {
  return answer("end", nullptr, timeout);
}

Status Request::stream(Value part, Timeout timeout) {
  return or_out_of_memory([&]() -> Status {
    if (state_ == nullptr) return Error{Code::kInvalid, "this request was moved from"};
    auto to = state_->begin();
    if (!to) return std::move(to).error();
    Status sent =
        or_out_of_memory([&] { return State::send(**to, state_->message("part", std::move(part)), timeout); });
    const std::lock_guard guard(state_->mutex);
    state_->client = std::move(*to);
    return sent;
  });
}

bool Request::cancelled() const {
  if (state_ == nullptr) return false;
  std::shared_ptr<ServiceClient> client;
  {
    const std::lock_guard guard(state_->mutex);
    client = state_->client;
  }
  return client != nullptr && (service::has_expired(state_->deadline) || !service::check_client(client->sender));
}

Status Request::answer(Value outcome, Value value, const Timeout& timeout) {
  return or_out_of_memory([&]() -> Status {
    if (state_ == nullptr) return Error{Code::kInvalid, "this request was moved from"};
    auto to = state_->begin();
    if (!to) return std::move(to).error();
    Status sent = or_out_of_memory(
        [&] { return State::send(**to, state_->message(std::move(outcome), std::move(value)), timeout); });
    if (sent) return sent;
    if (sent.code() == Code::kClosed || sent.code() == Code::kFull) {
      const std::lock_guard guard(state_->mutex);
      state_->over = true;
      return sent;
    }
    state_->cause_kind = name_of(sent.code());
    state_->cause_text = sent.error().message;
    state_->send_failure(std::move(*to), state_->cause_kind, state_->cause_text, std::chrono::nanoseconds(0), false)
        .ok();
    return sent;
  });
}

Status Request::fail(std::string_view text, std::string_view kind, Timeout timeout) {
  return or_out_of_memory([&]() -> Status {
    if (state_ == nullptr) return Error{Code::kInvalid, "this request was moved from"};
    if (!platform::is_text(text) || !platform::is_text(kind)) {
      return Error{Code::kInvalid, "the text or the kind of a failure is not UTF-8"};
    }
    auto to = state_->begin();
    if (!to) {
      if (to.code() == Code::kClosed && state_->was_failed) return success();
      return std::move(to).error();
    }
    if (state_->cause_text.empty()) {
      state_->cause_kind = kind;
      state_->cause_text = text;
    }
    return state_->send_failure(std::move(*to), state_->cause_kind, state_->cause_text, timeout, false);
  });
}

namespace {

Result<api::ReplySender> open_replies(const std::string& handle) {
  auto state = or_out_of_memory([&] {
    return ChannelState::open_bytes(std::as_bytes(std::span(handle.data(), handle.size())), End::kSending, false);
  });
  if (!state) return std::move(state).error();
  return api::ReplySender(std::move(*state));
}

}  // namespace

Result<Service> Service::create(const ServiceOptions& options) {
  return or_out_of_memory([&]() -> Result<Service> {
    if (options.keep_open == KeepOpen::kNo) {
      return Error{Code::kInvalid,
                   "keep_open is kNo; it must be kReceivers or kBoth: servers always wait for new clients"};
    }
    PairOptions made{.capacity = options.capacity, .max_bytes = options.max_bytes, .name = options.name};
    made.arena = options.arena;
    made.allow_pickle = options.allow_pickle;
    made.keep_open = options.keep_open;
    made.exist_ok = options.exist_ok && !options.name.empty();
    try {
      auto [sending, receiving] = ChannelState::make(made, discovery::NamedKind::kChannel, api::ChannelKind::kRequests);
      return Service(std::make_shared<State>(std::move(sending), std::move(receiving)));
    } catch (const BadResult& failed) {
      return failed.error();
    }
  });
}

// Answers a taken message that is a request. Returns nullopt if it is not, if its client is gone or waits no longer,
// and if it cannot be decoded; then the request fails. The message is acked only once its client would detect the death
// of this process. Until then, another server gets it if this one dies.
Result<std::optional<Request>> Service::begin(channel::Delivery& delivery) const {
  channel::Incoming& message = delivery.message();
  const auto find = [&](const service::RequestHeader& header) -> std::shared_ptr<ServiceClient> {
    return service::has_expired(header.deadline) ? nullptr : state_->clients.find(header.handle, open_replies);
  };
  const auto header = service::request_header(message.frame());
  Result<Item> item = or_out_of_memory([&] { return api::to_item(*state_->receiving->channel().arena(), message); });
  if (item) {
    message.set_built();
    message.drop();
  } else if (api::may_retry_after(item.error(), message) && message.failed_builds() < channel::kMaxFailedBuilds) {
    delivery.nack(WaitContext{}).ok();  // A server tries again.
    return std::optional<Request>();
  }
  const auto client = header ? find(*header) : nullptr;
  Status acked = delivery.ack(WaitContext{});
  if (!acked) return std::move(acked).error();
  if (client == nullptr) return std::optional<Request>();
  Request request(std::unique_ptr<Request::State>(
      new Request::State{client, header->number, header->deadline, item ? item->at(1) : Item()}));
  if (item) return std::optional(std::move(request));
  request.fail(item.error().message, name_of(item.code()), std::chrono::nanoseconds(0)).ok();
  return std::optional<Request>();
}

Result<Request> Service::get(Timeout timeout, const std::stop_token& stop) const {
  if (state_ == nullptr) return closed_here("service");
  ChannelState& receiving = *state_->receiving;
  return api::with_waits(receiving, "service", timeout, stop, [&](const WaitContext& wait) -> Result<Request> {
    for (;;) {
      auto delivery = receiving.channel().take(wait);
      if (!delivery) return receiving.or_closed(std::move(delivery).error());
      auto request = begin(*delivery);
      if (!request) return std::move(request).error();
      if (*request) return std::move(**request);
    }
  });
}

Result<std::vector<Request>> Service::get_many(std::size_t most, Timeout timeout, std::chrono::nanoseconds within,
                                               const std::stop_token& stop) const {
  return or_out_of_memory([&]() -> Result<std::vector<Request>> {
    if (most == 0) return Error{Code::kInvalid, "get_many() of 0 requests; ask for at least 1"};
    std::vector<Request> requests;
    requests.reserve(1);  // before a request is taken
    auto next = get(timeout, stop);
    if (!next) return std::move(next).error();
    const platform::Deadline deadline = platform::Deadline::after(within);
    while (next) {
      requests.push_back(std::move(*next));
      if (requests.size() == most || !api::has_space_for_one(requests)) break;
      next = get(std::chrono::nanoseconds(std::max<std::int64_t>(deadline.remaining_ns(), 0)), stop);
    }
    return requests;
  });
}

Result<int> Service::fileno() const {
  if (state_ == nullptr) return closed_here("service");
  return api::with_open(*state_->receiving, "service",
                        [this] { return state_->receiving->channel().watchers().poll_fd(End::kReceiving); });
}
Result<ChannelStats> Service::stats() const {
  if (state_ == nullptr) return closed_here("service");
  return api::with_open(*state_->receiving, "service",
                        [this]() -> Result<ChannelStats> { return state_->receiving->stats(); });
}
Result<std::string> Service::handle() const {
  if (state_ == nullptr) return closed_here("service");
  return api::with_open(*state_->sending, "service", [this] { return state_->sending->handle(); });
}
void Service::close() {
  if (state_ == nullptr) return;
  state_->receiving->close();
  state_->sending->close();
  state_->clients.clear();
}
bool Service::closed() const noexcept {
  return state_ == nullptr || state_->receiving->is_closed();
}

}  // namespace shmtree
