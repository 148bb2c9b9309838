// What the handles of the public API stand for. Thread safety: that of the handles, any call from any thread.
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
#include "endpoint/names.h"
#include "endpoint/until.h"
#include "memory/deaths.h"
#include "memory/weak_registry.h"
#include "platform/fork.h"
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
using endpoint::Call;
using memory::Lease;

inline Error no_arena() {
  return Error{Code::kInvalid, "this Arena was moved from"};
}

// Returns a text by which another process finds a block that this process holds (packed): its handle in hexadecimal.
// The block is in transit from now on.
Result<std::string> give_handle(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                const endpoint::Name* name);
// Returns the bytes of such a text; kInvalid for any other.
Result<std::vector<std::byte>> handle_bytes(const std::string& text);

// Memory handed out by new_array.
struct Loan {
  Lease lease;
  std::uint64_t bytes = 0;    // of the array
  endpoint::Claims claims{};  // under the arena's mutex
};

// Returns the error for an option whose value is not an enumerator of its enumeration.
template <class Enum>
Error no_enumerator(const char* option, Enum value) {
  return Error{Code::kInvalid,
               std::string(option) + " is " + std::to_string(static_cast<int>(value)) + ", which is not an enumerator"};
}

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
  ~ArenaState();
  ArenaState(const ArenaState&) = delete;
  ArenaState& operator=(const ArenaState&) = delete;

  // That of the arena in this process: whoever has it knows what was lent there.
  static std::shared_ptr<ArenaState> for_arena(const std::shared_ptr<memory::Arena>& arena);
  static Arena wrap(const std::shared_ptr<memory::Arena>& made) { return Arena(for_arena(made)); }
  // Null for one that was moved from.
  static const std::shared_ptr<ArenaState>& of(const Arena& arena) noexcept { return arena.state_; }

  Result<ArrayRef> new_array(DType dtype, std::vector<std::int64_t> shape, const platform::WaitContext& wait);
  // The loan that is the array [begin, begin + bytes), or null.
  std::shared_ptr<Loan> loan_at(const std::byte* begin, std::uint64_t bytes);
  // Whether it may go with `message`, which then has it until it is settled or withdrawn.
  bool lend(Loan& loan, const void* message);

  const std::shared_ptr<memory::Arena> arena;
  platform::ForkSafeMutex mutex;
  std::map<const std::byte*, std::weak_ptr<Loan>> loans;  // by first byte
};

// An error for the next call: items were received before it, which had to be handed over first.
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
  std::optional<Error> error_{};  // under mutex_
};

struct ChannelState final : endpoint::Port, Deferred {
  ChannelState(ArenaState* of, End which) noexcept : arena(of), end(which) {}
  ~ChannelState();
  // All that this process has.
  static memory::WeakRegistry<ChannelState>& all() noexcept;

  template <class Handle>  // a Sender, or a Receiver
  static Handle handle_to(std::shared_ptr<ChannelState> state) {
    return Handle(std::move(state));
  }
  // What open() opened.
  template <class Handle, class Open>
  static Result<Handle> made(Open open) {
    auto state = or_out_of_memory(open);
    if (!state) return std::move(state).error();
    return Handle(std::move(*state));
  }

  static Result<std::shared_ptr<ChannelState>> join(std::shared_ptr<ArenaState> arena, std::shared_ptr<Channel> channel,
                                                    End end, std::shared_ptr<endpoint::Name> name = nullptr) {
    auto state = std::make_shared<ChannelState>(arena.get(), end);
    Status joined = state->attach(std::move(channel), {end}, std::move(name), std::move(arena));
    if (!joined) return std::move(joined).error();
    return all().insert(state, [](const ChannelState&) { return false; });
  }
  Result<std::string> handle() const;
  ChannelStats stats() const;
  // Both ends of a channel that is made, or of the one there is. Throws BadResult.
  static std::pair<std::shared_ptr<ChannelState>, std::shared_ptr<ChannelState>> make(const PairOptions& options,
                                                                                      bool of_queue);
  // `of_queue`: of a queue and nothing else, or else of a pair.
  static Result<std::shared_ptr<ChannelState>> open(const std::string& handle, End end, bool of_queue = false);
  // The same of a handle as it is in a message.
  static Result<std::shared_ptr<ChannelState>> open_bytes(std::span<const std::byte> handle, End end, bool of_queue);
  // The end in a message of Python's, whose class is called `name` there.
  static Result<std::shared_ptr<ChannelState>> open_item(const Item& item, std::string_view name, End end,
                                                         bool of_queue = false);
  static Result<std::shared_ptr<ChannelState>> open_named(const std::string& name, End end, const Timeout& timeout,
                                                          discovery::NamedKind kind = discovery::NamedKind::kChannel);
  void close() noexcept { Port::close(end); }
  bool is_closed() const noexcept { return closed(end); }
  // Of an end that is not attached, in a Call: kClosed where it is closed, or the stream has ended without it.
  Status begin_use(const char* name) {
    if (is_closed()) return closed_here(name);
    return attach_again(end);
  }

  // For a call that waits, within a Call.
  platform::WaitContext wait(const Timeout& timeout) { return waiting(timeout, &until_closed); }
  // What such a call says: that its end was closed, if that is what ended it.
  Error told(Error error) const {
    const bool closed_meanwhile = error.code == Code::kInterrupted && is_closed();
    return closed_meanwhile ? closed_here(end == End::kSending ? "sender" : "receiver") : std::move(error);
  }
  template <class T>
  Result<T> told(Result<T> result) const {
    if (!result) return told(std::move(result).error());
    return result;
  }

  ArenaState* arena;  // as the channel
  End end;
  endpoint::UntilClosed until_closed{*this, end};
};

// `act` in a call of an end, if that is open.
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

// `act` with the waits of an open end. `stop` ends them as well, and costs nothing where nothing can stop it; the
// channel is there as long as it may wake it. A sender that is closed meanwhile leaves the channel afterwards.
template <class Act>
auto with_waits(ChannelState& state, const char* end, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(platform::WaitContext{})) {
  const Call call = state.end == End::kSending ? Call(state, End::kSending) : Call(state);
  return if_open(state, end, [&]() -> decltype(act(platform::WaitContext{})) {
    if (!stop.stop_possible()) return act(state.wait(timeout));
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return std::move(goes_on).error();
    endpoint::OrStopped<endpoint::UntilClosed> until(stop, &state.channel(), state, state.end);
    return act(waiting(timeout, &until));
  });
}

}  // namespace api
}  // namespace shmtree
