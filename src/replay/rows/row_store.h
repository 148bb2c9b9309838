// The rows of a replay buffer in shared memory, stored in chunks. Writers open chunks one after the other, and one
// writer fills each of them. The oldest chunks leave the window when the rows exceed the capacity.
// docs/internals/replay-layout.md describes the order of stores.
//
// Invariants:
//   - Only the process that made a chunk busy writes into it, and no process opens a chunk that a live owner keeps
//     busy. So a writer that was stopped in the middle of a row never overwrites another writer's rows.
//   - Published slots do not change while the chunk keeps its ticket. A ready row has all that a reader needs:
//     its successors, and their bits.
//   - Readers take no lock, and never block a writer.
//
// Thread safety: any thread of any process. Functions for a chunk's owner: one thread at a time.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/arena.h"
#include "platform/dcheck.h"
#include "platform/waiting.h"
#include "replay/rows/row_count.h"
#include "replay/rows/shape.h"

namespace shmtree::replay {

using memory::Arena;
using platform::WaitContext;

struct Window {
  std::uint64_t head = 1, tail = 1;  // tickets: [head, tail)
};

// Address of a slot: its extent, and its number in the extent.
struct Entry {
  std::byte* extent = nullptr;  // null: this process could not map it
  std::uint64_t number = 0;

  std::byte* leaf(const Leaf& leaf) const noexcept {
    return extent == nullptr ? nullptr : extent + leaf.begin + number * leaf.stride;
  }
  // Returns the entry `slots` slots later in the same chunk.
  Entry operator+(std::uint64_t slots) const noexcept { return {extent, number + slots}; }
};

class Store {
 public:
  // Creates a buffer. Stores `note` for the processes that open it, and reserves `table_bytes` zeroed bytes for
  // tables_area(). Errors: those of Arena::allocate().
  static Result<std::shared_ptr<Store>> create(std::shared_ptr<Arena> arena, const Shape& shape,
                                               std::span<const std::byte> note, const WaitContext& wait,
                                               std::uint64_t table_bytes = 0);
  // Opens an existing buffer, with the leaf sizes with which it was created. Returns kNotFound if it was freed,
  // or kIncompatible if the block is not such a buffer.
  static Result<std::shared_ptr<Store>> open(std::shared_ptr<Arena> arena, memory::BlockRef block,
                                             std::span<const std::uint64_t> leaf_bytes, const WaitContext& wait);

  // Returns the note of a buffer, which says what open() needs. `held` pins the buffer until then, because no other
  // process may be attached any more. Errors: those of open().
  struct Note {
    std::string bytes{};
    memory::Lease held{};
  };
  static Result<Note> note_at(const std::shared_ptr<Arena>& arena, memory::BlockRef block, const WaitContext& wait);
  // Return the bytes of the arena that the control block takes, and the bytes that all extents take together.
  static std::uint64_t control_bytes(const Shape& shape, std::uint64_t note_bytes, std::uint64_t table_bytes) noexcept;
  static std::uint64_t extents_bytes(const Shape& shape) noexcept;

  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  memory::BlockRef block() const noexcept { return control_.ref(); }
  const Shape& shape() const noexcept { return shape_; }
  std::span<const std::byte> note() const noexcept { return note_; }
  // Aligned to 64 bytes. The contents are untrusted.
  std::span<std::byte> tables_area() const noexcept { return tables_; }

  // --- For the owner of a chunk

  // Opens an empty chunk, busy, and returns its ticket. Without `stream`, stream_from() numbers the stream. The stream
  // had `first_row` rows before, the last of them in the chunk with the ticket `previous` (0: none). The oldest chunks
  // leave the window to make space. Returns kUnavailable if live processes keep every chunk busy. Other errors:
  // those of Arena::allocate(), while the buffer grows.
  Result<std::uint64_t> open_chunk(std::optional<std::uint32_t> stream, std::uint64_t first_row, std::uint64_t previous,
                                   const WaitContext& wait);
  // Makes a chunk busy if its progress is still `left`, the value that its owner last stored. Returns false if the
  // owner has lost the chunk.
  bool take_chunk(const Progress& left) noexcept;
  // Publishes `now` with release order, so that a reader that sees it also sees what the owner wrote before.
  void leave_chunk(const Progress& now) noexcept {
    SHMTREE_DCHECK(!now.busy && now.ready <= now.rows && now.rows <= shape_.rows_per_chunk);
    platform::store_release(progress_word(now.ticket), pack(now));
  }
  // In a chunk that its owner is not writing, marks the first `ready` slots as ready. Does nothing if the owner has
  // lost the chunk.
  void make_ready(Progress& left, std::uint32_t ready) noexcept;
  // Closes a chunk to further rows. Returns false if the lock is held or the owner has lost the chunk. An open chunk
  // counts as full.
  bool close_chunk(const Progress& left) noexcept;
  // Offers the chunk to writers of new streams, instead of closing it. If it returns false, the caller closes the
  // chunk.
  bool offer_chunk(const Progress& left) noexcept;
  // Takes an offered chunk, if there is one, makes it busy for `me`, and returns its state as its writer left it. The
  // next slot begins a stream.
  std::optional<Progress> take_offered(Identity me) noexcept;
  // Removes all rows. Tickets, and therefore indices, continue. Errors: those of a lock.
  Status clear(const WaitContext& wait);
  // Returns true if rows added to the chunk stay in the window until at least half of all chunks were opened again.
  bool is_young(std::uint64_t ticket) const noexcept {
    return ticket >= platform::load_relaxed(header().head) &&
           platform::load_relaxed(header().tail) - ticket <= shape_.chunks / 2 + 1;
  }
  // Returns the address of a slot's leaf. `ticket` comes from open_chunk() or window().
  std::byte* leaf(const Leaf& leaf, std::uint64_t ticket, std::uint64_t slot) const noexcept {
    return entry(ticket, slot).leaf(leaf);
  }
  Entry entry(std::uint64_t ticket, std::uint64_t slot) const noexcept {
    return entry_of_chunk(chunk_of(ticket), slot);
  }
  ChunkInfo& info(std::uint64_t ticket) const noexcept { return info_[chunk_of(ticket)]; }
  // Take the number of the chunk, which is below Shape::places, instead of its ticket.
  Entry entry_of_chunk(std::uint64_t chunk, std::uint64_t slot) const noexcept {
    SHMTREE_DCHECK(chunk < shape_.chunks && slot < shape_.rows_per_chunk);
    const std::uint64_t number = shape_.extent_of(chunk);
    return {extent(number), ((chunk - number * shape_.chunks_per_extent) << shape_.row_bits) + slot};
  }
  ChunkInfo& info_of_chunk(std::uint64_t chunk) const noexcept {
    SHMTREE_DCHECK(chunk < shape_.chunks);
    return info_[chunk];
  }
  // Returns the number of the slot among Shape::slots(). Tables have one entry for each.
  std::uint64_t slot(std::uint64_t ticket, std::uint64_t row) const noexcept {
    SHMTREE_DCHECK(row < shape_.rows_per_chunk);
    return chunk_of(ticket) * shape_.rows_per_chunk + row;
  }

  // --- For readers

  Window window() const noexcept;
  // Returns the state of the chunk to which this ticket maps. Its own ticket may be another one.
  Progress progress(std::uint64_t ticket) const noexcept {
    return unpack_progress(platform::load_acquire(progress_word(ticket)));
  }
  // Takes the number of the chunk, which is below Shape::places, instead of its ticket.
  Progress progress_of_chunk(std::uint64_t chunk) const noexcept {
    SHMTREE_DCHECK(chunk < shape_.chunks);
    return unpack_progress(platform::load_acquire(progress_[chunk]));
  }
  void fetch_progress_of_chunk(std::uint64_t chunk) const noexcept { platform::prefetch(&progress_[chunk], 1); }
  // Returns true if the row is in the window and may be sampled. Call it before reading the row's bytes.
  bool has_row(std::uint64_t ticket, std::uint64_t slot) const noexcept {
    return ticket <= kMaxTicket && has_row_in(chunk_of(ticket), ticket, slot);
  }
  // Takes a ticket up to kMaxTicket, and the number of its chunk.
  bool has_row_in(std::uint64_t chunk, std::uint64_t ticket, std::uint64_t slot) const noexcept {
    const Progress now = progress_of_chunk(chunk);
    return now.ticket == ticket && slot < now.ready && slot < shape_.rows_per_chunk && is_in_window(ticket) &&
           !(shape_.finals && (platform::load_relaxed(info_[chunk].finals) >> slot & 1) != 0);
  }
  // Returns true if the bytes that this thread has read of a row and its successors were not overwritten during the
  // read. Call it after the read and an acquire fence. A chunk is opened again only after it has left the window, and
  // chunks leave in order.
  bool is_in_window(std::uint64_t ticket) const noexcept { return ticket >= head(); }
  // Returns the oldest ticket of the window.
  std::uint64_t head() const noexcept { return platform::load_relaxed(header().head); }
  // Prefetches the state of the chunk.
  void fetch_words(std::uint64_t ticket, bool with_info) const noexcept {
    platform::prefetch(&progress_word(ticket), sizeof(std::uint64_t));
    if (with_info) platform::prefetch(&info(ticket), sizeof(ChunkInfo));
  }
  // Returns the rows of the window that can be sampled. Checks only chunks that have changed since the last call.
  std::uint64_t size() const noexcept { return count_.count(*this); }
  // Sets the largest number of frames of a leaf in a batch. Rows do not count once some of their frames have left the
  // window. Call it before size().
  void set_frames(std::uint32_t frames) noexcept { count_.set_frames(frames); }
  memory::Event& ready() const noexcept { return header().ready; }

  // --- For files

  const Origin& origin() const noexcept { return header().origin; }
  // Fill a new buffer to which no other process is attached. prepare_chunk() allocates memory for a chunk; the caller
  // then writes info() and calls leave_chunk(). At the end begin_with() sets the window and the origin of its rows.
  Status prepare_chunk(std::uint64_t ticket, const WaitContext& wait);
  void begin_with(const Window& window, const Origin& origin) noexcept;

 private:
  Store(std::shared_ptr<Arena> arena, memory::Lease control, Shape shape, std::uint64_t note_bytes,
        std::uint64_t table_bytes);

  ReplayHeader& header() const noexcept { return *reinterpret_cast<ReplayHeader*>(control_.data()); }
  std::uint64_t chunk_of(std::uint64_t ticket) const noexcept { return shape_.chunk_of(ticket); }
  std::atomic<std::uint64_t>& progress_word(std::uint64_t ticket) const noexcept { return progress_[chunk_of(ticket)]; }
  std::byte* extent(std::uint64_t number) const noexcept {
    std::byte* mapped = extents_[number].load(std::memory_order_acquire);
    return mapped != nullptr ? mapped : find_extent(number);
  }
  std::byte* find_extent(std::uint64_t number) const noexcept;
  Status add_extent(std::uint64_t number, const WaitContext& wait);
  Status bring_extent(std::uint64_t number, const WaitContext& wait);

  // Under the lock.
  Status lock(const WaitContext& wait);
  void unlock() noexcept { arena_->unlock(header().lock); }
  void repair() noexcept;
  std::uint64_t reserved_by(std::uint64_t ticket) const noexcept;
  void make_space() noexcept;
  bool try_open(std::uint64_t ticket) noexcept;
  bool may_go_on(const Progress& left) const noexcept;
  void describe(std::uint64_t ticket, Identity owner, std::optional<std::uint32_t> stream, std::uint64_t first_row,
                std::uint64_t previous) noexcept;

  const std::shared_ptr<Arena> arena_;
  const memory::Lease control_;
  const Shape shape_;
  std::atomic<std::uint64_t>* progress_;
  ChunkInfo* info_;
  std::span<const std::byte> note_;
  std::span<std::byte> tables_;
  mutable RowCount count_;
  mutable std::vector<std::atomic<std::byte*>> extents_;  // addresses of the extents that this process has used
};

}  // namespace shmtree::replay
