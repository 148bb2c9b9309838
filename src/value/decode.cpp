// decode(): converts a frame to the tree of its Items.
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "format/node_walk.h"
#include "value/codec.h"
#include "value/tree.h"
#include "value/tree_allocator.h"

namespace shmtree::value {

namespace {

Error corrupt(const std::string& reason) {
  return Error{.code = Code::kCorrupt, .message = "The frame is corrupt: " + reason + "."};
}

// Builds the tree in one walk over the nodes.
class Decoder {
 public:
  struct Node {
    std::uint32_t index = kNone;
    std::uint32_t base = 0;  // index of the node's first child in pending_
  };
  using Object = std::uint32_t;  // its node

  explicit Decoder(Tree& tree) noexcept : tree_(tree) {}

  // Call this after all nodes were read. A reference to an object that was complete becomes a copy of its node.
  void resolve_references() {
    if (tree_.references == nullptr) return;
    for (const References::Alias& alias : tree_.references->aliases) {
      if (alias.is_in_target) continue;
      value::Node& node = tree_.nodes[alias.node];
      const std::uint32_t key = node.key;
      node = tree_.at(alias.target);
      node.key = key;
    }
  }

  // Fast path: reads a node of one of the most frequent kinds, with the same result as the rules.
  [[gnu::always_inline]] bool scalar(Kind kind, Node& at) {
    value::Node node{.kind = kind, .key = key_, .text = tree_.texts.size()};
    switch (kind) {
      case Kind::kNone:
      case Kind::kFalse:
      case Kind::kTrue: break;
      case Kind::kInt:
        node.number = tree_.ints.size(), node.number_count = 1;
        tree_.ints.push_back(tree_.reader.next_int());
        break;
      case Kind::kFloat:
        node.number = tree_.floats.size(), node.number_count = 1;
        tree_.floats.push_back(tree_.reader.next_float());
        break;
      case Kind::kStr:
        node.text_count = 1;
        tree_.texts.push_back(tree_.reader.next_string());
        break;
      default: return false;
    }
    at.index = tree_.nodes.size();
    tree_.nodes.push_back(node);
    return true;
  }
  Node begin(Kind kind) {
    tree_.nodes.push_back({.kind = kind, .key = key_, .text = tree_.texts.size()});
    return {tree_.nodes.size() - 1, pending_.size()};
  }
  void end(Node& at) {
    value::Node& node = tree_.nodes[at.index];
    node.child = tree_.children.size();
    node.child_count = pending_.size() - at.base;
    tree_.children.append({pending_.data() + at.base, node.child_count});
    pending_.truncate(at.base);
  }
  void begin_child(Node&, const format::Place& place) {
    key_ = place.role == format::Place::kField ? place.name.index : kNone;
  }
  void end_child(Node&, const format::Place&, const Node& child) {
    if (!tree_.reader.failed()) pending_.push_back(child.index);
  }

  Object object(Node& at) {
    if (tree_.references == nullptr) tree_.references = std::make_unique<References>();
    return at.index;
  }
  void refer(Node& at, std::uint64_t, const auto& earlier) {
    tree_.references->aliases.push_back({.node = at.index, .target = earlier.object, .is_in_target = earlier.is_open});
  }

  void count(Node& at, std::uint64_t) {
    tree_.nodes[at.index].lead = static_cast<std::uint16_t>(pending_.size() - at.base);
  }
  void segments(Node& at, std::uint64_t count) { length(at, 0, count); }
  // A node's own values precede the values of its children, so the values of one node are contiguous.
  void number(Node& at, char, std::int64_t value) { add_number(at, tree_.ints, value); }
  void length(Node& at, char, std::uint64_t value) { add_number(at, tree_.ints, static_cast<std::int64_t>(value)); }
  void flags(Node& at, std::uint64_t value) { length(at, 0, value); }
  void real(Node& at, double value) { add_number(at, tree_.floats, value); }
  void name(Node& at, char, const format::Name& name) { text(at, name.text); }
  void text(Node& at, std::string_view text) {
    value::Node& node = tree_.nodes[at.index];
    if (node.text_count++ == 0) node.text = tree_.texts.size();
    tree_.texts.push_back(text);
  }
  void bytes(Node& at, std::string_view bytes) { text(at, bytes); }
  void element(Node& at, std::string_view bytes) { text(at, bytes); }
  void dtype(Node& at, DType dtype, const format::Name& description) {
    tree_.nodes[at.index].dtype = dtype;
    if (dtype == DType::kOther) text(at, description.text);
  }

  void ints(Node& at, std::span<const std::int64_t> values) { add_numbers(at, Kind::kInt, tree_.ints, values); }
  void floats(Node& at, std::span<const double> values) { add_numbers(at, Kind::kFloat, tree_.floats, values); }

  void array(Node& at, char, const format::ArrayInfo& info) {
    value::Node& node = tree_.nodes[at.index];
    if (node.array == kNone) node.array = tree_.arrays.size();
    // The const_cast is valid because receivers may write to the memory of a message. `read_only` says if this array
    // may be written.
    tree_.arrays.push_back({.data = const_cast<std::byte*>(info.data),
                            .item_bytes = info.item_bytes,
                            .elements = info.elements,
                            .description = info.description.text,
                            .dims = tree_.dims.size(),
                            .dtype = info.dtype,
                            .ndim = info.ndim,
                            .read_only = info.read_only()});
    tree_.dims.append({info.shape, info.ndim});
    tree_.dims.append({info.strides, info.ndim});
  }

 private:
  void add_number(Node& at, auto& numbers, auto value) {
    value::Node& node = tree_.nodes[at.index];
    if (node.number_count++ == 0) node.number = numbers.size();
    numbers.push_back(value);
  }

  // The items of a list of numbers become nodes as well, so that it looks like any other list.
  void add_numbers(Node& at, Kind kind, auto& numbers, auto values) {
    for (const auto value : values) add_number(at, numbers, value);
    const value::Node list = tree_.nodes[at.index];
    for (std::uint32_t i = 0; i < list.number_count; ++i) {
      pending_.push_back(tree_.nodes.size());
      tree_.nodes.push_back({.kind = kind, .number = list.number + i, .number_count = 1});
    }
  }

  Tree& tree_;
  std::uint32_t key_ = kNone;  // of the next node

  // Memory that only this pass uses. For small messages it is on the stack.
  static constexpr std::size_t kFewNodes = 64;
  std::uint32_t on_stack_[kFewNodes];
  Trailing memory_{on_stack_, sizeof(on_stack_)};
  Rows<std::uint32_t> pending_{memory_, kFewNodes};
};

// Copies of the blocks, if they have no owner.
struct Copies {
  std::vector<std::shared_ptr<const std::byte>> owners{};
  std::vector<std::span<const std::byte>> blocks{};
};
std::shared_ptr<const Copies> copies_of(std::span<const std::span<const std::byte>> blocks) {
  auto copies = std::make_shared<Copies>();
  for (const auto& block : blocks) {
    copies->owners.push_back(aligned_copy(block));
    copies->blocks.emplace_back(copies->owners.back().get(), block.size());
  }
  return copies;
}

}  // namespace

std::shared_ptr<const std::byte> aligned_copy(std::span<const std::byte> bytes) {
  struct alignas(format::kBufferAlignment) Line {
    std::byte bytes[format::kBufferAlignment];
  };
  auto lines = std::make_shared_for_overwrite<Line[]>(bytes.size() / sizeof(Line) + 1);
  auto* begin = reinterpret_cast<std::byte*>(lines.get());
  if (!bytes.empty()) std::memcpy(begin, bytes.data(), bytes.size());
  return {std::move(lines), begin};
}

Result<Item> decode(std::span<const std::byte> frame, std::shared_ptr<const void> owner,
                    std::span<const std::span<const std::byte>> blocks, const void* home, bool read_only) try {
  format::FrameReader reader;
  Status loaded = reader.load(frame);
  if (!loaded) return std::move(loaded).error();
  // All indices into the tree have 32 bits.
  if (reader.metadata_bytes() >= UINT32_MAX / 4) return corrupt("its tree is too large for one Item");
  const std::span<const std::byte> buffers = reader.buffers();
  const bool copied = owner == nullptr && !buffers.empty();
  const std::size_t extra = Tree::expected_bytes(reader) + (copied ? buffers.size() + format::kBufferAlignment : 0);
  auto tree = std::allocate_shared<Tree>(TrailingAllocator<Tree>(extra), std::move(reader), extra);
  if (copied) {
    auto* copy = static_cast<std::byte*>(tree->memory.allocate(buffers.size(), format::kBufferAlignment));
    std::memcpy(copy, buffers.data(), buffers.size());
    tree->reader.move_buffers(copy);
  }
  if (owner == nullptr && !blocks.empty()) {
    auto copies = copies_of(blocks);
    blocks = copies->blocks;
    owner = std::move(copies);
  }
  tree->owner = std::move(owner);
  tree->home = home;
  format::NodeWalk<Decoder> walk(tree->reader, blocks, *tree);
  walk.node();
  walk.visitor().resolve_references();
  Status status = tree->reader.finish();
  if (!status.ok()) return std::move(status).error();
  if (read_only) {
    for (Array& array : tree->arrays) array.read_only = true;
  }
  return Tree::root(std::move(tree));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::value
