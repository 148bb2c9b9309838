#include "observe/channel_history.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "observe/observed_participants.h"
#include "observe/observer.h"
#include "platform/clock.h"
#include "platform/fork.h"
#include "shmtree/base/result.h"

namespace shmtree {

namespace observer {

namespace {

constexpr double kWaitedAtAll = 0.01;  // minimum share of the time; below it, the current state decides

double per_second(std::uint64_t now, std::uint64_t before, double seconds) noexcept {
  return seconds > 0 ? static_cast<double>(static_cast<std::int64_t>(now - before)) / seconds : 0.0;
}
double share(double now, double before, double seconds) noexcept {
  return seconds > 0 ? std::clamp((now - before) / seconds, 0.0, 1.0) : 0.0;
}

ObservedLimit limited_by(std::string_view name, const ObservedEnd& end) {
  std::vector<int> users = end.users();
  return {name, users.empty() ? end.pids : std::move(users)};
}

// Returns the end that limits the channel: the other end has waited for it since the last snapshot. If neither has
// waited, the current state decides. nullopt if no end limits.
std::optional<ObservedLimit> limiting(const ObservedChannel& channel) {
  const bool is_full = (channel.limit != 0 && channel.queued >= channel.limit) ||
                       (channel.max_bytes != 0 && channel.queued_bytes >= channel.max_bytes);
  const bool is_awaited = channel.queued == 0 && channel.receivers.waits;
  const bool has_waited = std::max(channel.full_share, channel.empty_share) >= kWaitedAtAll;
  const bool receives = has_waited ? channel.full_share >= channel.empty_share : is_full;
  if (receives) return limited_by("receiver", channel.receivers);
  if (has_waited || is_awaited) return limited_by("sender", channel.senders);
  return std::nullopt;
}

// Returns the index of the object at which the thread waits, if `objects` contains it, and stores its name in the wait.
template <class Object>
std::optional<std::size_t> index_of(ObservedWait& wait, const std::vector<Object>& objects, const char* kind) {
  const auto found =
      std::find_if(objects.begin(), objects.end(), [&](const auto& one) { return one.block == wait.block; });
  if (found == objects.end()) return std::nullopt;
  const auto index = static_cast<std::size_t>(found - objects.begin());
  wait.at = std::string(kind) + " " + (found->names.empty() ? std::to_string(index) : found->names.front());
  return index;
}

void name_wait(const ObservedArena& arena, ObservedWait& wait) {
  wait.at = wait.block == 0 ? "the arena" : "an object that was freed";
  wait.channel = index_of(wait, arena.channels, "channel");
  if (wait.channel) return;
  index_of(wait, arena.latests, "Latest");
  index_of(wait, arena.broadcasts, "Broadcast");
  index_of(wait, arena.replays, "replay buffer");
}

}  // namespace

void ChannelHistory::add(ObservedChannel& channel, std::int64_t now_ns) {
  add_shares(channel, now_ns);
  add_rates(channel, now_ns);
  channel.limiting = limiting(channel);
}

void ChannelHistory::add_shares(ObservedChannel& channel, std::int64_t now_ns) {
  const double seconds = snapshots_.empty() ? 0.0 : seconds_of(now_ns - snapshots_.front().at_ns);
  channel.full_share = share(channel.full_seconds, full_seconds_, seconds);
  channel.empty_share = share(channel.empty_seconds, empty_seconds_, seconds);
  full_seconds_ = channel.full_seconds;
  empty_seconds_ = channel.empty_seconds;
}

void ChannelHistory::add_rates(ObservedChannel& channel, std::int64_t now_ns) {
  const std::uint64_t received = channel.received + channel.dropped;
  if (!snapshots_.empty()) {
    const Snapshot& last = snapshots_.front();
    const double seconds = seconds_of(now_ns - last.at_ns);
    channel.put_per_s = per_second(channel.put, last.put, seconds);
    channel.received_per_s = per_second(received, last.received, seconds);
  }
  // The oldest queued message was put before the oldest snapshot in which `put` already counted it.
  std::erase_if(snapshots_, [received](const Snapshot& snapshot) { return snapshot.put <= received; });
  if (channel.queued != 0 && !snapshots_.empty()) channel.oldest_seconds = seconds_of(now_ns - snapshots_.back().at_ns);
  snapshots_.insert(snapshots_.begin(), {now_ns, channel.put, received});
  if (snapshots_.size() > kMaxSnapshots) snapshots_.pop_back();
}

void name_waits(ObservedArena& arena) {
  for (ObservedParticipant& one : arena.participants) {
    for (ObservedWait& wait : one.waits) name_wait(arena, wait);
  }
}

}  // namespace observer

std::vector<int> ObservedEnd::users() const {
  std::vector<int> used = pids;
  std::erase_if(used,
                [this](int pid) { return std::find(never_used.begin(), never_used.end(), pid) != never_used.end(); });
  return used;
}

struct Observer::History {
  observer::ChannelHistories channels{};
};

Observer::Observer() : history_(std::make_unique<History>()) {}
Observer::~Observer() = default;
Observer::Observer(Observer&&) noexcept = default;
Observer& Observer::operator=(Observer&&) noexcept = default;

std::vector<ObservedArena> Observer::look() {
  if (history_ == nullptr) throw BadResult(Error{Code::kClosed, "this Observer was moved from"});
  const std::int64_t now_ns = platform::monotonic_ns();
  auto looked = observer::snapshot_all();
  if (!looked) return {ObservedArena{.uuid = observer::kNoUuid, .refused = std::move(looked).error().message}};
  std::vector<ObservedArena>& arenas = *looked;
  observer::ChannelHistories before = std::exchange(history_->channels, {});
  for (ObservedArena& arena : arenas) {
    auto &known = before[arena.uuid], &now = history_->channels[arena.uuid];
    for (ObservedChannel& channel : arena.channels) {
      if (!channel.refused.empty()) continue;
      observer::ChannelHistory& history = now[channel.block];
      if (const auto found = known.find(channel.block); found != known.end()) history = std::move(found->second);
      history.add(channel, now_ns);
    }
    observer::name_waits(arena);
  }
  return std::move(arenas);
}

std::vector<ObservedArena> observe() {
  return Observer().look();
}

}  // namespace shmtree
