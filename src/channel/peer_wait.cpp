#include "channel/peer_wait.h"

#include <bitset>
#include <optional>
#include <utility>

#include "platform/clock.h"
#include "platform/wait_policy.h"

namespace shmtree::channel {

using namespace platform;
using memory::Participant;
using memory::WaitFor;

namespace {

// True if a call that waits for `peers` could get the end of the stream.
bool may_end(const Control& control, const Ends& ends, End peers) noexcept {
  return ends.can_end(peers) && !control.is_named() &&
         !(control.ending() == Ending::kWait && ends.has_killed_members(peers));
}

// Returns true if the channel has a message, or one that was taken and may return.
bool has_messages(const ChannelHeader& shared) noexcept {
  return load_seq_cst(shared.tail) != load_seq_cst(shared.head) || load_seq_cst(shared.returned) != 0 ||
         load_acquire(shared.taken) != 0;
}
bool has_space(const ChannelHeader& shared) noexcept {
  const std::uint64_t limit = load_acquire(shared.limit);
  const std::uint64_t queued = load_seq_cst(shared.tail) - load_seq_cst(shared.head);
  return limit == 0 || queued + load_acquire(shared.also_queued) < limit;
}

// One walk over the processes.
class Walk {
 public:
  // `threads` is the number of threads of this process.
  Walk(Arena& arena, Identity me, std::uint32_t threads) : arena_(arena), me_(me), threads_(threads) {}

  // Returns true if this call, and each call in which its possible peers wait, can never complete: the walk has found
  // no process that could end one of them. `peers` is the end for which this call waits.
  bool finds_deadlock(const Ends& ends, End peers) {
    if (!add_peers(ends, peers)) return false;
    add(memory::slot_of(me_));
    while (!waiting_.empty()) {
      const std::uint32_t slot = waiting_.back();
      waiting_.pop_back();
      if (!waits_for_ever(slot)) return false;
    }
    return true;
  }
  std::vector<Deadlock::Call>& calls() noexcept { return calls_; }
  const std::optional<Deadlock::Rank>& first() const noexcept { return first_; }

 private:
  void add(std::uint32_t slot) {
    if (met_.test(slot)) return;
    met_.set(slot);
    waiting_.push_back(slot);
  }
  bool add_peers(const Ends& ends, End peers) {
    if (ends.is_in_transit(peers)) return false;
    return ends.all_possible_users(peers, [this](std::uint32_t slot) { return add(slot), true; });
  }

  // True if every thread of the process is blocked indefinitely. The calling thread is awake, and counts as blocked.
  bool waits_for_ever(std::uint32_t slot) {
    const Participant& participant = arena_.participants().slot(slot);
    const Identity identity = memory::make_identity(slot, load_acquire(participant.generation));
    if (identity != me_ && !arena_.participants().is_alive(identity))
      return false;  // its death is about to be reported
    std::uint32_t threads = identity == me_ ? 1 : 0;
    for (std::uint32_t i = 0; i < memory::kMaxWaits; ++i) {
      const memory::Wait& wait = participant.waits[i];
      const std::uint32_t word = load_acquire(wait.what);
      if (word == static_cast<std::uint32_t>(WaitFor::kNothing)) continue;
      if ((word & memory::kWaitsForEver) == 0) return false;
      const std::uint64_t about = load_relaxed(wait.about);
      if (!is_hopeless(identity, memory::what_of_wait(word), about)) return false;
      calls_.push_back({identity, i, about, load_relaxed(wait.since_ns)});
      ++threads;
    }
    return threads != 0 && threads == (identity == me_ ? threads_ : load_acquire(participant.threads));
  }

  bool is_hopeless(Identity identity, WaitFor what, std::uint64_t about) {
    if (what != WaitFor::kMessage && what != WaitFor::kSpace) return false;
    const auto seen = about == 0 ? std::nullopt : control_at(arena_, memory::unpack(about));
    const bool is_message = what == WaitFor::kMessage;
    if (!seen || seen->is_named() || (is_message ? has_messages(seen->shared) : has_space(seen->shared))) return false;
    const Ends ends(*seen);
    const End peers = is_message ? End::kSending : End::kReceiving;
    const Ends::Uses uses = ends.uses(peers);
    // The call is about to return an error by itself.
    if (!uses.is_attached || seen->is_shut_down() || ends.has_deaths_to_report(peers, identity)) return false;
    if (!uses.used && may_end(*seen, ends, peers)) {
      const Deadlock::Rank rank{uses.given, load_once(seen->shared.made_ns)};
      if (!first_ || rank < *first_) first_ = rank;
    }
    return add_peers(ends, peers);
  }

  Arena& arena_;
  const Identity me_;
  const std::uint32_t threads_;
  std::bitset<memory::kMaxParticipants> met_{};
  std::vector<std::uint32_t> waiting_{};  // slots to visit
  std::vector<Deadlock::Call> calls_{};
  std::optional<Deadlock::Rank> first_{};  // lowest rank of the other calls that may end
};

}  // namespace

bool Deadlock::may_be() const noexcept {
  if (!wait_.deadline.is_never() || !may_end(control_, ends_, peers_)) return false;
  const Ends::Uses uses = ends_.uses(peers_);
  return uses.is_attached && !uses.used && !ends_.is_in_transit(peers_);
}

bool Deadlock::is_proved() {
  if (asked_++ == 0 || !may_be()) {
    seen_ns_ = 0;
    return false;
  }
  const std::int64_t now = monotonic_ns();
  if (seen_ns_ != 0 && now - seen_ns_ < wait_policy::kDeadlockNs) return false;
  const Identity me = control_.arena.current_identity();
  if (me == memory::kNoIdentity) return false;
  Walk walk(control_.arena, me, wait_.threads());
  if (!walk.finds_deadlock(ends_, peers_)) {
    seen_ns_ = 0;
    return false;
  }
  const bool is_same = seen_ns_ != 0 && walk.calls() == seen_;
  seen_ns_ = now;
  seen_ = std::move(walk.calls());
  const Rank mine{ends_.uses(peers_).given, control_.shared.made_ns};
  return is_same && !(walk.first() && *walk.first() < mine);
}

Error Deadlock::error() const {
  if (auto died = ends_.take_deaths(peers_)) return std::move(*died);
  const std::string end = peers_ == End::kSending ? "sender" : "receiver";
  std::string text = "deadlock: no " + end + " of this stream will ever be used; the processes that have one (pids ";
  const char* separator = "";
  for (const int pid : ends_.unused_pids(peers_)) {
    text.append(separator).append(std::to_string(pid)).append(pid == process_id() ? " (this process)" : "");
    separator = ", ";
  }
  text.append(") never used it and are blocked themselves. Close unused ").append(end);
  return Error{Code::kClosed, text + "s, or call keep_only() in forked processes"};
}

}  // namespace shmtree::channel
