#include "service/reply_line.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "memory/arena.h"
#include "platform/clock.h"

namespace shmtree::service {

using channel::End;

Error lost_error(const Error* death, Loss loss) {
  Error error{.code = Code::kPeerDied, .message = "no server process is left"};
  if (death != nullptr && death->code == Code::kPeerDied) {
    error.exit_code = death->exit_code;
    error.pids = death->pids;
  }
  if (!error.pids.empty()) {
    error.message = "server process ";
    for (const int pid : error.pids) error.message += (pid == error.pids[0] ? "" : ", ") + std::to_string(pid);
    error.message += error.exit_code != 0 ? " failed" : " was killed";
  }
  constexpr const char* kOutcomes[] = {"; a server may have handled this request before it exited",
                                       "; no server has handled this request",
                                       "; a server that starts later may handle this request"};
  error.message += kOutcomes[static_cast<std::size_t>(loss)];
  return error;
}

// Starts at the clock, so that no other line of this process has the same numbers.
ReplyLine::ReplyLine(std::shared_ptr<channel::Channel> requests, std::shared_ptr<channel::Channel> replies, Mode mode)
    : requests_(std::move(requests)), replies_(std::move(replies)), mode_(mode), next_(platform::monotonic_ns()) {}

std::optional<std::int64_t> ReplyLine::add(std::int64_t serve_by_ns) {
  const std::lock_guard guard(mutex_);
  if (ended()) return std::nullopt;
  pending_.emplace(++next_, Request{std::nullopt, serve_by_ns});
  return next_;
}

bool ReplyLine::remove(std::int64_t number) noexcept {
  const std::lock_guard guard(mutex_);
  return pending_.erase(number) != 0;
}

std::size_t ReplyLine::count() const noexcept {
  const std::lock_guard guard(mutex_);
  return pending_.size();
}

std::vector<std::int64_t> ReplyLine::end() {
  std::vector<std::int64_t> numbers;
  for (const Lost& each : lose_all()) numbers.push_back(each.number);
  return numbers;
}

template <class LossOf>
std::vector<Lost> ReplyLine::lose(LossOf loss_of) {
  std::vector<Lost> lost;
  const std::lock_guard guard(mutex_);
  lost.reserve(pending_.size());  // so that lack of memory loses no request without a report
  std::erase_if(pending_, [&](const auto& each) {
    const std::optional<Loss> loss = loss_of(each.second);
    if (loss) lost.push_back({each.first, *loss});
    return loss.has_value();
  });
  std::ranges::sort(lost, {}, &Lost::number);
  return lost;
}

std::vector<Lost> ReplyLine::note_sent(std::int64_t number, std::uint64_t ticket, std::uint32_t deaths) {
  {
    const std::lock_guard guard(mutex_);
    const auto request = pending_.find(number);
    if (request != pending_.end()) request->second.ticket = ticket;
  }
  return this->deaths() == deaths ? std::vector<Lost>() : lose_begun();
}

std::vector<Lost> ReplyLine::lose_begun() {
  const std::uint64_t received = requests_->passed(End::kReceiving);  // Before unacked(), so that none is missed.
  std::vector<std::uint64_t> unacked = requests_->unacked();
  std::ranges::sort(unacked);
  return lose([&](const Request& request) -> std::optional<Loss> {
    const bool is_begun =
        request.ticket && *request.ticket < received && !std::ranges::binary_search(unacked, *request.ticket);
    return is_begun ? std::optional(Loss::kMayBeDone) : std::nullopt;
  });
}

std::vector<Lost> ReplyLine::lose_all() {
  ended_.store(true, std::memory_order_release);
  const std::uint64_t received = requests_->passed(End::kReceiving);
  return lose([&](const Request& request) -> std::optional<Loss> {
    return !request.ticket || *request.ticket < received ? Loss::kMayBeDone : Loss::kNotDone;
  });
}

ReplyLine::Checked ReplyLine::check() {
  Checked checked;
  memory::poll_for_deaths(*requests_->arena(), 0);
  bool is_alone = true;
  Status attended = requests_->sending().check_receivers();
  if (attended) {
    const channel::ChannelStats now = requests_->stats();
    // The process that made the name may have died before it attached. A process that has the service and uses it only
    // as a client does not serve.
    is_alone = (now.receivers == 0 && now.receivers_in_transit == 0) || requests_->ends().is_left(End::kReceiving);
  } else {
    checked.death = std::move(attended).error();
    was_alone_ = true;
  }
  // Checks twice, because a server may be about to attach, or to send its reply.
  const bool is_left = is_alone && std::exchange(was_alone_, is_alone);
  if (mode_ == Mode::kEnds) {
    checked.is_over = is_left;
    return checked;
  }
  const bool is_unread = replies_->stats().senders == 0 && replies_->size() == 0;
  if (is_unread && was_unread_) checked.lost = lose_begun();
  was_unread_ = is_unread;
  if (!is_left) return checked;
  const std::int64_t now = platform::monotonic_ns();
  std::vector<Lost> late = lose([now](const Request& request) {
    return now > request.serve_by_ns ? std::optional(Loss::kMayCome) : std::nullopt;
  });
  checked.lost.insert(checked.lost.end(), late.begin(), late.end());
  return checked;
}

}  // namespace shmtree::service
