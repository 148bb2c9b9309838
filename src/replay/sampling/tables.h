// The tables of a replay buffer, each with its own sampler over the same rows, and the rate limiter that they share.
//
// Invariant: an update that fails changes nothing.
//
// Thread safety: any thread of any process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "replay/rate_limiter/rate_limiter.h"
#include "replay/rows/members.h"
#include "replay/rows/row_store.h"
#include "replay/rows/writer.h"
#include "replay/sampling/table.h"

namespace shmtree::replay {

class LeafWatch;

// Returns kInvalid if no table can have these options.
Status check_table(const TableSpec& spec);

// Observes the writers. These have to check priorities themselves.
class Tables final : public RowObserver {
 public:
  // Returns the bytes that a Store needs for the tables. Returns kInvalid, with the numbers, if the specs are out of
  // range. `limit`, shared by all tables, may be null. With `has_members`, a blocked call fails if its peers were
  // killed.
  static Result<std::uint64_t> bytes_for(const Shape& shape, std::span<const TableSpec> specs,
                                         const RateLimit* limit = nullptr, bool has_members = false);
  // Creates the tables in a new store that has bytes_for() bytes for them.
  static Result<std::shared_ptr<Tables>> create(std::shared_ptr<Store> store, std::span<const TableSpec> specs,
                                                const RateLimit* limit = nullptr, bool has_members = false);
  // Opens the tables of a store. Returns kIncompatible if they are damaged.
  static Result<std::shared_ptr<Tables>> open(std::shared_ptr<Store> store);

  const std::shared_ptr<Store>& store() const noexcept { return store_; }
  std::size_t size() const noexcept { return tables_.size(); }
  const Table& operator[](std::size_t number) const noexcept { return tables_[number]; }
  // Null if there is no limit.
  RateLimiter* limiter() const noexcept { return limiter_.get(); }
  bool has_members() const noexcept { return members_ != nullptr; }
  Members* samplers() const noexcept { return has_members() ? &members_->samplers() : nullptr; }

  // Wakes all processes that wait for rows or for the rate limiter.
  void wake_all() const noexcept;

  // Removes all rows, and resets the rate limiter. Rows that become ready during the call may stay.
  Status clear(const WaitContext& wait) const;

  // --- For writers

  Members* writers() const noexcept override { return has_members() ? &members_->writers() : nullptr; }
  // Returns kInvalid, with the number, for a priority out of range.
  Status check_priorities(std::span<const double> priorities) const { return check_priorities(priorities, kAll); }
  void after_open(std::uint64_t ticket) noexcept override;
  // A priority that is NaN stands for max_priority() of each table.
  void before_ready(std::uint64_t first, std::span<const float> priorities) noexcept override;
  Result<std::uint64_t> before_add(std::uint64_t least, std::uint64_t most, const WaitContext& wait) override {
    return limiter_ == nullptr ? Result<std::uint64_t>(most) : limiter_->take_inserts(least, most, wait);
  }
  void after_add(std::uint64_t credits) noexcept override {
    if (limiter_ != nullptr) limiter_->give_back_inserts(credits);
  }
  void after_ready(std::uint64_t rows) noexcept override {
    if (limiter_ != nullptr) limiter_->use_inserts(rows);
  }

  // --- For learners

  static constexpr std::size_t kAll = ~std::size_t{0};
  // Sets the priorities of rows, in one table or in all with priorities (kAll). The last one of a repeated index
  // counts. Sets `applied` to true for rows that were still there. Returns kInvalid, and changes nothing, for a
  // priority that is negative, NaN or too large, and for an index that was never assigned. Treats kNoRow as a row that
  // is gone. `own` is the LeafWatch of a sampler of this process, which then need not check the changed leaves.
  Status update(std::size_t table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
                std::span<bool> applied, LeafWatch* own = nullptr) const;
  double max_priority(std::size_t table) const noexcept { return tables_[table].max_priority(); }
  // Raises the largest priority, which new rows get, as if a row had this priority. For a buffer that is one part of a
  // larger one, when a row of another part has it. Ignores NaN and numbers that are too large.
  void raise_max_priority(std::size_t table, double priority) const noexcept;
  // Removes the weights of overwritten rows from all tables. Such rows are never sampled, but the sum and the smallest
  // weight may include them until their chunks are opened again or a sampler chooses them.
  void drop_overwritten() const noexcept;
  void reset_max_priority(std::size_t table) const noexcept { tables_[table].reset_max_priority(); }
  // Undoes a sample of a row that had this weight.
  void put_back(std::size_t table, std::uint64_t index, float weight) const noexcept;
  std::uint64_t slot_of(std::uint64_t index) const noexcept;

 private:
  explicit Tables(std::shared_ptr<Store> store) noexcept : store_(std::move(store)) {}
  void add_tables(std::span<const TableSpec> specs, bool has_limit, bool has_members);
  Status check_priorities(std::span<const double> priorities, std::size_t table) const;
  Status check_indices(std::span<const std::uint64_t> indices) const;
  void apply(const Table& table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
             std::span<bool> applied, LeafWatch* own) const noexcept;

  const std::shared_ptr<Store> store_;
  std::vector<Table> tables_;
  std::shared_ptr<BufferMembers> members_;
  std::unique_ptr<RateLimiter> limiter_;
};

}  // namespace shmtree::replay
