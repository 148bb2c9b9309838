// What is sampled from a replay buffer, and how likely: several tables over the same rows, with the rate limit of all
// of them.
//
// Invariant: a refused update changes nothing.
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
#include "replay/rows/store.h"
#include "replay/rows/writer.h"
#include "replay/sampling/table.h"

namespace shmtree::replay {

class LeafWatch;

// The observer of writers, who have to check priorities themselves.
class Tables final : public RowObserver {
 public:
  // Bytes that a Store needs for them; kInvalid, with the numbers, for what cannot be.
  // `limit`: of all of them together; null: none. `has_members`: who waits is told when those it waits for were
  // killed.
  static Result<std::uint64_t> bytes_for(const Shape& shape, std::span<const TableSpec> specs,
                                         const RateLimit* limit = nullptr, bool has_members = false);
  // In a store that was just made with so many bytes for them.
  static Result<std::shared_ptr<Tables>> create(std::shared_ptr<Store> store, std::span<const TableSpec> specs,
                                                const RateLimit* limit = nullptr, bool has_members = false);
  // Those that were created; kIncompatible for anything else.
  static Result<std::shared_ptr<Tables>> open(std::shared_ptr<Store> store);

  const std::shared_ptr<Store>& store() const noexcept { return store_; }
  std::size_t size() const noexcept { return tables_.size(); }
  const Table& operator[](std::size_t number) const noexcept { return tables_[number]; }
  // Null where there is none.
  RateLimiter* limiter() const noexcept { return limiter_.get(); }
  bool has_members() const noexcept { return members_ != nullptr; }
  Members* samplers() const noexcept { return has_members() ? &members_->samplers() : nullptr; }

  // All who wait for rows, or for the limit, look again.
  void wake_all() const noexcept;

  // No row is there any more, and the limit counts anew. Rows that become ready meanwhile may stay.
  Status clear(const WaitContext& wait) const;

  // --- Of writers.

  Members* writers() const noexcept override { return has_members() ? &members_->writers() : nullptr; }
  // kInvalid, with the number, for a priority that a row cannot have.
  Status check_priorities(std::span<const double> priorities) const { return check_priorities(priorities, kAll); }
  void after_open(std::uint64_t ticket) noexcept override;
  // A priority that is no number: the largest that was given, of each table.
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

  // --- Of those who learn.

  static constexpr std::size_t kAll = ~std::size_t{0};
  // New priorities of rows by their indices, in one table or in all that have any; the last of a repeated index counts.
  // `applied`: which rows were there. kInvalid, and nothing is changed, for a priority that is negative, no number or
  // too large, and for an index that was never given. kNoRow counts as a row that is gone. `own`: the LeafWatch of a
  // sampler of this process, which then need not check the changed leaves.
  Status update(std::size_t table, std::span<const std::uint64_t> indices, std::span<const double> priorities,
                std::span<bool> applied, LeafWatch* own = nullptr) const;
  double max_priority(std::size_t table) const noexcept { return tables_[table].max_priority(); }
  // New rows have that priority at least, as if some row had been given it: as one has in another part of what is
  // sampled from as a whole. No number, or one that is too large, changes nothing.
  void raise_max_priority(std::size_t table, double priority) const noexcept;
  // Removes the weights of overwritten rows from all tables. Such rows are never sampled, but the sum and the smallest
  // weight may include them until their places are opened again or a sample meets them.
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
