// The drawers of each kind of sampler.
#pragma once

#include "replay/drawer.h"
#include "replay/slot_set.h"
#include "replay/tree.h"

namespace shmtree::replay {

// All rows of the window are as likely, and none is remembered: there is nothing but the window, whatever leaves the
// table has.
class UniformDrawer final : public Drawer {
 public:
  UniformDrawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed) noexcept
      : Drawer(std::move(tables), table, seed) {}

 private:
  Status find(const Picks& picks, bool distinct) override;
  double total() const noexcept override { return static_cast<double>(store().size()); }
  bool takes_leaves() const noexcept override { return false; }
  Status find_among_all(const Picks& picks, bool distinct);

  SlotSet found_;
  std::vector<std::uint64_t> tried_;
};

// As likely as the leaf of a row weighs, by sums of its own over the leaves.
class TreeDrawer final : public Drawer {
 public:
  TreeDrawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  LeafWatch* watch() noexcept override { return &watch_; }

 private:
  Status find(const Picks& picks, bool distinct) override;
  double total() const noexcept override { return total_; }
  void renew_total() override;
  double least() override;

  Status find_in_rounds(const Picks& picks, bool distinct);
  void look_at_changes();
  template <class Weight>
  void sum_up(bool all, Weight weight);
  void choose();
  void choose_leaf(std::size_t at) noexcept;
  bool accept(std::size_t at, std::uint32_t position, const Picks& picks, bool distinct);
  void leave_out();
  void let_in_again() noexcept;

  LeafWatch watch_;
  LeafTree<Sum> sums_;
  std::unique_ptr<LeafTree<Least>> leasts_;  // once it was asked for
  double total_ = 0;
  // Of the rows to be found:
  std::vector<std::uint64_t> nodes_;  // where they are on their way down the tree; at last, the slot
  std::vector<double> rests_;         // of the sum below that node
  std::vector<std::uint64_t> words_;  // the leaf
  // Slots that are not to be drawn again, and whether the sums are those without them.
  SlotSet taken_;
  bool are_out_ = false, refusals_are_taken_ = false;
  bool met_stale_ = false;  // leaves of rows that are no more, which weigh nothing by now
};

// The oldest or the newest rows. Without leaves a walk through the window; with them, through those that may still be
// drawn.
class WalkDrawer final : public Drawer {
 public:
  WalkDrawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  LeafWatch* watch() noexcept override { return leaves_ == nullptr ? nullptr : &leaves_->watch; }

 private:
  // The largest weight below each node: whether there is any.
  struct Marked {
    explicit Marked(const Leaves& leaves) : watch(leaves), tree(leaves.lines()) {}
    LeafWatch watch;
    LeafTree<Most> tree;
  };
  Status find(const Picks& picks, bool distinct) override;
  double total() const noexcept override { return 1; }
  void walk_window(const Picks& picks);
  void walk_leaves(const Picks& picks);
  void walk_slots(std::uint64_t first, std::uint64_t end, const Picks& picks);
  bool is_oldest_first() const noexcept { return table().spec().kind == SamplerKind::kFifo; }

  std::unique_ptr<Marked> leaves_;  // with `max_times`
  SlotSet taken_;
  std::size_t found_ = 0;
};

// The rows of the largest priorities.
class LargestDrawer final : public Drawer {
 public:
  LargestDrawer(std::shared_ptr<Tables> tables, std::size_t table, std::uint64_t seed);
  LeafWatch* watch() noexcept override { return &watch_; }

 private:
  // Something that may be the next largest: a node of a level, or a slot.
  struct Candidate {
    double value = 0;
    std::size_t level = 0;  // kSlot: a slot
    std::uint64_t number = 0;
    std::uint64_t word = 0;  // of a slot
    bool operator<(const Candidate& other) const noexcept { return value < other.value; }
  };
  static constexpr std::size_t kSlot = ~std::size_t{0};

  Status find(const Picks& picks, bool distinct) override;
  double total() const noexcept override { return 1; }
  void push(const Candidate& candidate);
  void push_children(const Candidate& of);

  LeafWatch watch_;
  LeafTree<Most> largest_;
  std::vector<Candidate> heap_;
  SlotSet taken_;
};

}  // namespace shmtree::replay
