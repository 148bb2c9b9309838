// What the handles of replay buffers stand for. Thread safety: that of the handles, any call from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/replay_rows.h"
#include "api/state.h"
#include "replay/batch.h"

namespace shmtree::api {

using replay::Buffer;

// A buffer, its paths, and memory for its batches: what writers and batches keep.
struct ReplayCore {
  explicit ReplayCore(std::shared_ptr<Buffer> of) : buffer(std::move(of)), paths(buffer->spec()) {}

  const std::shared_ptr<Buffer> buffer;
  const ReplayPaths paths;
  const std::shared_ptr<replay::BatchPool> pool = std::make_shared<replay::BatchPool>();
};

struct ReplayState {
  ReplayState(std::shared_ptr<Buffer> buffer, std::shared_ptr<endpoint::Name> known)
      : name(std::move(known)), core(std::make_shared<ReplayCore>(std::move(buffer))) {}
  ~ReplayState() { close(); }

  static ReplayBuffer wrap(std::shared_ptr<Buffer> buffer, std::shared_ptr<endpoint::Name> name) {
    return ReplayBuffer(std::make_shared<ReplayState>(std::move(buffer), std::move(name)));
  }
  static ReplayWriter wrap(std::shared_ptr<ReplayWriterState> writer) { return ReplayWriter(std::move(writer)); }
  static ReplayBatch wrap(std::shared_ptr<const ReplayBatchState> batch) { return ReplayBatch(std::move(batch)); }
  // The buffer of a block of some process's.
  static Result<ReplayBuffer> open_block(const std::shared_ptr<memory::Arena>& arena, std::uint64_t block,
                                         std::shared_ptr<endpoint::Name> name);
  static Result<ReplayBuffer> open_bytes(std::span<const std::byte> handle);

  // Null once it was closed.
  std::shared_ptr<ReplayCore> open_core() {
    const std::lock_guard guard(mutex);
    return core;
  }
  void close();

  platform::ForkSafeMutex mutex;
  std::shared_ptr<endpoint::Name> name;  // under mutex
  std::shared_ptr<ReplayCore> core;      // under mutex
  std::atomic<bool> closed{false};
};

struct ReplayWriterState {
  explicit ReplayWriterState(std::shared_ptr<ReplayCore> of) : core(std::move(of)) {}

  // That of this process.
  Result<std::shared_ptr<replay::Stream>> open_stream();

  const std::shared_ptr<ReplayCore> core;
  std::atomic<std::int64_t> version{0};
  std::atomic<bool> closed{false};
  platform::ForkSafeMutex mutex;
  std::shared_ptr<replay::Stream> stream;  // under mutex
};

struct ReplayBatchState {
  ReplayBatchState(std::shared_ptr<ReplayCore> of, const replay::DrawTerms& terms, bool has_its_data)
      : core(std::move(of)), batch(core->buffer, *core->pool, terms, has_its_data), has_data(has_its_data) {}

  // Once it was drawn.
  void describe();
  std::span<const std::int64_t> extra(std::size_t number) const noexcept;

  const std::shared_ptr<ReplayCore> core;
  replay::Batch batch;
  const bool has_data;
  std::vector<float> weights{}, priorities{};  // where the batch has none of its own
  std::vector<double> probabilities{};
  std::vector<std::int64_t> ages{};
  std::vector<std::vector<std::int64_t>> shapes{}, strides{};  // of each array of the data
};

// What ends the waits of a call besides its deadline: the closing of the object.
class UntilFlag final : public endpoint::UntilDone {
 public:
  explicit UntilFlag(const std::atomic<bool>& closed) noexcept : closed_(closed) {}
  bool ended() const noexcept override { return closed_.load(std::memory_order_relaxed); }

 private:
  const std::atomic<bool>& closed_;
};

// `act(parts, wait)` of a state that is open, whose `parts` are its core; `what` it is called in errors.
template <class State, class Act>
auto with_core(State* state, const char* what, const Timeout& timeout, Act act)
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
    UntilFlag until(state->closed);
    auto result = act(core, waiting(timeout, &until));
    if (!result && result.code() == Code::kInterrupted && until.ended()) return closed_here(what);
    return result;
  });
}

}  // namespace shmtree::api
