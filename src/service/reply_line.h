// The requests of one client that wait at one reply channel, and what the deaths of servers mean for them. The language
// receives the replies, and completes the requests that this class reports as lost.
//
// A line is in one of two modes:
//   Mode::kEnds   The first death of a server ends the line: drain the replies, close the reply channel, call
//                 lose_all(). A server that starts later cannot open the channel, so no server begins a request that
//                 has already failed.
//   Mode::kWaits  Requests wait for the next server. A death fails only those that a server has begun. A server opens
//                 the reply channel before it acks the request, and works on the request after that. So if it was
//                 killed, its death is reported at the channel. If it exited, no server has the channel any more.
//
// Invariants:
//   - A request is registered until it is removed, or reported as lost. Each is reported at most once.
//   - The ticket of a request is unknown until note_sent(). If a server dies in between, note_sent() finds out, because
//     the caller has read deaths() before the put.
//
// Thread safety: any thread may call every function.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "channel/channel.h"
#include "platform/fork.h"

namespace shmtree::service {

// Interval between two checks for live servers.
inline constexpr std::int64_t kTickNs = 200'000'000;
inline constexpr std::int64_t kForeverNs = std::numeric_limits<std::int64_t>::max();

enum class Loss : std::uint8_t {
  kMayBeDone,  // A server may have handled the request.
  kNotDone,    // No server has handled it, and none will.
  kMayCome,    // No server has begun it. It waited long enough, and a server that starts later may handle it.
};

struct Lost {
  std::int64_t number;
  Loss loss;
};

// Returns the error of a lost request. `death`: the error of a channel that reported the death of servers, or null.
Error lost_error(const Error* death, Loss loss);

class ReplyLine {
 public:
  enum class Mode : std::uint8_t { kEnds, kWaits };
  ReplyLine(std::shared_ptr<channel::Channel> requests, std::shared_ptr<channel::Channel> replies, Mode mode);

  // Registers a request and returns its number, which no other line of this process uses. nullopt: the line has ended.
  // With Mode::kWaits, check() reports the request as lost if there is no server after `serve_by_ns`.
  std::optional<std::int64_t> add(std::int64_t serve_by_ns = kForeverNs);
  // Removes a request. Returns false if it was removed, or lost, before.
  bool remove(std::int64_t number) noexcept;
  std::size_t count() const noexcept;
  // Removes and returns all requests. add() fails from then on.
  std::vector<std::int64_t> end();
  bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  bool waits() const noexcept { return mode_ == Mode::kWaits; }

  // Number of reported deaths so far. Read it before a put, and pass it to note_sent() with the ticket. Returns the
  // requests that were lost in between.
  std::uint32_t deaths() const noexcept { return deaths_.load(std::memory_order_acquire); }
  std::vector<Lost> note_sent(std::int64_t number, std::uint64_t ticket, std::uint32_t deaths);
  // With Mode::kWaits: call count_death() when the reply channel reports a death, then receive the replies that are
  // there, then fail the requests that lose_begun() returns.
  void count_death() noexcept { deaths_.fetch_add(1, std::memory_order_acq_rel); }
  std::vector<Lost> lose_begun();
  // With Mode::kEnds: returns all requests, and ends the line. The reply channel must be drained and closed before.
  std::vector<Lost> lose_all();

  // Checks for live servers. Call it every kTickNs, from one thread at a time.
  struct Checked {
    bool is_over = false;          // With Mode::kEnds: no server is left. Drain, close, and call lose_all().
    std::vector<Lost> lost{};      // With Mode::kWaits.
    std::optional<Error> death{};  // The error of the servers' channel, if it reports their death.
  };
  Checked check();

 private:
  struct Request {
    std::optional<std::uint64_t> ticket{};
    std::int64_t serve_by_ns = kForeverNs;
  };
  // Removes the requests for which loss_of(request) returns a Loss, and returns them.
  template <class LossOf>
  std::vector<Lost> lose(LossOf loss_of);

  const std::shared_ptr<channel::Channel> requests_, replies_;
  const Mode mode_;
  mutable platform::ForkSafeMutex mutex_;
  std::unordered_map<std::int64_t, Request> pending_;  // Under mutex_, like next_.
  std::int64_t next_;
  std::atomic<bool> ended_{false};
  std::atomic<std::uint32_t> deaths_{0};
  // Results of the last check: no server was attached; no server had the reply channel.
  bool was_alone_ = false, was_unread_ = false;
};

}  // namespace shmtree::service
