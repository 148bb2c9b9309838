// Inner nodes over the leaves of a table: their sum, maximum or minimum, with eight children per node. Private to a
// sampler. Nodes are always computed from their children and never adjusted, so rounding errors do not accumulate.
//
// Level 0 has one node for each line of eight leaves, level k + 1 one for eight nodes of level k, the last level one.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "platform/dcheck.h"
#include "platform/file.h"
#include "replay/sampling/leaves.h"

namespace shmtree::replay {

struct Sum {
  static constexpr double kNothing = 0;
  static constexpr double of_leaf(float weight) noexcept { return weight; }
  static constexpr double of(double a, double b) noexcept { return a + b; }
};
struct Max {
  static constexpr double kNothing = 0;
  static constexpr double of_leaf(float weight) noexcept { return weight; }
  static constexpr double of(double a, double b) noexcept { return a < b ? b : a; }
};
// Minimum over the leaves that may be sampled.
struct Min {
  static constexpr double kNothing = std::numeric_limits<double>::infinity();
  static constexpr double of_leaf(float weight) noexcept { return weight > 0 ? weight : kNothing; }
  static constexpr double of(double a, double b) noexcept { return b < a ? b : a; }
};

struct alignas(64) TreeLine {
  double node[8];
};

template <class Operation>
class LeafTree {
 public:
  explicit LeafTree(std::uint64_t lines) {
    SHMTREE_DCHECK(lines != 0);
    std::uint64_t nodes = lines;
    do {
      levels_.push_back({.first_line = line_count_, .nodes = nodes});
      nodes = (nodes + 7) / 8;
      line_count_ += nodes;
    } while (levels_.back().nodes > 1);
    TreeLine nothing{};
    std::fill_n(nothing.node, 8, Operation::kNothing);
    lines_.reserve(line_count_);
    platform::advise_huge(reinterpret_cast<std::byte*>(lines_.data()), line_count_ * sizeof(TreeLine));
    lines_.assign(line_count_, nothing);
  }

  // Combines the values of a node's children.
  static double of_eight(const double* value) noexcept {
    const auto both = Operation::of;
    return both(both(both(value[0], value[1]), both(value[2], value[3])),
                both(both(value[4], value[5]), both(value[6], value[7])));
  }

  std::size_t levels() const noexcept { return levels_.size(); }
  double total() const noexcept { return line(levels() - 1, 0).node[0]; }
  // Returns the nodes 8 * `number` to 8 * `number` + 7 of the level. Nodes beyond its end are kNothing.
  const TreeLine& line(std::size_t level, std::uint64_t number) const noexcept {
    SHMTREE_DCHECK(level < levels_.size() && 8 * number < levels_[level].nodes);
    return lines_[levels_[level].first_line + number];
  }
  double node(std::size_t level, std::uint64_t number) const noexcept {
    return line(level, number / 8).node[number % 8];
  }

  // Returns the nearest line of leaves that is not kNothing, from `number` inclusive, upwards or downwards, or kNone.
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t nearest(std::uint64_t number, bool upwards) const noexcept {
    const auto in_line = [&](std::size_t level, std::uint64_t from) {  // searches the children of one node
      const double* node = line(level, from / 8).node;
      for (std::uint64_t at = from;; at += upwards ? 1 : -std::uint64_t{1}) {
        if (node[at % 8] != Operation::kNothing) return at;
        if (at % 8 == (upwards ? 7 : 0)) return kNone;
      }
    };
    for (std::size_t level = 0; level < levels() && number < levels_[level].nodes; ++level) {
      std::uint64_t found = in_line(level, number);
      if (found == kNone) {  // continues beyond the parent
        number = upwards ? number / 8 + 1 : number / 8 - 1;
        continue;
      }
      while (level-- > 0 && found != kNone) found = in_line(level, upwards ? found * 8 : found * 8 + 7);
      return found;
    }
    return kNone;
  }

  // Computes the whole tree. weight(slot) returns the weight of a leaf.
  template <class Weight>
  void build(Weight weight) noexcept {
    for (std::uint64_t number = 0; number < levels_[0].nodes; ++number) set(0, number, of_leaves(number, weight));
    for (std::size_t level = 1; level < levels(); ++level) renew_level(level);
  }
  // Computes the nodes of these lines of leaves, and all nodes above them. Empties `lines`.
  template <class Weight>
  void renew(std::vector<std::uint32_t>& lines, Weight weight) noexcept {
    if (lines.empty()) return;
    for (std::size_t level = 0; level + 1 < levels(); ++level) fetch_above(level, lines);
    for (const std::uint32_t number : lines) set(0, number, of_leaves(number, weight));
    std::size_t level = 1;
    for (; level < levels() && lines.size() < levels_[level].nodes; ++level) {
      std::size_t kept = 0;
      std::uint32_t last = 0;
      for (const std::uint32_t number : lines) {
        const std::uint32_t above = number / 8;
        if (kept != 0 && above == last) continue;
        lines[kept++] = last = above;
        set(level, above, of_nodes(level - 1, above));
      }
      lines.resize(kept);
    }
    for (; level < levels(); ++level) renew_level(level);
    lines.clear();
  }

 private:
  struct Level {
    std::uint64_t first_line = 0, nodes = 0;
  };

  void set(std::size_t level, std::uint64_t number, double value) noexcept {
    SHMTREE_DCHECK(level < levels_.size() && number < levels_[level].nodes);
    lines_[levels_[level].first_line + number / 8].node[number % 8] = value;
  }
  template <class Weight>
  static double of_leaves(std::uint64_t line, Weight& weight) noexcept {
    double value[8];
    for (std::uint64_t i = 0; i < 8; ++i) value[i] = Operation::of_leaf(weight(line * kLineLeaves + i));
    return of_eight(value);
  }
  double of_nodes(std::size_t level, std::uint64_t number) const noexcept { return of_eight(line(level, number).node); }
  void renew_level(std::size_t level) noexcept {
    for (std::uint64_t number = 0; number < levels_[level].nodes; ++number) {
      set(level, number, of_nodes(level - 1, number));
    }
  }
  void fetch_above(std::size_t level, const std::vector<std::uint32_t>& lines) const noexcept {
    if (levels_[level].nodes < lines.size()) return;  // the whole level is read anyway
    const unsigned shift = 3 * static_cast<unsigned>(level + 1);
    for (const std::uint32_t number : lines) {
      platform::prefetch_for_write(&line(level, number >> shift), sizeof(TreeLine));
    }
  }

  std::vector<Level> levels_;
  std::uint64_t line_count_ = 0;
  std::vector<TreeLine> lines_;
};

}  // namespace shmtree::replay
