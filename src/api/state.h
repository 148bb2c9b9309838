// State behind the handles of the public API. Thread safety: any call from any thread, like the handles.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "discovery/handle.h"
#include "endpoint/loan.h"
#include "endpoint/shared_objects.h"
#include "endpoint/until.h"
#include "memory/arena.h"
#include "platform/fork.h"
#include "platform/weak_registry.h"
#include "shmtree/pair.h"

namespace shmtree {

inline platform::WaitContext waiting(const Timeout& timeout, platform::WaitHooks* hooks = nullptr,
                                     platform::SpinSetting* spin = nullptr) {
  return platform::WaitContext{platform::Deadline::after(timeout), hooks, spin};
}

inline Error closed_here(const char* end) {
  return Error{Code::kClosed, std::string("this ") + end + " was closed in this process or moved from"};
}
// Does the same for a call that ended with the error `ended` because of the close.
inline Error closed_here(const char* end, const Error& ended) {
  Error error = closed_here(end);
  error.completed = ended.completed;
  return error;
}

namespace api {

using channel::Channel;
using channel::End;
using endpoint::Call;
using memory::Lease;

inline Error no_arena() {
  return Error{Code::kInvalid, "this Arena was moved from"};
}

// Returns the handle, in hexadecimal, of a block (packed) that this process holds. The block is in transit from now on.
Result<std::string> give_handle(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                const endpoint::Name* name);
// Decodes the text of a handle. Returns kInvalid for any other text.
Result<std::vector<std::byte>> handle_bytes(const std::string& text);

// Memory that new_array() has allocated.
struct Loan {
  Lease lease;
  std::uint64_t bytes = 0;    // Size of the array.
  endpoint::Claims claims{};  // Under the arena's mutex.
};

// Returns the error for an option with a value that is not an enumerator.
template <class Enum>
Error no_enumerator(const char* option, Enum value) {
  return Error{Code::kInvalid, std::string(option) + " is " + std::to_string(static_cast<int>(value)) +
                                   ", which is not a value of its enum"};
}

// Memory of a received message. Its Items keep it alive.
struct Received {
  explicit Received(Lease of) noexcept : lease(std::move(of)) {}
  Lease lease;
  // True for a message that was taken and not acked. It may return to the channel, so this process must not give it
  // away.
  std::atomic<bool> may_be_nacked{false};
  endpoint::Claims claims{};  // On addresses in this block and those to which it refers. Under received_mutex().
};
platform::ForkSafeMutex& received_mutex() noexcept;

struct ArenaState {
  explicit ArenaState(std::shared_ptr<memory::Arena> made) : arena(std::move(made)) {}
  ~ArenaState();
  ArenaState(const ArenaState&) = delete;
  ArenaState& operator=(const ArenaState&) = delete;

  // Returns this process's state of an arena. All handles of the arena share it, because it tracks the loans.
  static std::shared_ptr<ArenaState> for_arena(const std::shared_ptr<memory::Arena>& arena);
  static Arena wrap(const std::shared_ptr<memory::Arena>& made) { return Arena(for_arena(made)); }
  // Null for a moved-from Arena.
  static const std::shared_ptr<ArenaState>& of(const Arena& arena) noexcept { return arena.state_; }

  Result<NewArray> new_array(DType dtype, std::vector<std::int64_t> shape, const platform::WaitContext& wait);
  // Returns the loan of exactly the array [begin, begin + bytes), or null.
  std::shared_ptr<Loan> loan_at(const std::byte* begin, std::uint64_t bytes);
  // Returns true if `message` may take the array by reference, and promises the array to the message until the message
  // is settled or withdrawn.
  bool lend(Loan& loan, const void* message);

  const std::shared_ptr<memory::Arena> arena;
  platform::ForkSafeMutex mutex;
  std::map<const std::byte*, std::weak_ptr<Loan>> loans;  // Keyed by the address of the first byte.
};

// Returns the name in an option, for which an empty text means no name.
inline std::optional<std::string> name_in(const std::string& option) {
  return option.empty() ? std::nullopt : std::optional(option);
}

// Returns the request for an object of a kind with these options. Throws BadResult.
template <class Options>
endpoint::ObjectRequest request_of(const Options& options, discovery::NamedKind kind) try {
  endpoint::ObjectRequest request{.kind = kind, .name = name_in(options.name)};
  request.allow_pickle = options.allow_pickle;
  request.exist_ok = options.exist_ok;
  // A process that opens a name can access its whole arena. So the arena of a named object contains no other objects,
  // unless the caller passed the arena.
  if (options.arena || !request.name) {
    const auto arena = ArenaState::of(options.arena ? *options.arena : Arena::shared().value());
    if (arena == nullptr) throw BadResult(no_arena());
    request.arena = arena->arena;
  }
  return request;
} catch (const std::bad_alloc&) {
  throw BadResult(out_of_memory());
}

// Holds an error for the next call, because the items received before it had to be returned first.
class Deferred {
 public:
  void defer(Error error) noexcept {
    const std::lock_guard guard(mutex_);
    error_ = std::move(error);
    has_deferred_.store(true, std::memory_order_relaxed);
  }
  std::optional<Error> take_deferred() noexcept {
    if (!has_deferred()) return std::nullopt;
    const std::lock_guard guard(mutex_);
    has_deferred_.store(false, std::memory_order_relaxed);
    return std::exchange(error_, std::nullopt);
  }
  bool has_deferred() const noexcept { return has_deferred_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> has_deferred_{false};
  platform::ForkSafeMutex mutex_;
  std::optional<Error> error_{};  // Under mutex_.
};

// Content of a channel: messages of a pair or queue, or requests of a Service, into which only clients put.
enum class ChannelKind : std::uint8_t { kMessages, kRequests };

struct ChannelState final : endpoint::Port, Deferred {
  ChannelState(ArenaState* of, End which) noexcept : arena(of), end(which) {}
  ~ChannelState();
  // Returns all channel states of this process.
  static platform::WeakRegistry<ChannelState>& all() noexcept;

  template <class Handle>  // A Sender or a Receiver.
  static Handle handle_to(std::shared_ptr<ChannelState> state) {
    return Handle(std::move(state));
  }
  // Calls `open`, and makes a handle of its result.
  template <class Handle, class Open>
  static Result<Handle> made(Open open) {
    auto state = or_out_of_memory(open);
    if (!state) return std::move(state).error();
    return Handle(std::move(*state));
  }

  // `kind`: returns kInvalid for any other kind of channel.
  static Result<std::shared_ptr<ChannelState>> join(std::shared_ptr<ArenaState> arena, std::shared_ptr<Channel> channel,
                                                    End end, std::shared_ptr<endpoint::Name> name = nullptr,
                                                    ChannelKind kind = ChannelKind::kMessages) {
    if (channel->takes_requests() != (kind == ChannelKind::kRequests)) {
      return Error{Code::kInvalid, channel->takes_requests()
                                       ? "this is the channel of a Service, which takes requests of a shmtree::Client"
                                       : "this is not the channel of a Service"};
    }
    auto state = std::make_shared<ChannelState>(arena.get(), end);
    state->spin.set_as(channel->arena()->spin());
    Status joined = state->attach(std::move(channel), {end}, std::move(name), std::move(arena));
    if (!joined) return std::move(joined).error();
    return all().insert(state, [](const ChannelState&) { return false; });
  }
  Result<std::string> handle() const;
  ChannelStats stats() const;
  // Makes a channel, or opens the existing one (exist_ok), and joins both ends. Throws BadResult.
  static std::pair<std::shared_ptr<ChannelState>, std::shared_ptr<ChannelState>> make(
      const PairOptions& options, discovery::NamedKind kind, ChannelKind of = ChannelKind::kMessages);
  // Accepts only the handle of a queue if `of_queue` is true, and only the handle of an end of a pair otherwise.
  static Result<std::shared_ptr<ChannelState>> open(const std::string& handle, End end, bool of_queue = false,
                                                    ChannelKind of = ChannelKind::kMessages);
  // Does the same with the bytes of a handle, as in a message.
  static Result<std::shared_ptr<ChannelState>> open_bytes(std::span<const std::byte> handle, End end, bool of_queue,
                                                          ChannelKind of = ChannelKind::kMessages);
  // Opens the end in a message from Python, with the class `name`.
  static Result<std::shared_ptr<ChannelState>> open_item(const Item& item, std::string_view name, End end,
                                                         bool of_queue = false);
  static Result<std::shared_ptr<ChannelState>> open_named(const std::string& name, End end, const Timeout& timeout,
                                                          discovery::NamedKind kind = discovery::NamedKind::kChannel,
                                                          ChannelKind of = ChannelKind::kMessages);
  void close() noexcept { Port::close(end); }
  bool is_closed() const noexcept { return closed(end); }
  // Attaches an end that is not attached. Call it within a Call. Returns kClosed if the end is closed, or if the stream
  // has ended in the meantime.
  Status begin_use(const char* name) {
    if (is_closed()) return closed_here(name);
    return attach_again(end);
  }

  // Returns the wait of a call that blocks, within a Call.
  platform::WaitContext wait(const Timeout& timeout) { return waiting(timeout, &until_closed, &spin); }
  // Replaces the error of such a call by kClosed if the end was closed meanwhile.
  Error or_closed(Error error) const {
    const bool closed_meanwhile = error.code == Code::kInterrupted && is_closed();
    return closed_meanwhile ? closed_here(end == End::kSending ? "sender" : "receiver") : std::move(error);
  }
  template <class T>
  Result<T> or_closed(Result<T> result) const {
    if (!result) return or_closed(std::move(result).error());
    return result;
  }

  ArenaState* arena;  // Released together with the channel.
  End end;
  endpoint::UntilClosed until_closed{*this, end};
  platform::SpinSetting spin{};
};

// Returns act() if the end is open, within a Call.
template <class Act>
auto if_open(ChannelState& state, const char* end, Act act) -> decltype(act()) {
  return or_out_of_memory([&]() -> decltype(act()) {
    if (!state.is_attached(state.end)) [[unlikely]] {
      Status usable = state.begin_use(end);
      if (!usable) return std::move(usable).error();
    }
    return act();
  });
}

template <class Act>
auto with_open(ChannelState& state, const char* end, Act act) -> decltype(act()) {
  const Call call(state);
  return if_open(state, end, act);
}

// Calls act(wait) if the end is open, and returns its result. A request to stop also ends the wait: the stop callback
// wakes the waiters of the channel. The channel stays valid until the callback is removed. If another thread closes a
// sender during the call, the sender leaves the channel after the call.
template <class Act>
auto with_waits(ChannelState& state, const char* end, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(platform::WaitContext{})) {
  const Call call = state.end == End::kSending ? Call(state, End::kSending) : Call(state);
  return if_open(state, end, [&]() -> decltype(act(platform::WaitContext{})) {
    if (!stop.stop_possible()) return act(state.wait(timeout));
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return std::move(goes_on).error();
    endpoint::OrStopped<endpoint::UntilClosed> until(stop, &state.channel(), state, state.end);
    return act(waiting(timeout, &until, &state.spin));
  });
}

}  // namespace api
}  // namespace shmtree
