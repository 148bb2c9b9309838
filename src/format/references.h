// Objects that occur more than once in a message. Later occurrences are reference nodes; the first node's kind is
// marked.
//
// The writer sets the mark when it finds the object again, so objects that occur once cost nothing. A marked kind
// appears in no switch and has no rule in format/grammar.h, so readers handle it outside their fast path. Thread
// safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "platform/dcheck.h"
#include "shmtree/base/kind.h"

namespace shmtree::format {

// Bit in the kind of a node to which a later node refers.
inline constexpr std::uint8_t kMarked = 0x80;

constexpr bool is_marked(Kind kind) noexcept {
  return (static_cast<std::uint8_t>(kind) & kMarked) != 0;
}
constexpr Kind unmarked(Kind kind) noexcept {
  return static_cast<Kind>(static_cast<std::uint8_t>(kind) & ~kMarked);
}

// Returns true if the identity of objects of this kind matters. Nodes of other kinds are never marked.
constexpr bool has_identity(Kind kind) noexcept {
  return kind >= Kind::kList || (kind >= Kind::kByteArray && kind <= Kind::kMemoryView);
}

// The objects of marked nodes, by position, as a reader keeps them. A value T() marks an object that does not exist
// yet.
template <class T>
class EarlierNodes {
 public:
  // Adds the node at `position`, and returns its number in this table. Positions must ascend.
  std::size_t begin(std::size_t position) {
    SHMTREE_DCHECK(nodes_.empty() || nodes_.back().position < position);
    nodes_.push_back({position, T()});
    return nodes_.size() - 1;
  }
  T& operator[](std::size_t number) noexcept {
    SHMTREE_DCHECK(number < nodes_.size());
    return nodes_[number].object;
  }
  // Returns nullptr if no marked node at this position has been read.
  T* find(std::uint64_t position) noexcept {
    const auto at = std::lower_bound(nodes_.begin(), nodes_.end(), position,
                                     [](const Node& node, std::uint64_t wanted) { return node.position < wanted; });
    return at != nodes_.end() && at->position == position ? &at->object : nullptr;
  }
  bool empty() const noexcept { return nodes_.empty(); }
  T take_last() noexcept {
    SHMTREE_DCHECK(!nodes_.empty());
    T object = std::move(nodes_.back().object);
    nodes_.pop_back();
    return object;
  }

 private:
  struct Node {
    std::uint64_t position;
    T object;
  };
  std::vector<Node> nodes_;
};

inline constexpr char kNoSuchNode[] = "a reference does not point to an earlier marked node";
inline constexpr char kNotThereYet[] = "a reference points to a node that is not built yet";

}  // namespace shmtree::format
