// The rows of a replay buffer in shared memory: places that are opened one after the other, filled by one writer each,
// and left behind by the window when there are too many rows. docs/replay-layout.md has the order of stores.
//
// Invariants:
//   - Only who made a place busy writes into it, and nobody opens a place that is busy for a living owner. So a writer
//     that was stopped in the middle of a row never wakes in rows of others.
//   - Slots that are counted do not change while the place has its ticket, and rows that are ready have all that is
//     read with them: successors, and bits about these.
//   - Readers take no lock, and hold nobody up.
//
// Thread safety: any thread of any process, but what is of a place's owner: one at a time.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/arena.h"
#include "platform/waiting.h"
#include "replay/rows/row_count.h"
#include "replay/rows/shape.h"

namespace shmtree::replay {

using memory::Arena;
using platform::WaitContext;

struct Window {
  std::uint64_t head = 1, tail = 1;  // tickets: [head, tail)
};

// Where the leaves of a slot lie.
struct Entry {
  std::byte* extent = nullptr;  // null where this process has no address space for it
  std::uint64_t number = 0;

  std::byte* leaf(const Leaf& leaf) const noexcept {
    return extent == nullptr ? nullptr : extent + leaf.begin + number * leaf.stride;
  }
  // So many slots further on in its place.
  Entry operator+(std::uint64_t slots) const noexcept { return {extent, number + slots}; }
};

class Store {
 public:
  // `note` is kept for whoever opens it, and so many bytes of zeros for tables_area(). Errors as of Arena::allocate().
  static Result<std::shared_ptr<Store>> create(std::shared_ptr<Arena> arena, const Shape& shape,
                                               std::span<const std::byte> note, const WaitContext& wait,
                                               std::uint64_t table_bytes = 0);
  // One that lives; kNotFound when it does not, kIncompatible for anything else. `leaf_bytes` as it was made with.
  static Result<std::shared_ptr<Store>> open(std::shared_ptr<Arena> arena, memory::BlockRef block,
                                             std::span<const std::uint64_t> leaf_bytes, const WaitContext& wait);

  // The note of one, which says what is needed to open it: the buffer is held until then, as nobody else may have it
  // any more. Errors as of open().
  struct Note {
    std::string bytes{};
    memory::Lease held{};
  };
  static Result<Note> note_at(const std::shared_ptr<Arena>& arena, memory::BlockRef block, const WaitContext& wait);
  // Bytes of an arena that a buffer takes before it has rows, and those that all its extents take.
  static std::uint64_t control_bytes(const Shape& shape, std::uint64_t note_bytes, std::uint64_t table_bytes) noexcept;
  static std::uint64_t extents_bytes(const Shape& shape) noexcept;

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  memory::BlockRef block() const noexcept { return control_.ref(); }
  const Shape& shape() const noexcept { return shape_; }
  std::span<const std::byte> note() const noexcept { return note_; }
  // From a multiple of 64 on. Anything may be in it.
  std::span<std::byte> tables_area() const noexcept { return tables_; }

  // --- Of a place's owner.

  // Opens a place, busy and without rows. No `stream`: what stream_from() calls it. `first_row` rows of its stream were
  // added before; those before lie in the place that had the ticket `previous`, or nowhere (0). Older places leave the
  // window for it. kUnavailable when every place is busy for a living process; errors as of Arena::allocate() while the
  // buffer grows.
  Result<std::uint64_t> open_place(std::optional<std::uint32_t> stream, std::uint64_t first_row, std::uint64_t previous,
                                   const WaitContext& wait);
  // Makes a place busy that is as its owner left it. False when it is somebody else's by now.
  bool take_place(const Progress& left) noexcept;
  // Ends that: what was written meanwhile is seen with `now`.
  void leave_place(const Progress& now) noexcept { platform::store_release(progress_word(now.ticket), pack(now)); }
  // So many slots of a place that its owner left are ready; quietly not so when it is somebody else's by now.
  void make_ready(Progress& left, std::uint32_t ready) noexcept;
  // No more rows come. False when the lock is not to be had, or the place is somebody else's: it is full for others
  // then.
  bool close_place(const Progress& left) noexcept;
  // In place of that: the place goes to whoever wants one for a new stream. False when it cannot, and is to be closed.
  bool offer_place(const Progress& left) noexcept;
  // Such a place, as its writer left it and busy for `me`: the next slot begins a stream. Nothing when there is none.
  std::optional<Progress> take_offered(Identity me) noexcept;
  // All rows go; tickets, and so indices, go on. What writers add from then on is there. Errors as of a lock.
  Status clear(const WaitContext& wait);
  // Whether rows that are added to the place will be there for half a lap at least.
  bool is_young(std::uint64_t ticket) const noexcept {
    return ticket >= platform::load_relaxed(header().head) &&
           platform::load_relaxed(header().tail) - ticket <= shape_.places / 2 + 1;
  }
  // Where the leaf of a slot lies. `ticket` is one that open_place() or window() gave.
  std::byte* leaf(const Leaf& leaf, std::uint64_t ticket, std::uint64_t slot) const noexcept {
    return entry(ticket, slot).leaf(leaf);
  }
  Entry entry(std::uint64_t ticket, std::uint64_t slot) const noexcept {
    return entry_of_place(place_of(ticket), slot);
  }
  About& about(std::uint64_t ticket) const noexcept { return about_[place_of(ticket)]; }
  // The same by the number of the place, which is below Shape::places.
  Entry entry_of_place(std::uint64_t place, std::uint64_t slot) const noexcept {
    const std::uint64_t number = shape_.extent_of(place);
    return {extent(number), ((place - number * shape_.places_per_extent) << shape_.row_bits) + slot};
  }
  About& about_of_place(std::uint64_t place) const noexcept { return about_[place]; }
  // Which of all slots of the buffer it is; what is kept for each slot has as many.
  std::uint64_t slot(std::uint64_t ticket, std::uint64_t row) const noexcept {
    return place_of(ticket) * shape_.rows_per_place + row;
  }

  // --- Of those who read.

  Window window() const noexcept;
  // What is known of the place that has this ticket, if it has it.
  Progress progress(std::uint64_t ticket) const noexcept {
    return unpack_progress(platform::load_acquire(progress_word(ticket)));
  }
  // The same by the number of the place, which is below Shape::places.
  Progress progress_of_place(std::uint64_t place) const noexcept {
    return unpack_progress(platform::load_acquire(progress_[place]));
  }
  void fetch_progress_of_place(std::uint64_t place) const noexcept { platform::prefetch(&progress_[place], 1); }
  // Whether there is such a row, which may be sampled: to be asked before its bytes are read.
  bool has_row(std::uint64_t ticket, std::uint64_t slot) const noexcept {
    return ticket <= kMostTicket && has_row_in(place_of(ticket), ticket, slot);
  }
  // The same of a ticket up to kMostTicket, by the number of its place.
  bool has_row_in(std::uint64_t place, std::uint64_t ticket, std::uint64_t slot) const noexcept {
    const Progress now = progress_of_place(place);
    return now.ticket == ticket && slot < now.ready && slot < shape_.rows_per_place && is_in_window(ticket) &&
           !(shape_.finals && (platform::load_relaxed(about_[place].finals) >> slot & 1) != 0);
  }
  // Whether bytes that were read of a row, and of those after it in its stream, were theirs: to be asked behind an
  // acquire fence. Places leave the window in order, and are opened again after that only.
  bool is_in_window(std::uint64_t ticket) const noexcept { return ticket >= head(); }
  // The oldest ticket of the window.
  std::uint64_t head() const noexcept { return platform::load_relaxed(header().head); }
  // Asks for what is known of the place.
  void fetch_words(std::uint64_t ticket, bool with_about) const noexcept {
    platform::prefetch(&progress_word(ticket), sizeof(std::uint64_t));
    if (with_about) platform::prefetch(&about(ticket), sizeof(About));
  }
  // Returns the rows of the window that can be sampled. Checks only places that have changed since the last call.
  std::uint64_t size() const noexcept { return count_.count(*this); }
  // Sets the largest number of frames of a leaf in a batch. Rows whose frames have left the window do not count. Call
  // it before size().
  void set_frames(std::uint32_t frames) noexcept { count_.set_frames(frames); }
  memory::Event& ready() const noexcept { return header().ready; }

  // --- Of files.

  const Origin& origin() const noexcept { return header().origin; }
  // Of who fills a new buffer that nobody else has: memory for a place, after which about() and leave_place() say what
  // it is; and, at the end, which tickets there are, and whose they were.
  Status prepare_place(std::uint64_t ticket, const WaitContext& wait);
  void begin_with(const Window& window, const Origin& origin) noexcept;

  // Names the first invariant that does not hold, while nobody else is at work; empty when all do. For tests.
  std::string check() const;

 private:
  Store(std::shared_ptr<Arena> arena, memory::Lease control, Shape shape, std::uint64_t note_bytes,
        std::uint64_t table_bytes);

  ReplayHeader& header() const noexcept { return *reinterpret_cast<ReplayHeader*>(control_.data()); }
  std::uint64_t place_of(std::uint64_t ticket) const noexcept { return shape_.place_of(ticket); }
  std::atomic<std::uint64_t>& progress_word(std::uint64_t ticket) const noexcept { return progress_[place_of(ticket)]; }
  std::byte* extent(std::uint64_t number) const noexcept {
    std::byte* known = extents_[number].load(std::memory_order_acquire);
    return known != nullptr ? known : find_extent(number);
  }
  std::byte* find_extent(std::uint64_t number) const noexcept;
  Status add_extent(std::uint64_t number, const WaitContext& wait);
  Status bring_extent(std::uint64_t number, const WaitContext& wait);

  // Under the lock.
  Status lock(const WaitContext& wait);
  void unlock() noexcept { arena_->unlock(header().lock); }
  void repair() noexcept;
  std::uint64_t reserved_by(std::uint64_t ticket) const noexcept;
  void make_room() noexcept;
  bool try_open(std::uint64_t ticket) noexcept;
  bool may_go_on(const Progress& left) const noexcept;
  void describe(std::uint64_t ticket, Identity owner, std::optional<std::uint32_t> stream, std::uint64_t first_row,
                std::uint64_t previous) noexcept;

  const std::shared_ptr<Arena> arena_;
  const memory::Lease control_;
  const Shape shape_;
  std::atomic<std::uint64_t>* progress_;
  About* about_;
  std::span<const std::byte> note_;
  std::span<std::byte> tables_;
  mutable RowCount count_;
  mutable std::vector<std::atomic<std::byte*>> extents_;  // those that this process has met
};

}  // namespace shmtree::replay
