// A replay buffer, as one object of a process: its rows, its specification, and the state that sampling needs.
//
// Thread safety: any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "platform/fork.h"
#include "replay/buffer/endings.h"
#include "replay/buffer/sample_statistics.h"
#include "replay/buffer/spec.h"
#include "replay/rows/gather.h"
#include "replay/sampling/sampler.h"

namespace shmtree::replay {

// Size of a buffer: maximum rows, rows per chunk (0: chosen from the capacity), approximate number of writers.
struct BufferSize {
  std::uint64_t capacity = 0, chunk = 0, streams = 1;
};

// Idle samplers of each table. They are kept because their private trees are expensive to build.
class SamplerPool {
 public:
  explicit SamplerPool(std::size_t tables);
  // Returns null if there is none.
  std::unique_ptr<Sampler> take(std::size_t table) noexcept;
  void give_back(std::size_t table, std::unique_ptr<Sampler> sampler) noexcept;

 private:
  platform::ForkSafeMutex mutex_;
  std::vector<std::vector<std::unique_ptr<Sampler>>> idle_;
};

class Buffer {
 public:
  // Returns the bytes of the arena that a full buffer takes. Returns kInvalid, with the numbers, if the options are out
  // of range.
  static Result<std::uint64_t> total_bytes(const Spec& spec, const BufferSize& sizes);
  // Returns the part of total_bytes() that a buffer takes before it has rows.
  static Result<std::uint64_t> overhead_bytes(const Spec& spec, const BufferSize& sizes);
  // Returns the largest capacity for which total_bytes() is at most `max_bytes`; ignores room.capacity. Returns
  // kInvalid, with the numbers, if not even the smallest buffer fits.
  static Result<std::uint64_t> capacity_within(const Spec& spec, std::uint64_t max_bytes, const BufferSize& sizes);
  // Creates a buffer from a Spec that was checked. Errors: those of Store::create().
  static Result<std::shared_ptr<Buffer>> create(std::shared_ptr<Arena> arena, Spec spec, const BufferSize& sizes,
                                                const WaitContext& wait);
  // Opens the buffer at `block`. Pins it before it reads the note, because no other process may be attached any more.
  // Errors: those of Store::open() and unpack(). Returns kIncompatible if the buffer contradicts its own note.
  static Result<std::shared_ptr<Buffer>> open(std::shared_ptr<Arena> arena, memory::BlockRef block,
                                              const WaitContext& wait);

  // Returns kInvalid, with the differences, if the buffer was created with other options. Does not compare `streams`,
  // nor a chunk of 0.
  Status check_options(const Spec& spec, const BufferSize& sizes) const;

  const std::shared_ptr<Tables>& tables() const noexcept { return tables_; }
  const std::shared_ptr<Store>& store() const noexcept { return tables_->store(); }
  const std::shared_ptr<Arena>& arena() const noexcept { return store()->arena(); }
  memory::BlockRef block() const noexcept { return store()->block(); }
  const Spec& spec() const noexcept { return spec_; }
  const Endings& endings() const noexcept { return endings_; }
  const Gather& gather() const noexcept { return gather_; }
  std::uint64_t row_bytes() const noexcept { return row_bytes_; }
  SamplerPool& samplers() noexcept { return samplers_; }
  SampleStatistics& statistics() noexcept { return statistics_; }  // samples of this object
  // This object's membership among the samplers. It ends with the object, or earlier.
  Membership& sampling() noexcept { return sampling_; }

  // Seed of the samples. It differs between objects, unless it was set.
  std::uint64_t seed() const noexcept { return seed_.load(std::memory_order_relaxed); }
  void set_seed(std::uint64_t seed) noexcept { seed_.store(seed, std::memory_order_relaxed); }
  // Returns a seed for another sampler or call.
  std::uint64_t new_seed() noexcept;

  // Returns the index of the newest row, approximately: the last one in the newest chunk.
  std::int64_t newest() const noexcept;
  // Returns the number of slots written since the buffer, or the one it was loaded from, was created. Counts chunks
  // that have left the window as full. Reads the state of each chunk of the window.
  std::uint64_t added() const noexcept;
  // Returns the number of the first table with priorities, or 0 if none has any.
  std::size_t priority_table() const noexcept;
  // Calls Tables::update() for one table or Tables::kAll, with the LeafWatch of an idle sampler.
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

// Sampler borrowed from the pool for one call.
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
