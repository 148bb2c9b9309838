// State behind the handles of replay buffers. Thread safety: any call from any thread, like the handles.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/replay/rows.h"
#include "api/state.h"
#include "replay/buffer/batch.h"
#include "replay/buffer/stream.h"

namespace shmtree::api {

using replay::Buffer;

inline constexpr const char* kReplayBuffer = "ReplayBuffer";  // Name in errors.

// A buffer, its paths, and memory for its batches. Writers and batches keep it alive.
struct ReplayCore {
  explicit ReplayCore(std::shared_ptr<Buffer> of)
      : buffer(std::move(of)), paths(buffer->spec()), arena(ArenaState::for_arena(buffer->arena())) {}

  const std::shared_ptr<Buffer> buffer;
  const ReplayPaths paths;
  const std::shared_ptr<ArenaState> arena;
  const std::shared_ptr<replay::BatchPool> pool = std::make_shared<replay::BatchPool>();
};

// One stream of this process. The stream ends with this object.
struct ReplayWriterState {
  explicit ReplayWriterState(std::shared_ptr<ReplayCore> of) : core(std::move(of)) {}
  ~ReplayWriterState() { replay::release_stream(std::move(stream)); }
  ReplayWriterState(const ReplayWriterState&) = delete;
  ReplayWriterState& operator=(const ReplayWriterState&) = delete;

  // Returns this process's stream; a forked child gets its own.
  Result<std::shared_ptr<replay::Stream>> open_stream();
  void close();

  const std::shared_ptr<ReplayCore> core;
  std::atomic<std::int64_t> version{0};
  std::atomic<bool> closed{false};
  platform::ForkSafeMutex mutex;
  std::shared_ptr<replay::Stream> stream;  // Under mutex.
};

// Counts at the last call of stats().
struct ReplayCounts {
  std::int64_t at_ns = 0;  // 0: no call yet.
  std::uint64_t added = 0, sampled = 0;
};

struct ReplayVectorState {
  ReplayAutoreset autoreset = ReplayAutoreset::kNone;
  std::vector<std::shared_ptr<ReplayWriterState>> states;
  std::vector<ReplayWriter> writers{};  // Handles of `states`.
};

struct ReplayState {
  ReplayState(std::shared_ptr<Buffer> buffer, std::shared_ptr<endpoint::Name> held_name)
      : name(std::move(held_name)), core(std::make_shared<ReplayCore>(std::move(buffer))) {}
  ~ReplayState() { close(); }

  static ReplayBuffer wrap(std::shared_ptr<Buffer> buffer, std::shared_ptr<endpoint::Name> name) {
    return ReplayBuffer(std::make_shared<ReplayState>(std::move(buffer), std::move(name)));
  }
  static ReplayWriter wrap(std::shared_ptr<ReplayWriterState> writer) { return ReplayWriter(std::move(writer)); }
  static ReplayVectorWriter wrap(std::vector<std::shared_ptr<ReplayWriterState>> writers, ReplayAutoreset autoreset);
  static ReplayBatch wrap(std::shared_ptr<const ReplayBatchState> batch) { return ReplayBatch(std::move(batch)); }
  // Opens the buffer of a block that any process has made.
  static Result<ReplayBuffer> open_block(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                         std::shared_ptr<endpoint::Name> name);
  static Result<ReplayBuffer> open_bytes(std::span<const std::byte> handle);

  // Null after close().
  std::shared_ptr<ReplayCore> open_core() {
    const std::lock_guard guard(mutex);
    return core;
  }
  // Makes `n` streams, which close() of this object ends. Returns kClosed if the object is closed.
  Result<std::vector<std::shared_ptr<ReplayWriterState>>> new_writers(std::size_t n);
  // Streams of the threads that add rows without a writer. `thread` is a number that identifies the thread, and its
  // stream exists from new_writer_of() until end_writer_of(). known_writer_of() returns null if the thread has no
  // stream. new_writer_of() returns kClosed if this object is closed.
  std::shared_ptr<ReplayWriterState> known_writer_of(std::uint64_t thread);
  Result<std::shared_ptr<ReplayWriterState>> new_writer_of(std::uint64_t thread);
  void end_writer_of(std::uint64_t thread);
  void close();

  platform::ForkSafeMutex mutex;
  std::shared_ptr<endpoint::Name> name;                                   // Under mutex.
  std::shared_ptr<ReplayCore> core;                                       // Under mutex.
  std::vector<std::weak_ptr<ReplayWriterState>> writers;                  // Under mutex.
  std::map<std::uint64_t, std::shared_ptr<ReplayWriterState>> by_thread;  // Under mutex.
  ReplayCounts counts;                                                    // Under mutex.
  std::atomic<bool> closed{false};
};

struct ReplayBatchState {
  ReplayBatchState(std::shared_ptr<ReplayCore> of, const replay::SampleTerms& terms, bool has_its_data)
      : core(std::move(of)), batch(core->buffer, *core->pool, terms, has_its_data), has_data(has_its_data) {}

  // Call this after sampling.
  void describe();
  std::span<const std::int64_t> extra(std::size_t number) const noexcept;

  const std::shared_ptr<ReplayCore> core;
  replay::Batch batch;
  const bool has_data;
  std::vector<float> weights{}, priorities{};  // Used where the batch has none of its own.
  std::vector<double> probabilities{};
  std::vector<std::int64_t> ages{};
  std::vector<std::vector<std::int64_t>> shapes{}, strides{};  // For each array of the data.
  std::vector<NewArray> arrays{};                              // The data, if it is in the arena.
};

// Returns the shape of an array of the data.
std::vector<std::int64_t> shape_of_output(const replay::Spec& spec, std::size_t number,
                                          const replay::SampleTerms& terms);
// Returns kInvalid, with the reason, if the buffer does not have what hindsight needs.
Result<replay::Hindsight> hindsight_of(const replay::Spec& spec, const ReplayHindsight& how);
// Calls the reward function. Its exceptions pass through.
void set_rewards(const ReplayBatchState& state, const ReplayHindsight& how);
// Returns the strides of an array in C order, in bytes as in NumPy.
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, std::uint64_t item_bytes);
Error other_dtype(std::string_view path, std::string_view dtype);

// Ends the waits of a call before its deadline: the object was closed, or a stop was requested. A stop request during
// the call ends only waits, so that a batch is completed if it needs no wait.
class UntilReplayEnded final : public platform::WaitHooks {
 public:
  UntilReplayEnded(const std::atomic<bool>& closed, const std::stop_token& stop, const replay::Tables& tables) noexcept
      : closed_(closed), stop_(stop), wake_(stop, Wake{&tables}) {}
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override { return ended() || stop_.stop_requested(); }
  bool ended() const noexcept override { return closed_.load(std::memory_order_relaxed); }

 private:
  struct Wake {
    const replay::Tables* tables;
    void operator()() const noexcept { tables->wake_all(); }
  };
  const std::atomic<bool>& closed_;
  const std::stop_token& stop_;
  std::stop_callback<Wake> wake_;
};

// Returns act(core, wait), or kClosed if the object is closed. `what` names the object in errors.
template <class State, class Act>
auto with_core_until(State* state, const char* what, const platform::Deadline& deadline, const std::stop_token& stop,
                     Act act)
    -> decltype(act(std::declval<const std::shared_ptr<ReplayCore>&>(), platform::WaitContext{})) {
  using Returned = decltype(act(std::declval<const std::shared_ptr<ReplayCore>&>(), platform::WaitContext{}));
  return or_out_of_memory([&]() -> Returned {
    std::shared_ptr<ReplayCore> core;
    if constexpr (std::is_same_v<State, ReplayState>) {
      if (state != nullptr) core = state->open_core();
    } else {
      if (state != nullptr && !state->closed.load(std::memory_order_relaxed)) core = state->core;
    }
    if (core == nullptr) return closed_here(what);
    UntilReplayEnded until(state->closed, stop, *core->buffer->tables());
    auto result = act(core, platform::WaitContext{deadline, &until});
    if (!result && result.code() == Code::kInterrupted && until.ended()) return closed_here(what, result.error());
    return result;
  });
}

template <class State, class Act>
auto with_core(State* state, const char* what, const Timeout& timeout, const std::stop_token& stop, Act act) {
  const auto checked = [&](const std::shared_ptr<ReplayCore>& core,
                           const platform::WaitContext& wait) -> decltype(act(core, wait)) {
    Status goes_on = endpoint::check_stop(stop);
    if (!goes_on) return std::move(goes_on).error();
    return act(core, wait);
  };
  return with_core_until(state, what, platform::Deadline::after(timeout), stop, checked);
}

}  // namespace shmtree::api
