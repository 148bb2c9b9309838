// The streams of a buffer: those of writer(), and one for each thread that adds to the buffer itself.
#include <algorithm>
#include <utility>

#include "api/replay/replay_state.h"
#include "platform/of_thread.h"

namespace shmtree {

namespace api {

namespace {

// A thread, with a number that no other thread ever gets. Its streams end with it.
class ThisThread {
 public:
  ThisThread() : number_(made_.fetch_add(1, std::memory_order_relaxed)) {}
  ~ThisThread() {
    for (const auto& each : adds_to_) {
      if (const auto state = each.lock()) state->end_writer_of(number_);
    }
  }
  ThisThread(const ThisThread&) = delete;
  ThisThread& operator=(const ThisThread&) = delete;

  std::uint64_t number() const noexcept { return number_; }
  void adds_to(const std::shared_ptr<ReplayState>& state) {
    std::erase_if(adds_to_, [](const auto& each) { return each.expired(); });
    adds_to_.push_back(state);
  }

 private:
  static inline std::atomic<std::uint64_t> made_{0};
  const std::uint64_t number_;
  std::vector<std::weak_ptr<ReplayState>> adds_to_;
};

// Calls act(writer) with the stream of this thread. If the thread's variables are already destroyed, the stream ends
// with the call.
template <class Act>
auto with_own_writer(const std::shared_ptr<ReplayState>& state, Act act)
    -> decltype(act(std::declval<const ReplayWriter&>())) {
  return or_out_of_memory([&]() -> decltype(act(std::declval<const ReplayWriter&>())) {
    if (state == nullptr) return closed_here(kReplayBuffer);
    const platform::OfThread<ThisThread> me;
    if (auto writer = state->known_writer_of(me->number())) return act(ReplayState::wrap(std::move(writer)));
    me->adds_to(state);
    auto writer = state->new_writer_of(me->number());
    if (!writer) return std::move(writer).error();
    return act(ReplayState::wrap(std::move(*writer)));
  });
}

}  // namespace

Result<std::vector<std::shared_ptr<ReplayWriterState>>> ReplayState::new_writers(std::size_t n) {
  const std::lock_guard guard(mutex);
  if (core == nullptr) return closed_here(kReplayBuffer);
  std::erase_if(writers, [](const auto& each) { return each.expired(); });
  std::vector<std::shared_ptr<ReplayWriterState>> created;
  for (std::size_t i = 0; i < n; ++i) {
    created.push_back(std::make_shared<ReplayWriterState>(core));
    writers.push_back(created.back());
  }
  return created;
}

std::shared_ptr<ReplayWriterState> ReplayState::known_writer_of(std::uint64_t thread) {
  const std::lock_guard guard(mutex);
  const auto found = by_thread.find(thread);
  return found == by_thread.end() ? nullptr : found->second;
}

Result<std::shared_ptr<ReplayWriterState>> ReplayState::new_writer_of(std::uint64_t thread) {
  const std::lock_guard guard(mutex);
  if (core == nullptr) return closed_here(kReplayBuffer);
  return by_thread[thread] = std::make_shared<ReplayWriterState>(core);
}

void ReplayState::end_writer_of(std::uint64_t thread) {
  std::shared_ptr<ReplayWriterState> last;  // Released outside the mutex.
  const std::lock_guard guard(mutex);
  const auto found = by_thread.find(thread);
  if (found == by_thread.end()) return;
  last = std::move(found->second);
  by_thread.erase(found);
}

}  // namespace api

using api::ReplayState;

Result<ReplayWriter> ReplayBuffer::writer() const {
  return or_out_of_memory([&]() -> Result<ReplayWriter> {
    if (state_ == nullptr) return closed_here(api::kReplayBuffer);
    auto writers = state_->new_writers(1);
    if (!writers) return std::move(writers).error();
    return ReplayState::wrap(std::move(writers->front()));
  });
}

Result<std::int64_t> ReplayBuffer::add(const Value& row, Timeout timeout, std::optional<double> priority,
                                       const std::stop_token& stop, const Value& final) const {
  return api::with_own_writer(
      state_, [&](const ReplayWriter& writer) { return writer.add(row, timeout, priority, stop, final); });
}
Status ReplayBuffer::end(const Value& final, bool truncated, Timeout timeout, const std::stop_token& stop) const {
  return api::with_own_writer(state_,
                              [&](const ReplayWriter& writer) { return writer.end(final, truncated, timeout, stop); });
}
Result<std::vector<std::int64_t>> ReplayBuffer::extend(const Value& rows, const ReplayMarks& marks, Timeout timeout,
                                                       const std::stop_token& stop) const {
  return api::with_own_writer(state_,
                              [&](const ReplayWriter& writer) { return writer.extend(rows, marks, timeout, stop); });
}

}  // namespace shmtree
