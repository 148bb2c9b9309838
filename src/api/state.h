// What the handles of the public API stand for. Thread safety: that of the handles, any call from any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "endpoint/loan.h"
#include "endpoint/names.h"
#include "endpoint/until.h"
#include "memory/deaths.h"
#include "platform/fork.h"
#include "platform/in_use.h"
#include "shmtree/pair.h"

namespace shmtree {

inline platform::WaitContext waiting(const Timeout& timeout, platform::WaitHooks* hooks = nullptr) {
  return platform::WaitContext{platform::Deadline::after(timeout), hooks};
}

inline Error closed_here(const char* end) {
  return Error{Code::kClosed, std::string("this ") + end + " was closed in this process, or moved from"};
}

namespace api {

using channel::Channel;
using channel::End;
using memory::Lease;

inline Error no_arena() {
  return Error{Code::kInvalid, "this Arena was moved from"};
}

// Memory handed out by new_array.
struct Loan {
  Lease lease;
  std::uint64_t bytes = 0;    // of the array
  endpoint::Claims claims{};  // under the arena's mutex
};

// Memory that a received message lies in, and that its Items keep.
struct Received {
  explicit Received(Lease of) noexcept : lease(std::move(of)) {}
  Lease lease;
  std::atomic<bool> may_go_back{false};  // taken and not acknowledged: it is not this process's to give away
  endpoint::Claims claims{};             // on addresses, in this block and those it refers to; under received_mutex()
};
platform::ForkSafeMutex& received_mutex() noexcept;

struct ArenaState {
  explicit ArenaState(std::shared_ptr<memory::Arena> made) : arena(std::move(made)) {}

  static Arena wrap(std::shared_ptr<memory::Arena> made) {
    return Arena(std::make_shared<ArenaState>(std::move(made)));
  }
  // Null for one that was moved from.
  static const std::shared_ptr<ArenaState>& of(const Arena& arena) noexcept { return arena.state_; }

  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, const platform::WaitContext& wait);
  // The loan that is the array [begin, begin + bytes), or null.
  std::shared_ptr<Loan> loan_at(const std::byte* begin, std::uint64_t bytes);
  // Whether it may go with `message`, which then has it until it is settled or withdrawn.
  bool lend(Loan& loan, const void* message);

  std::shared_ptr<memory::Arena> arena;
  platform::ForkSafeMutex mutex;
  std::map<const std::byte*, std::weak_ptr<Loan>> loans;  // by first byte
};

struct ChannelState {
  explicit ChannelState(std::nullptr_t) noexcept : end(End::kSending), closed(true) {}
  ChannelState(std::shared_ptr<ArenaState> of, std::shared_ptr<Channel> made, End which)
      : arena(std::move(of)), channel(std::move(made)), end(which), known(channel) {}
  ~ChannelState() { close(); }
  ChannelState(const ChannelState&) = delete;
  ChannelState& operator=(const ChannelState&) = delete;

  static Sender sender(std::shared_ptr<ChannelState> state) { return Sender(std::move(state)); }
  static Receiver receiver(std::shared_ptr<ChannelState> state) { return Receiver(std::move(state)); }

  // Joins the end; the state leaves it again.
  static Result<std::shared_ptr<ChannelState>> join(std::shared_ptr<ArenaState> arena, std::shared_ptr<Channel> channel,
                                                    End end, std::shared_ptr<endpoint::Name> name = nullptr) {
    auto state = std::make_shared<ChannelState>(std::move(arena), std::move(channel), end);
    state->name = std::move(name);
    state->closed = true;  // what can fail comes first, and what was not joined is not left
    Status joined = state->channel->join(end);
    if (!joined) return std::move(joined).error();
    state->closed = false;
    return state;
  }
  Result<std::string> handle() const;
  ChannelStats stats() const;
  // Both ends of a new channel, of a queue if it ends never. Throws BadResult.
  static std::pair<std::shared_ptr<ChannelState>, std::shared_ptr<ChannelState>> make(const PairOptions& options,
                                                                                      channel::Ending ending);
  // `of_queue`: of nothing else.
  static Result<std::shared_ptr<ChannelState>> open(const std::string& handle, End end, bool of_queue = false);
  static Result<std::shared_ptr<ChannelState>> open_named(const std::string& name, End end,
                                                          discovery::NamedKind kind = discovery::NamedKind::kChannel);
  void close() noexcept;
  // Lets go of what the calls need, unless some thread is in one: then the last of them does.
  void release() noexcept;

  // For a call that waits, within a Call.
  platform::WaitContext wait(const Timeout& timeout) { return waiting(timeout, &until_closed); }
  // What such a call says: that its end was closed, if that is what ended it.
  Error told(Error error) const {
    const bool closed_meanwhile = error.code == Code::kInterrupted && closed.load();
    return closed_meanwhile ? closed_here(end == End::kSending ? "sender" : "receiver") : std::move(error);
  }

  // An error for the next call that receives: items were received before it, which had to be handed over first.
  void defer(Error error) noexcept {
    const std::lock_guard guard(mutex);
    deferred = std::move(error);
    has_deferred.store(true, std::memory_order_relaxed);
  }
  std::optional<Error> take_deferred() noexcept {
    if (!has_deferred.load(std::memory_order_relaxed)) return std::nullopt;
    const std::lock_guard guard(mutex);
    has_deferred.store(false, std::memory_order_relaxed);
    return std::exchange(deferred, std::nullopt);
  }

  // Until release(); in a Call:
  std::shared_ptr<ArenaState> arena;
  std::shared_ptr<Channel> channel;
  End end;
  std::shared_ptr<endpoint::Name> name{};  // this process's part in the channel's name, if it has one
  std::weak_ptr<Channel> known;            // the channel, for as long as this process has it
  std::atomic<bool> closed{false};
  endpoint::UntilClosed until_closed{closed};
  platform::ForkSafeMutex releasing;
  std::atomic<bool> has_deferred{false};
  platform::ForkSafeMutex mutex;
  std::optional<Error> deferred{};  // under mutex
};

// A call of an end. What is closed meanwhile is there to the end of it.
class Call {
 public:
  explicit Call(ChannelState& state) noexcept : state_(state), use_(std::in_place, &state) {}
  ~Call() {
    use_.reset();
    if (state_.closed.load(std::memory_order_relaxed)) [[unlikely]]
      state_.release();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  bool closed() const noexcept { return state_.closed.load(std::memory_order_acquire); }
  // The channel also of an end that is closed, while this process has it. Of one that is open no reference is taken:
  // the call keeps it, and forked children of a process that waits in it would never give the reference back.
  std::shared_ptr<Channel> any_channel() const noexcept {
    if (closed()) return state_.known.lock();
    return {std::shared_ptr<Channel>(), state_.channel.get()};
  }

 private:
  ChannelState& state_;
  std::optional<platform::InUse> use_;
};

// `act` in a call of an end that is open.
template <class Act>
auto with_open(ChannelState& state, const char* end, Act act) -> decltype(act()) {
  const Call call(state);
  return or_out_of_memory([&]() -> decltype(act()) {
    if (call.closed()) return closed_here(end);
    return act();
  });
}

// `act` with a wait that `stop` ends as well; the channel is there as long as that may wake it.
template <class Act>
auto until_stopped(ChannelState& state, const char* end, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(platform::WaitContext{})) {
  return with_open(state, end, [&] {
    endpoint::OrStopped<endpoint::UntilClosed> until(stop, state.channel.get(), state.closed);
    return act(waiting(timeout, &until));
  });
}

}  // namespace api
}  // namespace shmtree
