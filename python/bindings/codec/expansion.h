// How large and how deep objects would be if their references were copies. That is what they cost whoever walks through
// all of them: a hash, a comparison, a repr. A frame of a few hundred bytes may stand for more than there is time for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace shmtree::python {

// Of one message. Only references are counted: what has none is as large as its frame, and as deep as readers allow.
class Expansion {
 public:
  struct Extent {
    std::uint64_t nodes = 0;
    std::size_t height = 0;  // levels below it
  };
  // What was there before a part began.
  struct Before {
    std::uint64_t nodes;
    std::size_t reach;
  };

  Before begin(std::size_t depth) noexcept { return {nodes_, std::exchange(reach_, depth)}; }
  // Of the part that began so, by references alone.
  Extent end(const Before& before, std::size_t depth) noexcept {
    const Extent extent{nodes_ - before.nodes, std::max(reach_, depth) - depth};
    reach_ = std::max(reach_, before.reach);
    return extent;
  }
  // A reference, at that depth, to an object of that extent.
  void refer(std::size_t depth, const Extent& to) noexcept {
    nodes_ = std::min(nodes_ + to.nodes, kMost);
    reach_ = std::max(reach_, depth + to.height);
  }
  // Whether a part may be walked through, in a message of so many nodes: all such parts together count.
  bool allows(const Extent& part, std::uint64_t message_nodes) noexcept {
    walked_ = std::min(walked_ + part.nodes, kMost);
    return part.height <= kMostWalkedDepth && walked_ <= kFreelyWalked + kWalkedPerNode * message_nodes;
  }

  static constexpr std::size_t kMostWalkedDepth = 1000;

 private:
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  static constexpr std::uint64_t kFreelyWalked = 65'536, kWalkedPerNode = 64;

  std::uint64_t nodes_ = 0, walked_ = 0;
  std::size_t reach_ = 0;
};

}  // namespace shmtree::python
