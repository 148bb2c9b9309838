// Implements Client and Pending.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "api/receiving.h"
#include "api/service_state.h"
#include "discovery/handle.h"
#include "endpoint/channels.h"
#include "endpoint/receive.h"
#include "platform/clock.h"
#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"
#include "platform/weak_registry.h"
#include "service/reply_line.h"
#include "service/wire.h"

namespace shmtree {

using api::ChannelState;
using api::ReplyReceiver;
using channel::End;
using platform::Deadline;
using platform::WaitContext;
using service::ReplyLine;

struct Pending::State {
  ~State();

  std::shared_ptr<ReplyReceiver> line;
  std::shared_ptr<const void> client{};  // Keeps the client open.
  std::int64_t number = 0;
  std::optional<Result<Item>> result{};  // Under the mutex of the line.
};

namespace api {

// The reply channel of a client, and the requests that wait for its replies. Of the threads that wait, one receives for
// all; the others sleep until it has their reply, or has its own.
//
// Invariants: `is_receiving_` is true while a thread receives; only that thread uses the channel's receiving end.
// Belongs to the process that made it: a forked child uses nothing of it but close_in_child(), because another thread
// may have held the mutex.
class ReplyReceiver {
 public:
  using Waiting = std::shared_ptr<Pending::State>;

  static Result<std::shared_ptr<ReplyReceiver>> open(const std::shared_ptr<Channel>& requests, const Arena& arena,
                                                     ReplyLine::Mode mode) {
    PairOptions options{.capacity = 0, .on_peer_death = OnPeerDeath::kEach};
    options.arena = arena;
    options.allow_pickle = requests->allows_pickle();
    options.keep_open = true;
    try {
      auto [sending, receiving] = ChannelState::make(options, discovery::NamedKind::kChannel);
      sending->close();
      auto made = std::make_shared<ReplyReceiver>(requests, std::move(receiving), mode);
      return all().insert(made, [](const ReplyReceiver&) { return false; });
    } catch (const BadResult& failed) {
      return failed.error();
    }
  }
  ReplyReceiver(const std::shared_ptr<Channel>& requests, std::shared_ptr<ChannelState> replies, ReplyLine::Mode mode)
      : line(requests, replies->channel().shared_from_this(), mode), replies_(std::move(replies)) {
    discovery::Handle made = discovery::handle_of(*replies_->arena->arena);
    made.block = memory::pack(replies_->channel().block());
    handle = discovery::encode(made);
  }

  ~ReplyReceiver() { all().erase(this); }
  ReplyReceiver(const ReplyReceiver&) = delete;
  ReplyReceiver& operator=(const ReplyReceiver&) = delete;
  // Returns all receivers of this process.
  static platform::WeakRegistry<ReplyReceiver>& all() noexcept {
    return platform::never_destroyed<platform::WeakRegistry<ReplyReceiver>>();
  }

  bool is_ours() const noexcept { return pid_ == platform::process_id(); }
  // Leaves the reply channels of the parent in a forked child. Keeps the objects: to destroy a condition variable for
  // which threads of the parent wait would block.
  static void leave_in_child() noexcept {
    auto& kept = platform::never_destroyed<std::vector<std::shared_ptr<ReplyReceiver>>>();
    for (auto& each : all().all()) {
      if (each->is_ours()) continue;
      each->replies_->close();
      try {
        kept.push_back(std::move(each));
      } catch (const std::bad_alloc&) {
      }
    }
  }

  // Registers a request. Returns null if the line has ended.
  static Waiting add(const std::shared_ptr<ReplyReceiver>& to, std::int64_t serve_by_ns) {
    auto waiting = std::make_shared<Pending::State>();
    const std::lock_guard guard(to->mutex_);
    const auto number = to->line.add(serve_by_ns);
    if (!number) return nullptr;
    waiting->number = *number;
    to->pending_.emplace(*number, waiting);
    waiting->line = to;
    return waiting;
  }
  void forget(std::int64_t number) noexcept {
    line.remove(number);
    const std::lock_guard guard(mutex_);
    pending_.erase(number);
  }
  void note_sent(std::int64_t number, std::uint64_t ticket, std::uint32_t deaths) {
    complete(line.note_sent(number, ticket, deaths), nullptr);
  }
  // Fails every request with `why`.
  void end(const Error& why) {
    for (const std::int64_t number : line.end()) finish(number, why);
    replies_->close();
    changed_.notify_all();
  }

  // Waits for the reply. nullopt after the deadline.
  std::optional<Result<Item>> wait(const Pending::State& waiting, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    for (bool has_tried = false; !waiting.result; has_tried = true) {
      if (has_tried && deadline.passed()) return std::nullopt;
      if (is_receiving_) {
        changed_.wait_for(lock, std::chrono::nanoseconds(std::max<std::int64_t>(deadline.remaining_ns(kSliceNs), 0)));
        continue;
      }
      is_receiving_ = true;
      lock.unlock();
      receive(std::max<std::int64_t>(deadline.remaining_ns(service::kTickNs), 0));
      lock.lock();
      is_receiving_ = false;
      changed_.notify_all();
    }
    return waiting.result;
  }
  bool is_done(const Pending::State& waiting) { return wait(waiting, Deadline::immediate()).has_value(); }

  Result<int> fileno() const {
    return with_open(*replies_, "client", [this] { return replies_->channel().watchers().poll_fd(End::kReceiving); });
  }

  ReplyLine line;
  std::string handle;  // Bytes of the handle, for the header of a request.

 private:
  static constexpr int kBatch = 256;
  static constexpr std::int64_t kSliceNs = 1'000'000'000;

  // The codec with which endpoint::receive() delivers replies. A reply that cannot be decoded fails its request.
  class Codec {
   public:
    using Object = Status;
    explicit Codec(ReplyReceiver& to) noexcept : to_(to) {}
    Status decode(Channel& channel, channel::Incoming& message, bool* may_retry) {
      const auto number = service::reply_number(message.frame());
      Result<Item> item = or_out_of_memory([&] { return to_item(*channel.arena(), message); });
      *may_retry =
          !item && may_retry_after(item.error(), message) && message.failed_builds() < channel::kMaxFailedBuilds;
      ++received_;
      if (*may_retry) return std::move(item).error();
      if (number && !(item && is_part(*item))) to_.finish(*number, item ? result_of(*item) : std::move(item));
      return success();
    }
    Status failed(Error error) const { return error; }
    bool wants_more() const noexcept { return received_ < kBatch; }
    void add(const Status&) const noexcept {}
    void defer(Error error) { after = std::move(error); }
    void defer(const Status&, bool) const noexcept {}

    std::optional<Error> after{};  // Ended the batch.

   private:
    ReplyReceiver& to_;
    int received_ = 0;
  };

  // Receives the replies that arrive within the time, and checks for live servers once per tick.
  void receive(std::int64_t wait_ns) noexcept {
    Status done = or_out_of_memory([&] {
      Status received = receive_batch(wait_ns);
      if (!received && received.code() == Code::kPeerDied) lose_servers(received.error());
      const std::int64_t now = platform::monotonic_ns();
      if (now - last_check_ns_ < service::kTickNs || line.count() == 0) return success();
      last_check_ns_ = now;
      ReplyLine::Checked checked = line.check();
      const Error* const death = checked.death ? &*checked.death : nullptr;
      complete(checked.lost, death);
      if (checked.is_over) lose_all(death);
      return success();
    });
    if (!done) platform::pause_briefly();  // No memory: the caller tries again.
  }
  // kEmpty, kClosed, kPeerDied, kOutOfSharedMemory.
  Status receive_batch(std::int64_t wait_ns) {
    return with_waits(*replies_, "client", std::chrono::nanoseconds(wait_ns), {}, [&](const WaitContext& wait) {
      Codec codec(*this);
      const Spare spare;
      Status first = endpoint::receive(codec, replies_->channel(), *spare, wait);
      if (!first) return first;
      if (*spare == nullptr) *spare = std::make_unique<channel::Received>();
      endpoint::receive_rest(codec, replies_->channel(), *spare);
      return codec.after ? Status(*std::move(codec.after)) : success();
    });
  }
  void lose_servers(const Error& death) {
    if (!line.waits()) return lose_all(&death);
    line.count_death();
    drain();
    complete(line.lose_begun(), &death);
  }
  void lose_all(const Error* death) {
    drain();
    replies_->close();  // A server that has not begun a request cannot begin it any more.
    complete(line.lose_all(), death);
  }
  // Receives the replies from before a death.
  void drain() {
    for (;;) {
      Status received = receive_batch(0);
      if (received) continue;
      if (received.code() != Code::kPeerDied) return;
      line.count_death();
    }
  }

  void complete(const std::vector<service::Lost>& lost, const Error* death) {
    for (const service::Lost& each : lost) finish(each.number, service::lost_error(death, each.loss));
    if (!lost.empty()) changed_.notify_all();
  }
  // Returns true for one of several results. A call returns only the last one.
  static bool is_part(const Item& reply) {
    const Item outcome = reply.at(0).at(1);
    return outcome.kind() == Kind::kStr && outcome.as<std::string>() == "part";
  }
  // `reply`: a message for which reply_number() has found a number.
  static Result<Item> result_of(const Item& reply) {
    const Item outcome = reply.at(0).at(1), value = reply.at(1);
    if (outcome.kind() == Kind::kTrue || outcome.kind() == Kind::kStr) return value;
    Error error{.code = Code::kRemoteError, .message = "the server failed the request"};
    error.dropped = outcome.is_none();
    if (const auto texts = value.try_as<std::pair<std::string, std::string>>()) {
      error.kind = texts->first;
      error.message = (error.kind.empty() ? "" : error.kind + ": ") + texts->second;
    }
    return error;
  }
  void finish(std::int64_t number, Result<Item> result) {
    line.remove(number);
    Waiting waiting;  // Released outside the mutex.
    const std::lock_guard guard(mutex_);
    const auto at = pending_.find(number);
    if (at == pending_.end()) return;
    waiting = at->second.lock();
    pending_.erase(at);
    if (waiting != nullptr) waiting->result = std::move(result);
  }

  const std::shared_ptr<ChannelState> replies_;
  const int pid_ = platform::process_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_receiving_ = false;                                                // Under mutex_.
  std::unordered_map<std::int64_t, std::weak_ptr<Pending::State>> pending_;  // By number. Under mutex_.
  std::int64_t last_check_ns_ = platform::monotonic_ns();                    // Only the receiving thread uses it.
};

}  // namespace api

namespace {

[[maybe_unused]] const bool kLeavesInChild = [] {
  static constinit platform::ForkHandlers handlers{.last = ReplyReceiver::leave_in_child};
  platform::add_fork_handlers(handlers);
  return true;
}();

Error asked_by_parent() {
  return Error{Code::kInvalid, "the parent of this process sent this request, and gets the reply"};
}

std::string seconds(const Timeout& timeout) {
  std::string text(32, '\0');
  const double s = timeout ? std::chrono::duration<double>(*timeout).count() : 0;
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%g s", s)));
  return text;
}

// Returns the time on the monotonic clock, or kForeverNs without a timeout.
std::int64_t time_after(const Timeout& timeout) noexcept {
  const std::int64_t now = platform::monotonic_ns();
  return timeout && timeout->count() < service::kForeverNs - now ? now + timeout->count() : service::kForeverNs;
}
Timeout time_until(std::int64_t at_ns) noexcept {
  if (at_ns == service::kForeverNs) return std::nullopt;
  return std::chrono::nanoseconds(std::max<std::int64_t>(at_ns - platform::monotonic_ns(), 0));
}

}  // namespace

Pending::State::~State() {
  if (line != nullptr && line->is_ours()) line->forget(number);
}

Result<Item> Pending::get(Timeout timeout) const {
  return or_out_of_memory([&]() -> Result<Item> {
    if (state_ == nullptr) return Error{Code::kInvalid, "this Pending was moved from"};
    if (!state_->line->is_ours()) return asked_by_parent();
    auto result = state_->line->wait(*state_, Deadline::after(timeout));
    if (!result) return Error{Code::kTimeout, "no reply within " + seconds(timeout)};
    return *std::move(result);
  });
}

bool Pending::done() const {
  return state_ == nullptr || !state_->line->is_ours() || state_->line->is_done(*state_);
}

struct Client::State {
  State(std::shared_ptr<ChannelState> of, std::optional<Arena> given)
      : requests(std::move(of)), sender(ChannelState::handle_to<Sender>(requests)), arena(std::move(given)) {}
  ~State() {
    if (pid == platform::process_id()) close();
  }

  static Result<Client> made(Result<std::shared_ptr<ChannelState>> requests, const ClientOptions& options) {
    if (!requests) return std::move(requests).error();
    return Client(std::make_shared<State>(std::move(*requests), options.arena));
  }

  // Returns the line for requests that wait for the next server, or for those that do not.
  Result<std::shared_ptr<ReplyReceiver>> line_for(bool waits) {
    std::shared_ptr<ReplyReceiver>& line = lines[waits];
    std::optional<Arena> used;
    {
      const std::lock_guard guard(mutex);
      if (is_closed) return closed_here("client");
      if (std::exchange(pid, platform::process_id()) != platform::process_id()) arena.reset();
      if (line != nullptr && line->is_ours() && !line->line.ended()) return line;
      used = arena;
    }
    if (!used) {
      auto own = Arena::create();
      if (!own) return std::move(own).error();
      used = std::move(*own);
    }
    auto opened = ReplyReceiver::open(channel(), *used, waits ? ReplyLine::Mode::kWaits : ReplyLine::Mode::kEnds);
    if (!opened) return opened;
    const std::lock_guard guard(mutex);
    if (is_closed) return closed_here("client");
    if (line != nullptr && line->is_ours() && !line->line.ended()) return line;  // Another thread was faster.
    arena = std::move(used);
    line.swap(*opened);
    return line;
  }

  // Sends a request. `room`: time to wait for space.
  // `reply_by_ns`: servers drop the request after that. `serve_by_ns`: the request waits for a server until then, also
  // if the service does not wait; nullopt: it does not.
  Result<ReplyReceiver::Waiting> submit(Value value, const Timeout& room, std::int64_t reply_by_ns,
                                        std::optional<std::int64_t> serve_by_ns) {
    const bool waits = channel()->waits_for_receivers();
    ReplyReceiver::Waiting waiting;
    while (waiting == nullptr) {
      auto line = line_for(waits || serve_by_ns);
      if (!line) return std::move(line).error();
      waiting = ReplyReceiver::add(*line, waits ? service::kForeverNs : serve_by_ns.value_or(service::kForeverNs));
    }
    ReplyReceiver& line = *waiting->line;
    std::vector<Value> header;
    header.reserve(3);
    header.emplace_back(Bytes{line.handle});
    header.emplace_back(waiting->number);
    if (reply_by_ns == service::kForeverNs) {
      header.emplace_back(nullptr);
    } else {
      header.emplace_back(static_cast<double>(reply_by_ns) * 1e-9);
    }
    const std::uint32_t deaths = line.line.deaths();
    auto ticket = sender.put(api::with_header(std::move(header), std::move(value)), room);
    if (ticket) {
      line.note_sent(waiting->number, *ticket, deaths);
      return waiting;
    }
    if (ticket.code() != Code::kClosed) return std::move(ticket).error();
    if (requests->is_closed()) return closed_here("client");
    return service::lost_error(nullptr, service::Loss::kNotDone);
  }

  Result<Item> call_once(Value value, const Timeout& timeout, std::int64_t reply_by_ns,
                         std::optional<std::int64_t> serve_by_ns) {
    auto waiting = submit(std::move(value), time_until(reply_by_ns), reply_by_ns, serve_by_ns);
    if (!waiting && waiting.code() == Code::kFull) {
      return Error{Code::kTimeout, "the service had no space for the request within " + seconds(timeout)};
    }
    if (!waiting) return std::move(waiting).error();
    ReplyReceiver& line = *(*waiting)->line;
    auto result = line.wait(**waiting, Deadline::after(time_until(reply_by_ns)));
    if (!result) return Error{Code::kTimeout, "no reply within " + seconds(timeout)};
    return *std::move(result);
  }

  void close() noexcept {
    std::array<std::shared_ptr<ReplyReceiver>, 2> ended;
    {
      const std::lock_guard guard(mutex);
      is_closed = true;
      ended.swap(lines);
    }
    for (const auto& line : ended) {
      if (line == nullptr || !line->is_ours()) continue;
      try {
        line->end(Error{Code::kClosed, "this client is closed"});
      } catch (const std::bad_alloc&) {  // The waits end all the same, since the channel is closed.
      }
    }
    requests->close();
  }

  std::shared_ptr<channel::Channel> channel() const { return requests->known_channel(); }

  const std::shared_ptr<ChannelState> requests;
  const Sender sender;
  platform::ForkSafeMutex mutex{};
  std::array<std::shared_ptr<ReplyReceiver>, 2> lines{};  // By whether they wait. Under mutex, like the rest.
  std::optional<Arena> arena;
  int pid = platform::process_id();  // The process to which `arena` belongs.
  bool is_closed = false;
};

Result<Client> Client::open(const std::string& name, const ClientOptions& options) {
  return or_out_of_memory([&] {
    return State::made(ChannelState::open_named(name, End::kSending, options.timeout, discovery::NamedKind::kChannel,
                                                api::ChannelKind::kRequests),
                       options);
  });
}
Result<Client> Client::open(const Service& service, const ClientOptions& options) {
  if (service.closed()) return closed_here("service");
  return or_out_of_memory([&]() -> Result<Client> {
    ChannelState& of = *service.state_->sending;
    const endpoint::Call call(of);
    const auto channel = of.known_channel();
    if (channel == nullptr) return closed_here("service");
    auto arena = api::ArenaState::for_arena(channel->arena());
    return State::made(
        ChannelState::join(std::move(arena), channel, End::kSending, of.name(), api::ChannelKind::kRequests), options);
  });
}
Result<Client> Client::open_handle(const std::string& handle, const ClientOptions& options) {
  return or_out_of_memory([&] {
    return State::made(ChannelState::open(handle, End::kSending, false, api::ChannelKind::kRequests), options);
  });
}

Result<Item> Client::call(Value value, Timeout timeout, Timeout retry) const {
  if (state_ == nullptr) return closed_here("client");
  return or_out_of_memory([&]() -> Result<Item> {
    const std::int64_t reply_by_ns = time_after(timeout);
    std::optional<std::int64_t> serve_by_ns;
    if (!retry || retry->count() > 0) serve_by_ns = std::min(time_after(retry), reply_by_ns);
    if (!serve_by_ns) return state_->call_once(std::move(value), timeout, reply_by_ns, serve_by_ns);
    for (;;) {
      Result<Item> result = state_->call_once(value, timeout, reply_by_ns, serve_by_ns);
      const bool may_repeat = !result && (result.code() == Code::kPeerDied ||
                                          (result.code() == Code::kRemoteError && result.error().dropped));
      const std::int64_t left_ns = may_repeat ? *serve_by_ns - platform::monotonic_ns() : 0;
      if (left_ns <= 0) return result;
      // A server may drop each attempt.
      platform::sleep_ns(std::min(service::kTickNs, left_ns));
      state_->sender.wait_for_receivers(1, time_until(*serve_by_ns)).ok();
    }
  });
}

Result<Pending> Client::submit(Value value, Timeout timeout) const {
  if (state_ == nullptr) return closed_here("client");
  return or_out_of_memory([&]() -> Result<Pending> {
    auto waiting = state_->submit(std::move(value), timeout, service::kForeverNs, std::nullopt);
    if (!waiting) return std::move(waiting).error();
    (*waiting)->client = state_;
    return Pending(std::move(*waiting));
  });
}

Result<int> Client::fileno() const {
  if (state_ == nullptr) return closed_here("client");
  return or_out_of_memory([&]() -> Result<int> {
    auto line = state_->line_for(state_->channel()->waits_for_receivers());
    if (!line) return std::move(line).error();
    return (*line)->fileno();
  });
}
Result<ChannelStats> Client::stats() const {
  if (state_ == nullptr) return closed_here("client");
  return state_->sender.stats();
}
void Client::close() {
  if (state_ != nullptr) state_->close();
}
bool Client::closed() const noexcept {
  return state_ == nullptr || state_->requests->is_closed();
}

}  // namespace shmtree
