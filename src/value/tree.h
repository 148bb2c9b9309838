// Shared state of the Items of one message: its nodes in preorder, identified by number.
//
// Immutable after decode().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/frame_reader.h"
#include "format/grammar.h"
#include "platform/dcheck.h"
#include "shmtree/item.h"
#include "value/tree_allocator.h"

namespace shmtree::value {

inline constexpr std::uint32_t kNone = UINT32_MAX;

// All members are indices into the tree's rows: about forty bytes per node of any kind.
struct Node {
  Kind kind = Kind::kNone;
  DType dtype = DType::kOther;  // Element type of a NumPy scalar.
  std::uint16_t lead = 0;       // Number of child nodes before the entries (the factory of a defaultdict).
  std::uint32_t key = kNone;    // Number of the node's name in its parent, as an index into the names of the frame.
  std::uint32_t text = 0;       // Index of the first of its `text_count` texts in `texts`: names, then strings.
  std::uint32_t text_count = 0;
  // Index of the first of its `number_count` numbers in `ints`, or in `floats` for kinds made of floats.
  std::uint32_t number = 0;
  std::uint32_t number_count = 0;
  std::uint32_t child = 0;  // Index of the first of its `child_count` children in `children`.
  std::uint32_t child_count = 0;
  std::uint32_t array = kNone;  // Index into `arrays`.
};

struct Array {
  std::byte* data = nullptr;
  std::uint64_t item_bytes = 0;
  std::uint64_t elements = 0;
  std::string_view description{};
  std::uint32_t dims = 0;  // Index into `dims` of its shape, followed by its strides.
  DType dtype = DType::kOther;
  std::uint8_t ndim = 0;
  bool read_only = false;
};

// Objects that occur more than once. A node that refers to an earlier one is a copy of it except for its key: it has
// the same children. A node that refers to an object that contains it stays a kReference, so that the tree is finite.
struct References {
  struct Alias {
    std::uint32_t node, target;
    bool is_in_target;
  };
  std::vector<Alias> aliases{};  // Sorted by node.

  // Returns the node to which `node` refers, or `node` itself if it is not a reference.
  std::uint32_t target_of(std::uint32_t node) const noexcept {
    SHMTREE_DCHECK(std::ranges::is_sorted(aliases, {}, &Alias::node));
    const auto at = std::lower_bound(aliases.begin(), aliases.end(), node,
                                     [](const Alias& alias, std::uint32_t wanted) { return alias.node < wanted; });
    return at != aliases.end() && at->node == node ? at->target : node;
  }
};

struct Tree {
  // `from` is a reader that has not read any node yet. `extra` is the number of bytes behind the tree in the same
  // allocation.
  Tree(format::FrameReader&& from, std::size_t extra) : reader(std::move(from)), memory(this + 1, extra) {}

  const Node& at(std::uint32_t node) const noexcept {
    SHMTREE_DCHECK(node < nodes.size());
    return nodes[node];
  }
  // Returns the name of a node that is an entry or a field.
  std::string_view key_of(const Node& node) const noexcept { return reader.name_again(node.key).text; }
  static Item root(std::shared_ptr<const Tree> tree) { return Item(std::move(tree), 0); }
  static Item item(std::shared_ptr<const Tree> tree, std::uint32_t node) { return Item(std::move(tree), node); }
  static const std::shared_ptr<const Tree>& of(const Item& item) noexcept { return item.tree_; }
  static std::uint32_t node_of(const Item& item) noexcept { return item.node_; }

  // The frame's reader. Short texts and names are in its private copy of the metadata.
  format::FrameReader reader;
  // Keeps the frame, and the blocks that it refers to, in place.
  std::shared_ptr<const void> owner;
  const void* home = nullptr;                // The `home` argument of decode().
  std::unique_ptr<References> references{};  // Null if the message has no references.

  // Uses the extra memory behind the tree. Allocates more if the sizes of the columns underestimate the need: the
  // numbers of a list become nodes, too, and arrays may have many dimensions.
  Trailing memory;
  Rows<Node> nodes{memory, reader.nodes()};
  Rows<std::uint32_t> children{memory, reader.nodes()};
  Rows<std::string_view> texts{memory, reader.left().lengths.left()};
  Rows<std::int64_t> ints{memory, reader.left().ints.left()};
  Rows<double> floats{memory, reader.left().floats.left()};
  Rows<Array> arrays{memory, reader.left().arrays.left()};
  Rows<std::int64_t> dims{memory, kExpectedDims* reader.left().arrays.left()};

  static constexpr std::size_t kExpectedDims = 4;  // Shape and strides of an array.
  // Returns the estimated bytes of everything except copies of buffers.
  static std::size_t expected_bytes(const format::FrameReader& from) noexcept {
    return from.nodes() * (sizeof(Node) + sizeof(std::uint32_t)) +
           from.left().lengths.left() * sizeof(std::string_view) +
           (from.left().ints.left() + from.left().floats.left() + from.left().arrays.left() * kExpectedDims) * 8 +
           from.left().arrays.left() * sizeof(Array) + 64;  // Plus alignment.
  }
};

inline const Node kNoNode{};
// Returns the node of an Item; one of kind none for an Item without a message.
inline const Node& node_of(const std::shared_ptr<const Tree>& tree, std::uint32_t node) noexcept {
  return tree == nullptr ? kNoNode : tree->at(node);
}

// Returns the content of a long str, or of long bytes.
inline std::string_view text_of(const Array& array) noexcept {
  return {reinterpret_cast<const char*>(array.data), static_cast<std::size_t>(array.elements)};
}

// Returns the name of a kind in errors, as users of Python and C++ know it: "None", "int", "string", "dict".
std::string_view word_of(Kind kind) noexcept;
// Returns the name with its article: "None", "an int".
std::string with_article(Kind kind);
// Returns the beginning of a key, in quotes, with unprintable characters escaped.
std::string quoted(std::string_view key);

// True for dicts with entries of two nodes in `children`: key and value. Otherwise the keys are names.
constexpr bool has_key_nodes(Kind kind) noexcept {
  return format::has_trait(kind, format::kHasKeyNodes);
}
constexpr bool has_named_entries(Kind kind) noexcept {
  return format::has_trait(kind, format::kHasNamedEntries);
}

}  // namespace shmtree::value
