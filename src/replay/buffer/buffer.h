// A replay buffer as one object of a process has it: the rows, what they are, and what sampling needs.
//
// Thread safety: any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "platform/fork.h"
#include "replay/buffer/episodes.h"
#include "replay/buffer/sample_statistics.h"
#include "replay/buffer/spec.h"
#include "replay/rows/gather.h"
#include "replay/sampling/sampler.h"

namespace shmtree::replay {

// How much there may be of one.
struct Room {
  std::uint64_t capacity = 0, chunk = 0, streams = 1;  // rows; rows let go of at once, 0: what suits; writers, about
};

// Samplers that are not at work, by their tables: what they know of the leaves is worth keeping.
class SamplerPool {
 public:
  explicit SamplerPool(std::size_t tables);
  // Null when there is none.
  std::unique_ptr<Sampler> take(std::size_t table) noexcept;
  void give_back(std::size_t table, std::unique_ptr<Sampler> sampler) noexcept;

 private:
  platform::ForkSafeMutex mutex_;
  std::vector<std::vector<std::unique_ptr<Sampler>>> idle_;
};

class Buffer {
 public:
  // Bytes that one takes of its arena when it is full; kInvalid, with the numbers, for what cannot be.
  static Result<std::uint64_t> total_bytes(const Spec& spec, const Room& room);
  // Those of total_bytes() that a buffer takes before it has rows.
  static Result<std::uint64_t> overhead_bytes(const Spec& spec, const Room& room);
  // The most rows of one that takes so many bytes; kInvalid, with the numbers, when it has no room for any. `room`: its
  // other terms.
  static Result<std::uint64_t> capacity_within(const Spec& spec, std::uint64_t max_bytes, const Room& room);
  // A new one, of a Spec that was checked. Errors as of Store::create().
  static Result<std::shared_ptr<Buffer>> create(std::shared_ptr<Arena> arena, Spec spec, const Room& room,
                                                const WaitContext& wait);
  // The one there, held from the first look on: nobody else may have it any more. Errors as of Store::open() and
  // unpack(); kIncompatible when it contradicts what it says of itself.
  static Result<std::shared_ptr<Buffer>> open(std::shared_ptr<Arena> arena, memory::BlockRef block,
                                              const WaitContext& wait);

  // kInvalid, with what differs, if it was made with others. A chunk of 0 is any, and so are `streams`.
  Status check_options(const Spec& spec, const Room& room) const;

  const std::shared_ptr<Tables>& tables() const noexcept { return tables_; }
  const std::shared_ptr<Store>& store() const noexcept { return tables_->store(); }
  const Spec& spec() const noexcept { return spec_; }
  const Endings& endings() const noexcept { return endings_; }
  const Gather& gather() const noexcept { return gather_; }
  std::uint64_t row_bytes() const noexcept { return row_bytes_; }
  SamplerPool& samplers() noexcept { return samplers_; }
  SampleStatistics& statistics() noexcept { return statistics_; }  // from this object
  // This object's part in those who sample: it ends with the object, or before.
  Membership& sampling() noexcept { return sampling_; }

  // Of its samples; another one for each object, unless it was set.
  std::uint64_t seed() const noexcept { return seed_.load(std::memory_order_relaxed); }
  void set_seed(std::uint64_t seed) noexcept { seed_.store(seed, std::memory_order_relaxed); }
  // For the samples of one more sampler, or call.
  std::uint64_t new_seed() noexcept;

  // The index of the row that was added last, about: the newest place's.
  std::int64_t newest() const noexcept;
  // How many slots were filled since it was made, or the one that it was loaded from: all of the places that have left
  // the window, and those of the others that are. Looks at each place of the window.
  std::uint64_t added() const noexcept;
  // The first sampler with priorities; the first one where none has any.
  std::size_t priority_table() const noexcept;
  // Tables::update(), of one of them or Tables::kAll, with what a sampler of this process knows.
  Status update(std::size_t table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
                std::span<bool> applied);

 private:
  Buffer(std::shared_ptr<Tables> tables, Spec spec, Gather gather);
  static Result<std::shared_ptr<Buffer>> make(std::shared_ptr<Tables> tables, Spec spec);

  const std::shared_ptr<Tables> tables_;
  const Spec spec_;
  const Endings endings_;
  const Gather gather_;
  std::uint64_t row_bytes_ = 0;
  std::atomic<std::uint64_t> seed_{0}, seeds_given_{0};
  SamplerPool samplers_;
  SampleStatistics statistics_;
  Membership sampling_;
};

// A sampler for one call.
class BorrowedSampler {
 public:
  static Result<BorrowedSampler> take(Buffer& buffer, std::size_t table);
  BorrowedSampler(BorrowedSampler&&) noexcept = default;
  ~BorrowedSampler() { buffer_->samplers().give_back(table_, std::move(sampler_)); }
  Sampler& operator*() noexcept { return *sampler_; }

 private:
  BorrowedSampler(Buffer& buffer, std::size_t table, std::unique_ptr<Sampler> sampler) noexcept
      : buffer_(&buffer), table_(table), sampler_(std::move(sampler)) {}

  Buffer* buffer_;
  std::size_t table_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace shmtree::replay
