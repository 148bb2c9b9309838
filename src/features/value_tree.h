// What the Items of one message share: its nodes in preorder, found by number.
//
// Never changes once decode() has made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "format/frame_reader.h"
#include "shmtree/item.h"

namespace shmtree::features {

inline constexpr std::uint32_t kNone = UINT32_MAX;

// Everything is a place in one of the tree's vectors: about forty bytes a node, whatever it holds.
struct Node {
  Kind kind = Kind::kNone;
  DType dtype = DType::kOther;  // of a NumPy scalar
  std::uint16_t lead = 0;       // child nodes before the entries (the factory of a defaultdict)
  std::uint32_t key = kNone;    // of `texts`: the name under which it stands in its parent
  std::uint32_t text = 0;       // first of its `text_count` in `texts`: names, then strings
  std::uint32_t text_count = 0;
  std::uint32_t number = 0;  // first of its `number_count` in `ints`, or in `floats` for kinds made of floats
  std::uint32_t number_count = 0;
  std::uint32_t child = 0;  // first of its `child_count` in `children`
  std::uint32_t child_count = 0;
  std::uint32_t array = kNone;  // of `arrays`
};

struct Array {
  std::byte* data = nullptr;
  std::uint64_t item_bytes = 0;
  std::uint64_t elements = 0;
  std::string_view description{};
  std::uint32_t dims = 0;  // shape, then strides, in `dims`
  DType dtype = DType::kOther;
  std::uint8_t ndim = 0;
  bool read_only = false;
};

struct Tree {
  explicit Tree(format::FrameReader&& from) : reader(std::move(from)) {}

  const Node& at(std::uint32_t node) const noexcept { return nodes[node]; }
  static Item root(std::shared_ptr<const Tree> tree) { return Item(std::move(tree), 0); }

  // Short texts and names lie in its private copy of the metadata.
  format::FrameReader reader;
  // Keeps the frame, and the blocks that it refers to, in place.
  std::shared_ptr<const void> owner;

  std::vector<Node> nodes;
  std::vector<std::uint32_t> children;
  std::vector<std::string_view> texts;
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  std::vector<Array> arrays;
  std::vector<std::int64_t> dims;
};

// Entries with a key and a value: two nodes each in `children`, unless the keys are names.
constexpr bool has_key_nodes(Kind kind) noexcept {
  return kind == Kind::kDict || kind == Kind::kOrderedDict || kind == Kind::kDefaultDict || kind == Kind::kCounter;
}
constexpr bool has_named_entries(Kind kind) noexcept {
  return kind == Kind::kStrDict || kind == Kind::kStrOrderedDict || kind == Kind::kDataclass;
}

}  // namespace shmtree::features
