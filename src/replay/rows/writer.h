// Writes one stream of rows into a replay buffer. A writer fills a chunk with consecutive rows of its stream, and links
// each chunk to the previous and the next one.
//
// Invariants:
//   - A writer owns its chunk as long as the chunk's progress word is as the writer left it. A writer that lost its
//     chunk, to the window or to a fork, opens another one. No row is in two chunks.
//   - A row is ready, that is, may be sampled, when the `ahead` slots after it in its stream are written, or its
//     episode has ended. Rows that are not ready may be in earlier chunks of the writer.
//   - With last observations (Shape::finals), an episode that ended with a done row is complete at end(), at the next
//     add() or at close(). Without them it is complete with the row.
//
// Thread safety: one thread at a time.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "replay/rows/members.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

constexpr float kNoPriority = std::numeric_limits<float>::quiet_NaN();  // the observer chooses the priority

struct RowInfo {
  bool done = false;        // the episode ends with this row
  bool truncated = false;   // the episode was cut off at this row, so the row is not terminal
  bool terminated = false;  // the row is certainly terminal; end() cannot change that
  float priority = kNoPriority;
};

// Values of a leaf: the address in the first row, and the distance in bytes to the next row.
struct Column {
  // Null: the rows lack the leaf; the writer stores zeros.
  Column(const void* at = nullptr, std::uint64_t distance = 0) noexcept
      : first(static_cast<const std::byte*>(at)), stride(distance) {}

  const std::byte* first;
  std::uint64_t stride;
};

// Notified of rows as they become ready, in the writer's thread. Tables and the rate limiter implement it.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  // Members that a writer joins with its first row; null: writers are not tracked.
  virtual Members* writers() const noexcept { return nullptr; }
  // Called when the chunk with this ticket was opened, before any of its rows is ready.
  virtual void after_open(std::uint64_t) noexcept {}
  // Called before the rows with the indices from `first` on become ready. They may already have left the window, so a
  // word that is kept per slot may belong to a later row.
  virtual void before_ready(std::uint64_t first, std::span<const float> priorities) noexcept = 0;
  // Called before rows are added. Returns how many rows may become ready at once: up to `most`, and at least `least`,
  // the first argument. May block. If it fails, the writer adds no row.
  virtual Result<std::uint64_t> before_add(std::uint64_t, std::uint64_t most, const WaitContext&) { return most; }
  // Called with the number of rows that before_add() allowed and that did not become ready.
  virtual void after_add(std::uint64_t) noexcept {}
  // Called after `rows` rows have become ready.
  virtual void after_ready(std::uint64_t rows) noexcept = 0;
};

class Writer {
 public:
  // Without `stream`, the index of the first row determines the stream's number, and the rest of the last chunk is
  // offered to the next such writer. The caller owns `observer`.
  Writer(std::shared_ptr<Store> store, std::optional<std::uint32_t> stream, RowObserver* observer = nullptr) noexcept
      : store_(std::move(store)),
        stream_(stream),
        offers_rest_(!stream),
        observer_(observer),
        membership_(observer == nullptr ? nullptr : observer->writers()) {}
  ~Writer() { close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Rows [from, from + count) of the columns.
  struct Rows {
    std::span<const Column> columns{};  // one for each leaf
    std::uint64_t from = 0, count = 1;
    const RowInfo* infos = nullptr;  // one for each row of the columns; null: RowInfo{} for all
  };
  // Adds rows. Writes the index of row n to indices[n], unless `indices` is null. By its index, a row can be read once
  // it is ready, until it leaves the window. If last observations are kept, a truncated row waits for the observation
  // that end() takes: only the last of the rows may be truncated, and until then another row is kInvalid. If extend()
  // returns kInvalid, it has added nothing. After another error, Error::completed is the number of rows added. Errors:
  // those of Store::open_chunk().
  Status extend(const Rows& rows, std::uint64_t* indices, const WaitContext& wait);
  // Adds one row of the columns and returns its index, like extend(), but faster. Errors: those of extend().
  Result<std::uint64_t> add(std::span<const Column> leaves, const RowInfo& info, const WaitContext& wait,
                            std::uint64_t row = 0);
  Result<std::uint64_t> add(std::span<const Column> leaves, const WaitContext& wait) { return add(leaves, {}, wait); }
  // Ends the episode, so that its rows become ready. If last observations are kept, `final` has one column for each
  // leaf, and `row` is the row of the last observation in them; it may be empty. Returns Code::kInvalid if the episode
  // was cut off and `final` is empty. RowInfo::truncated and terminated of the last row take precedence over
  // `truncated`. Does nothing if no row was added since the last end. Errors: those of extend().
  Status end(std::span<const Column> final, bool truncated, const WaitContext& wait, std::uint64_t row = 0);
  // Ends the stream. A further row begins another chunk. Rows that still lack successors never become ready.
  void close() noexcept;

  std::uint64_t added() const noexcept { return added_; }
  // True if the last row ended its episode, and begin_episode() was not called since. Any thread may call it.
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_relaxed); }
  void begin_episode() noexcept { has_ended_.store(false, std::memory_order_relaxed); }
  // Returns the number of the stream. Empty before the first row, unless it was given or set.
  std::optional<std::uint32_t> stream() const noexcept { return stream_; }
  void set_stream(std::uint32_t stream) noexcept { stream_ = stream; }

 private:
  // A chunk, and the number of its first slot in the stream.
  struct Part {
    Progress at{};  // state in which this writer left it; ticket 0: none
    std::uint64_t first = 0;
  };

  Error other_leaves(std::size_t leaves) const;
  bool is_mine() const noexcept { return owner_ == store_->arena()->current_identity() && part_.at.ticket != 0; }
  Status check_complete() const;
  void note_end(const RowInfo& last) noexcept;
  Status add_all(const Rows& rows, std::uint64_t* indices, const WaitContext& wait);
  bool continues() noexcept;
  bool goes_on_elsewhere() noexcept;
  Status begin_slots(bool linked, std::uint64_t slots, const WaitContext& wait);
  void copy_row(std::span<const Column> columns, std::uint64_t row) noexcept;
  void copy_rows(std::span<const Column> columns, std::uint64_t from, std::uint32_t count) noexcept;
  void mark_ends(const Rows& rows, std::uint64_t from, std::uint64_t ended) noexcept;
  void mark(std::uint32_t slot, bool truncated) noexcept;
  std::uint64_t publish_rows(std::uint32_t count, std::uint64_t ended) noexcept;
  std::uint64_t publish(std::uint64_t until) noexcept;
  std::uint64_t ready_with(std::uint64_t count, std::uint64_t ended) const noexcept;
  Result<std::uint64_t> ask(std::uint64_t ended, std::uint64_t& rows, const WaitContext& wait);
  void answer(std::uint64_t credits, std::uint64_t ready) noexcept;
  std::uint64_t make_left_ready(std::uint64_t until) noexcept;
  std::uint64_t notify_observer(const Part& part, std::uint32_t ready) noexcept;
  void end_here(bool truncated) noexcept;
  void forget() noexcept;

  const std::shared_ptr<Store> store_;
  std::optional<std::uint32_t> stream_;
  const bool offers_rest_;  // offers the rest of its last chunk to other writers
  RowObserver* const observer_;
  Membership membership_;
  Identity owner_ = memory::kNoIdentity;  // process that opened the chunk, to detect a fork
  Part part_;
  Entry entry_;                    // The chunk's first slot.
  std::vector<Part> left_;         // Earlier chunks with rows that are not ready, oldest first.
  std::vector<float> priorities_;  // Priorities of the slots from ready_ on.
  std::uint64_t added_ = 0;        // Rows added.
  std::uint64_t written_ = 0;      // Slots written.
  std::uint64_t ready_ = 0;        // Earlier slots are ready, or never will be.
  bool in_episode_ = false;        // The last row did not end its episode.
  bool done_ = false;              // The last row ended its episode, and the last observation may still follow.
  bool lacks_final_ = false;       // The last row was truncated, and the last observation is still missing.
  bool is_terminal_ = false;       // RowInfo::terminated of the last row.
  std::atomic<bool> has_ended_{false};
};

}  // namespace shmtree::replay
