// Draws rows from one table of a replay buffer: which rows, and how likely each of them was; and copies them.
//
// Invariants:
//   - A row is drawn only when its leaf has a weight, where the table has leaves, and the buffer says that it is there.
//   - Where rows may be drawn `max_times`, no row is drawn more often, by all drawers of all processes together; a row
//     that was drawn by somebody who was killed counts as drawn.
//   - A draw that fails has taken nothing.
//
// Thread safety: one thread at a time; as many drawers as one likes. A forked child goes on with other random numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "replay/rows/gather.h"
#include "replay/sampling/random.h"
#include "replay/sampling/slot_set.h"
#include "replay/sampling/tables.h"

namespace shmtree::replay {

// Of as many rows: their indices, and what the leaf of each weighed when it was drawn, 1 where there are no leaves.
struct Picks {
  std::span<std::uint64_t> indices{};
  std::span<float> weights{};
};

class Drawer {
 public:
  static Result<std::unique_ptr<Drawer>> make(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  virtual ~Drawer() = default;
  Drawer(const Drawer&) = delete;
  Drawer& operator=(const Drawer&) = delete;

  // Draws rows, each of them once when they are to be `distinct`. Those in order of time or priority come again, in the
  // same order, when all were drawn.
  // kEmpty when no row, or too few of those that may be drawn some times only, can be had now; kInvalid, with the
  // numbers, for more distinct rows than there are.
  Status draw(const Picks& picks, bool distinct);
  // Draws again for the rows that are marked: they had gone when they were copied, or look back to what has. They are
  // not drawn again before the next draw().
  Status redraw(const Picks& picks, std::span<const bool> gone, bool distinct);
  // They were not used after all: rows with `max_times` may be drawn again.
  void put_back(const Picks& picks) const noexcept;

  // Draws rows and copies them: `out` says where each output of the gather goes, for as many rows as `picks` has. Rows
  // that were overwritten meanwhile are drawn anew, so that a batch is whole or there is none. Errors as of draw() and
  // Gather::read(); then nothing was drawn.
  Status draw_and_copy(const Gather& gather, const Picks& picks, std::span<std::byte* const> out, bool distinct,
                       unsigned threads);

  // Of rows as they were drawn last: the probability of each; how much it counts for who learns, (least / weight)^beta.
  // `of_buffer`: the least of all rows, not of these. Either may be empty.
  void describe(const Picks& picks, std::span<double> probabilities, std::span<float> importances, double beta,
                bool of_buffer);

  const Table& table() const noexcept { return (*tables_)[number_]; }
  // Weights as they are now, of samplers that draw by weight: all weigh 1 where they have no priorities. Counts as no
  // draw. kOutOfMemory. The least one costs sums of its own, from the first call on that asks for it.
  struct Weights {
    double total = 0;
    double least = 0;  // nothing where it was not asked for
  };
  Result<Weights> weigh(bool with_least);
  // For Tables::update() by the same thread; null where there is none.
  virtual LeafWatch* watch() noexcept { return nullptr; }

 protected:
  Drawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept;

  // Finds rows for the places of `picks` that `positions_` names; those that it could not find stay there.
  virtual Status find(const Picks& picks, bool distinct) = 0;
  // The sum of all weights, as of the last draw.
  virtual double total() const noexcept = 0;
  // Makes it that of now.
  virtual void renew_total() {}
  virtual double least() { return 1; }
  // Whether a draw takes something of a row's leaf, that is to be put back.
  virtual bool takes_leaves() const noexcept { return true; }

  // What came of a leaf that was chosen.
  enum class Found { kRow, kNothing, kNotReady, kStale };
  // The row of that leaf, unless it is not there, not ready, or was drawn often enough.
  Found take_row(std::uint64_t slot, std::uint64_t word, std::uint32_t position, const Picks& picks) const noexcept;
  // Rows that `picks` has already, when some are drawn again; how many.
  std::size_t add_kept(const Picks& picks, SlotSet& slots) const;
  // Those that were refused since draw(), by their indices.
  std::span<const std::uint64_t> refused() const noexcept { return refused_; }
  void add_refused(SlotSet& slots) const;

  const Store& store() const noexcept { return *tables_->store(); }
  Random& random() noexcept { return random_; }
  Error too_few(std::uint64_t wanted, std::uint64_t found) const;
  // Of draws in order: those that were found come again, in their order, at the positions for which there was none.
  // False when none may be drawn again.
  bool fill_up(const Picks& picks) const;

  const std::shared_ptr<Tables> tables_;
  const std::size_t number_;
  std::vector<std::uint32_t> positions_;
  std::vector<bool> is_wanted_;  // was among them at first

 private:
  Status find_all(const Picks& picks, bool distinct);
  void key_anew_after_fork() noexcept;
  Status replace(const Gather& gather, const Picks& picks, std::span<bool> gone, std::span<std::byte* const> out,
                 bool distinct);

  std::vector<std::uint64_t> refused_;
  const std::uint64_t seed_;
  Identity identity_;
  Random random_;
};

// Drawers of each kind, which Drawer::make() chooses from. Throw std::bad_alloc.
using DrawerPtr = std::unique_ptr<Drawer>;
// All rows of the window are as likely, and none is remembered, whatever leaves the table has.
DrawerPtr make_uniform_drawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// Each row as likely as its leaf weighs.
DrawerPtr make_tree_drawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// The oldest or the newest rows.
DrawerPtr make_walk_drawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
// The rows of the largest priorities.
DrawerPtr make_largest_drawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);

}  // namespace shmtree::replay
