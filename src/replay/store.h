// The rows of a replay buffer in shared memory: places that are opened one after the other, filled by one writer each,
// and left behind by the window when there are too many rows. docs/replay-layout.md has the order of stores.
//
// Invariants:
//   - Only who made a place busy writes into it, and nobody opens a place that is busy for a living owner. So a writer
//     that was stopped in the middle of a row never wakes in rows of others.
//   - Counted rows do not change while the place has its ticket.
//   - Readers take no lock, and hold nobody up.
//
// Thread safety: any thread of any process, but for one place's begin_row() and end_row(): its owner's.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/arena.h"
#include "platform/waiting.h"
#include "replay/shape.h"

namespace shmtree::replay {

using memory::Arena;
using platform::WaitContext;

struct Window {
  std::uint64_t head = 1, tail = 1;  // tickets: [head, tail)
};

class Store {
 public:
  // `note` is kept for whoever opens it. Errors as of Arena::allocate().
  static Result<std::shared_ptr<Store>> create(std::shared_ptr<Arena> arena, const Shape& shape,
                                               std::span<const std::byte> note, const WaitContext& wait);
  // One that lives; kNotFound when it does not, kIncompatible for anything else. `leaf_bytes` as it was made with.
  static Result<std::shared_ptr<Store>> open(std::shared_ptr<Arena> arena, memory::BlockRef block,
                                             std::span<const std::uint64_t> leaf_bytes, const WaitContext& wait);

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  memory::BlockRef block() const noexcept { return control_.ref(); }
  const Shape& shape() const noexcept { return shape_; }
  std::span<const std::byte> note() const noexcept { return note_; }

  // --- Of a place's owner.

  // Opens a place, of which the first row is begun: busy. Older places leave the window for it. kUnavailable when every
  // place is busy for a living process; errors as of Arena::allocate() while the buffer grows.
  Result<std::uint64_t> open_place(std::uint32_t stream, std::uint64_t first_row, const WaitContext& wait);
  // Begins a row in a place that has `rows`; false when the place is somebody else's by now, or closed.
  bool begin_row(std::uint64_t ticket, std::uint32_t rows) noexcept;
  // Where the leaf of a row lies. `ticket` is one that open_place() or window() gave.
  std::byte* leaf(const Leaf& leaf, std::uint64_t ticket, std::uint64_t row) const noexcept;
  // The row that was begun counts from now on.
  void end_row(std::uint64_t ticket, std::uint32_t rows) noexcept;
  // No more rows come. Quietly not done when the lock is not to be had: the place is full for others then.
  void close_place(std::uint64_t ticket, std::uint32_t rows) noexcept;

  // --- Of those who read.

  Window window() const noexcept;
  // What is known of the place that has this ticket, if it has it.
  Progress progress(std::uint64_t ticket) const noexcept {
    return unpack_progress(platform::load_acquire(progress_word(ticket)));
  }
  // Whether the row is there: to be asked before its bytes are read, and again afterwards.
  bool has_row(std::uint64_t ticket, std::uint64_t row) const noexcept {
    const Progress now = progress(ticket);
    return now.ticket == ticket && row < now.rows && ticket >= platform::load_relaxed(header().head);
  }
  // The rows of the window. Looks at every place.
  std::uint64_t size() const noexcept;
  memory::Event& ready() const noexcept { return header().ready; }

  // Names the first invariant that does not hold, while nobody else is at work; empty when all do. For tests.
  std::string check() const;

 private:
  Store(std::shared_ptr<Arena> arena, memory::Lease control, Shape shape, std::uint64_t note_bytes);

  ReplayHeader& header() const noexcept { return *reinterpret_cast<ReplayHeader*>(control_.data()); }
  std::uint64_t place_of(std::uint64_t ticket) const noexcept { return ticket % shape_.places; }
  std::atomic<std::uint64_t>& progress_word(std::uint64_t ticket) const noexcept { return progress_[place_of(ticket)]; }
  std::byte* extent(std::uint64_t number) const noexcept;
  Status add_extent(std::uint64_t number, const WaitContext& wait);

  // Under the lock.
  Status lock(const WaitContext& wait);
  void unlock() noexcept { arena_->unlock(header().lock); }
  void repair() noexcept;
  std::uint64_t reserved_by(std::uint64_t ticket) const noexcept;
  void make_room() noexcept;
  bool try_open(std::uint64_t ticket) noexcept;

  const std::shared_ptr<Arena> arena_;
  const memory::Lease control_;
  const Shape shape_;
  std::atomic<std::uint64_t>* progress_;
  About* about_;
  std::span<const std::byte> note_;
  mutable std::vector<std::atomic<std::byte*>> extents_;  // those that this process has met
};

}  // namespace shmtree::replay
