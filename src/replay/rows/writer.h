// One stream of rows into a replay buffer: the rows of a place are consecutive rows of one writer, and places are
// linked to those before and after them.
//
// Invariants:
//   - The place is this writer's while its word is as the writer left it. A writer that lost its place, to the window
//     or to a fork, opens another one; no row is in two.
//   - A row is ready, that is, may be sampled, when the `ahead` slots after it in its stream are written, or its
//     episode has ended. Rows that wait for that may lie in places that the writer has left behind.
//   - With last observations (Shape::finals), an episode that a done row ended is over at end(), at the next add() or
//     at close(); without, with the row.
//
// Thread safety: one thread at a time.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "replay/rows/members.h"
#include "replay/rows/store.h"

namespace shmtree::replay {

constexpr float kNoPriority = std::numeric_limits<float>::quiet_NaN();  // for the observer to choose

struct RowInfo {
  bool done = false;        // the episode ends with this row
  bool truncated = false;   // the episode was cut off there, so the row is not terminal
  bool terminated = false;  // the row is certainly terminal; end() cannot change that
  float priority = kNoPriority;
};

// Told of rows as they become ready, by their writer's thread: for tables and limits.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  // Those who are one of these from their first row on; null: nobody counts them.
  virtual Members* writers() const noexcept { return nullptr; }
  // The place with that ticket was opened, and none of its rows is ready.
  virtual void after_open(std::uint64_t) noexcept {}
  // The rows with the indices from `first` on may be sampled as soon as this has returned. They may have left the
  // window already, so that a word that is kept by place may be a later row's.
  virtual void before_ready(std::uint64_t first, std::span<const float> priorities) noexcept = 0;
  // Before rows are added of which so many are ready then, at once: how many of up to `most` may be; `least` in any
  // case. May wait, and fail: then none is added.
  virtual Result<std::uint64_t> before_add(std::uint64_t, std::uint64_t most, const WaitContext&) { return most; }
  // Of those that might have been added, so many were not.
  virtual void after_add(std::uint64_t) noexcept {}
  // So many rows may be sampled now.
  virtual void after_ready(std::uint64_t rows) noexcept = 0;
};

class Writer {
 public:
  // Without `stream` the first row decides about its number, and what is left of its last place goes to the next such
  // writer. `observer` is not owned.
  Writer(std::shared_ptr<Store> store, std::optional<std::uint32_t> stream, RowObserver* observer = nullptr) noexcept
      : store_(std::move(store)),
        stream_(stream),
        leaves_places_(!stream),
        observer_(observer),
        membership_(observer == nullptr ? nullptr : observer->writers()) {}
  // As close().
  ~Writer() { close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // A row, by the address of each of its leaves. Its index, by which it can be read from when it is ready for as long
  // as it is there. Errors as of Store::open_place(); then nothing was added. If last observations are kept, a
  // truncated row waits for the observation that end() takes; until then other rows are kInvalid.
  Result<std::uint64_t> add(std::span<const void* const> leaves, const RowInfo& info, const WaitContext& wait);
  Result<std::uint64_t> add(std::span<const void* const> leaves, const WaitContext& wait) {
    return add(leaves, {}, wait);
  }
  // Rows by the address of each leaf's first one, and how far it is to the next one's. Indices go to `indices`, if that
  // is not null. kInvalid before anything is added. Errors as of add(), also when some rows were: Error::completed says
  // how many. If last observations are kept, only the last of the rows may be truncated.
  struct Column {
    const std::byte* first = nullptr;
    std::uint64_t stride = 0;
  };
  struct Rows {
    std::span<const Column> columns{};
    std::uint64_t count = 0;
    const bool* ends = nullptr;         // which of them end an episode; null: none
    const bool* truncated = nullptr;    // which of those were cut off there; null: none
    const bool* terminated = nullptr;   // which of those are certainly terminal (RowInfo); null: none
    const float* priorities = nullptr;  // null: all are no numbers
  };
  Status extend(const Rows& rows, std::uint64_t* indices, const WaitContext& wait);
  // The episode is over: its rows are ready. `final` is its last observation, where these are kept: the address of each
  // leaf, null for those that have none, or no leaves at all. Code::kInvalid for one that was cut off and lacks it.
  // RowInfo::truncated and terminated of the last row take precedence over `truncated`. Without a row since the last
  // end, this does nothing. Errors as of add().
  Status end(std::span<const void* const> final, bool truncated, const WaitContext& wait);
  // The stream ends; a next row begins another place. Rows that still lack successors are never ready.
  void close() noexcept;

  std::uint64_t added() const noexcept { return added_; }
  // True if the last row ended its episode, and begin_episode() was not called since. Any thread may call it.
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_relaxed); }
  void begin_episode() noexcept { has_ended_.store(false, std::memory_order_relaxed); }
  // The number of the stream; none before its first row. It may be given one until then.
  std::optional<std::uint32_t> stream() const noexcept { return stream_; }
  void set_stream(std::uint32_t stream) noexcept { stream_ = stream; }

 private:
  // A place, and the number of its first slot in the stream.
  struct Part {
    Progress at{};  // as this writer left it; ticket 0: none
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
  void copy(std::span<const void* const> leaves) noexcept;
  void copy_rows(std::span<const Column> columns, std::uint64_t from, std::uint32_t count) noexcept;
  void mark_ends(const Rows& rows, std::uint64_t from, std::uint64_t ended) noexcept;
  void mark(std::uint32_t slot, bool truncated) noexcept;
  std::uint64_t publish_rows(std::uint32_t count, std::uint64_t ended) noexcept;
  std::uint64_t publish(std::uint64_t until) noexcept;
  std::uint64_t ready_with(std::uint64_t count, std::uint64_t ended) const noexcept;
  Result<std::uint64_t> ask(std::uint64_t ended, std::uint64_t& rows, const WaitContext& wait);
  void answer(std::uint64_t credits, std::uint64_t ready) noexcept;
  std::uint64_t make_left_ready(std::uint64_t until) noexcept;
  std::uint64_t tell(const Part& part, std::uint32_t ready) noexcept;
  void end_here(bool truncated) noexcept;
  void forget() noexcept;

  const std::shared_ptr<Store> store_;
  std::optional<std::uint32_t> stream_;
  const bool leaves_places_;  // to others
  RowObserver* const observer_;
  Membership membership_;
  Identity owner_ = memory::kNobody;  // who opened the place: a forked child is another
  Part part_;
  Entry entry_;                    // of the place's first slot
  std::vector<Part> left_;         // places before it, with rows that wait; the oldest first
  std::vector<float> priorities_;  // of the slots from ready_ on
  std::uint64_t added_ = 0;        // rows
  std::uint64_t written_ = 0;      // slots
  std::uint64_t ready_ = 0;        // those before this one are ready, or never will be
  bool in_episode_ = false;        // its last row ended none
  bool done_ = false;              // its last row ended one, and the last observation may still come
  bool lacks_final_ = false;       // its last row was truncated, and the last observation is still missing
  bool is_terminal_ = false;       // RowInfo::terminated of its last row
  std::atomic<bool> has_ended_{false};
};

}  // namespace shmtree::replay
