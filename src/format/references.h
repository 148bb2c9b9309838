// Objects met more than once in a message: the later nodes are references to the first, whose kind is marked.
//
// The mark is set when the object is met again, so writing and reading what is met once cost nothing: a marked kind is
// in no switch and has no rule in format/grammar.h. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "shmtree/kind.h"

namespace shmtree::format {

// In the kind of a node that a later one refers to.
inline constexpr std::uint8_t kMarked = 0x80;

constexpr bool is_marked(Kind kind) noexcept {
  return (static_cast<std::uint8_t>(kind) & kMarked) != 0;
}
constexpr Kind unmarked(Kind kind) noexcept {
  return static_cast<Kind>(static_cast<std::uint8_t>(kind) & ~kMarked);
}

// Whether it matters that an object is the same one: nodes of other kinds are never marked.
constexpr bool has_identity(Kind kind) noexcept {
  return kind >= Kind::kList || (kind >= Kind::kByteArray && kind <= Kind::kMemoryView);
}

// What a reader keeps of the marked nodes, by position; T() for a node whose object is not there yet.
template <class T>
class EarlierNodes {
 public:
  // Positions come in ascending order, as the nodes do. Returns the node's number here.
  std::size_t begin(std::size_t position) {
    nodes_.push_back({position, T()});
    return nodes_.size() - 1;
  }
  T& operator[](std::size_t number) noexcept { return nodes_[number].object; }
  // Null when there is no such node so far, or it is not marked.
  T* find(std::uint64_t position) noexcept {
    const auto at = std::lower_bound(nodes_.begin(), nodes_.end(), position,
                                     [](const Node& node, std::uint64_t wanted) { return node.position < wanted; });
    return at != nodes_.end() && at->position == position ? &at->object : nullptr;
  }
  bool empty() const noexcept { return nodes_.empty(); }
  T take_last() noexcept {
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

inline constexpr char kNoSuchNode[] = "a reference is to no earlier node that is marked";
inline constexpr char kNotThereYet[] = "a reference is to a node whose object is not there yet";

}  // namespace shmtree::format
