// Computes how large and how deep objects would be if their references were copies. A walk over all of them, such as a
// hash, a comparison or a repr, costs that much. A frame of a few hundred bytes may stand for a practically endless
// walk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace shmtree::python {

// Expansion of one message. Only references are counted, since the size of the frame and the depth limit of readers
// bound all other nodes.
class Expansion {
 public:
  struct Extent {
    std::uint64_t nodes = 0;
    std::size_t height = 0;  // levels below the object
  };
  // State before a part of the message began.
  struct Before {
    std::uint64_t nodes;
    std::size_t reach;
  };

  Before begin(std::size_t depth) noexcept { return {nodes_, std::exchange(reach_, depth)}; }
  // Returns the extent of the part that began with `before`. Only references contribute to it.
  Extent end(const Before& before, std::size_t depth) noexcept {
    const Extent extent{nodes_ - before.nodes, std::max(reach_, depth) - depth};
    reach_ = std::max(reach_, before.reach);
    return extent;
  }
  // Counts a reference, at that depth, to an object of the extent `to`.
  void refer(std::size_t depth, const Extent& to) noexcept {
    nodes_ = std::min(nodes_ + to.nodes, kMax);
    reach_ = std::max(reach_, depth + to.height);
  }
  // Returns true if code may walk the part, in a message with that many nodes. The limit applies to all such parts
  // together.
  bool allows(const Extent& part, std::uint64_t message_nodes) noexcept {
    walked_ = std::min(walked_ + part.nodes, kMax);
    return part.height <= kMaxWalkedDepth && walked_ <= kFreelyWalked + kWalkedPerNode * message_nodes;
  }

  static constexpr std::size_t kMaxWalkedDepth = 1000;

 private:
  static constexpr std::uint64_t kMax = std::uint64_t{1} << 60;
  static constexpr std::uint64_t kFreelyWalked = 65'536, kWalkedPerNode = 64;

  std::uint64_t nodes_ = 0, walked_ = 0;
  std::size_t reach_ = 0;
};

}  // namespace shmtree::python
