// decode(): converts a frame to the tree of its Items.
#include <algorithm>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <vector>

#include "format/grammar.h"
#include "value/codec.h"
#include "value/tree.h"
#include "value/tree_allocator.h"

namespace shmtree::value {

namespace {

Error corrupt(const std::string& reason) {
  return Error{.code = Code::kCorrupt, .message = "The frame is corrupt: " + reason + "."};
}

// Reads the columns in one pass, by the rules of format/grammar.h. The reader's depth bounds the recursion.
class Decoder {
 public:
  Decoder(Tree& tree, std::span<const std::span<const std::byte>> blocks)
      : tree_(tree), reader_(tree.reader), blocks_(blocks) {
    pending_.reserve(kFewNodes);
    names_.reserve(kFewNodes);
  }

  std::uint32_t node(std::uint32_t key) {
    const auto index = static_cast<std::uint32_t>(tree_.nodes.size());
    const Kind kind = reader_.next_kind();
    const char* rule = format::grammar_of(kind);
    if (rule == nullptr) [[unlikely]]
      return marked(kind, key);
    return bare(kind, rule, index, key);
  }

  // Call this after all nodes were read. A reference to an object that was complete becomes a copy of its node.
  void resolve_references() {
    if (tree_.references == nullptr) return;
    for (const References::Alias& alias : tree_.references->aliases) {
      if (alias.is_in_target) continue;
      Node& node = tree_.nodes[alias.node];
      const std::uint32_t key = node.key;
      node = tree_.at(alias.target);
      node.key = key;
    }
  }

 private:
  [[gnu::always_inline]] std::uint32_t bare(Kind kind, const char* rule, std::uint32_t index, std::uint32_t key) {
    Node fresh;
    fresh.kind = kind;
    fresh.key = key;
    fresh.text = static_cast<std::uint32_t>(tree_.texts.size());
    tree_.nodes.push_back(fresh);
    const std::size_t base = pending_.size();
    follow(rule, index);
    tree_.nodes[index].child = static_cast<std::uint32_t>(tree_.children.size());
    tree_.nodes[index].child_count = static_cast<std::uint32_t>(pending_.size() - base);
    tree_.children.insert(tree_.children.end(), pending_.begin() + static_cast<std::ptrdiff_t>(base), pending_.end());
    pending_.resize(base);
    return index;
  }

  [[gnu::noinline, gnu::cold]] std::uint32_t marked(Kind kind, std::uint32_t key) {
    const auto index = static_cast<std::uint32_t>(tree_.nodes.size());
    const Kind unmarked = format::unmarked(kind);
    const char* rule = format::has_identity(unmarked) ? format::grammar_of(unmarked) : nullptr;
    if (rule == nullptr) return reader_.fail_kind(kind), index;
    if (tree_.references == nullptr) tree_.references = std::make_unique<References>();
    const std::size_t number = tree_.references->earlier.begin(reader_.position());
    if (format::has_trait(unmarked, format::kMadeBeforeItems)) tree_.references->earlier[number].node = index;
    bare(unmarked, rule, index, key);
    tree_.references->earlier[number] = {.node = index, .is_open = false};
    return index;
  }

  [[gnu::noinline, gnu::cold]] void refer(std::uint32_t index) {
    const std::uint64_t position = reader_.next_length();
    if (reader_.failed()) return;
    References* references = tree_.references.get();
    const References::Earlier* earlier = references == nullptr ? nullptr : references->earlier.find(position);
    if (earlier == nullptr) return reader_.fail(format::kNoSuchNode);
    if (earlier->node == kNone) return reader_.fail(format::kNotThereYet);
    references->aliases.push_back({.node = index, .target = earlier->node, .is_in_target = earlier->is_open});
  }

  void follow(const char* const whole, std::uint32_t index) {
    for (const char* rule = whole; *rule != 0 && !reader_.failed(); ++rule) {
      switch (*rule) {
        case 'I': add_int(index, reader_.next_int()); break;
        case 'L': add_int(index, static_cast<std::int64_t>(reader_.next_length())); break;
        case 'F': add_float(index, reader_.next_float()); break;
        case 'N': add_text(index, reader_.next_name().text); break;
        case 'S':
        case 'B': add_text(index, reader_.next_string()); break;
        case 'U': add_text(index, reader_.next_text(16)); break;
        case 'A': add_array(index); break;
        case 'V': child(kNone); break;
        case 'R': refer(index); break;
        case 'D':
        case 'E': add_dtype(index, *rule == 'E'); break;
        case 'Q': {
          const std::uint64_t count = reader_.next_count();
          add_int(index, static_cast<std::int64_t>(reader_.next_length()));
          for (std::uint64_t i = 0; i < count && !reader_.failed(); ++i) child(kNone);
          break;
        }
        case 'Z':
          add_int(index, static_cast<std::int64_t>(reader_.next_length()));
          if ((tree_.ints.back() & 2) != 0) child(kNone);
          break;
        case 'Y':
          if (reader_.next_length() != 0) add_text(index, reader_.next_string());
          break;
        case '*':
          tree_.nodes[index].lead = static_cast<std::uint16_t>(std::count(whole, rule, 'V'));
          return repeat(rule + 1, index);
      }
    }
  }

  void repeat(const char* rule, std::uint32_t index) {
    if (*rule == 'I') return add_ints(index, reader_.next_ints());
    if (*rule == 'F') return add_floats(index, reader_.next_floats());
    if (*rule == 'A') return add_segments(index);
    const bool pairs = rule[0] == 'V' && rule[1] == 'V';
    const std::uint64_t count = reader_.next_count(pairs ? 2 : 1);
    for (std::uint64_t i = 0; i < count && !reader_.failed(); ++i) {
      if (*rule == 'N') {
        child(intern(reader_.next_name()));
      } else {
        child(kNone);
        if (pairs) child(kNone);
      }
    }
  }

  void child(std::uint32_t key) {
    if (!reader_.enter()) return;
    const std::uint32_t index = node(key);
    reader_.leave();
    if (!reader_.failed()) pending_.push_back(index);
  }

  // Keys are names. Equal keys share one entry of `texts`.
  std::uint32_t intern(const format::Name& name) {
    if (reader_.failed()) return kNone;
    if (name.index >= names_.size()) names_.resize(name.index + 1, kNone);
    if (names_[name.index] == kNone) {
      names_[name.index] = static_cast<std::uint32_t>(tree_.texts.size());
      tree_.texts.push_back(name.text);
    }
    return names_[name.index];
  }

  // A node's own values come before those of its children, so each run is contiguous.
  void add_int(std::uint32_t index, std::int64_t value) {
    Node& node = tree_.nodes[index];
    if (node.number_count++ == 0) node.number = static_cast<std::uint32_t>(tree_.ints.size());
    tree_.ints.push_back(value);
  }
  void add_float(std::uint32_t index, double value) {
    Node& node = tree_.nodes[index];
    if (node.number_count++ == 0) node.number = static_cast<std::uint32_t>(tree_.floats.size());
    tree_.floats.push_back(value);
  }
  void add_text(std::uint32_t index, std::string_view text) {
    Node& node = tree_.nodes[index];
    if (node.text_count++ == 0) node.text = static_cast<std::uint32_t>(tree_.texts.size());
    tree_.texts.push_back(text);
  }

  // The items of a list of numbers become nodes as well, so that it looks like any other list.
  void add_ints(std::uint32_t index, std::span<const std::int64_t> values) {
    for (const std::int64_t value : values) add_int(index, value);
    add_number_nodes(index, Kind::kInt);
  }
  void add_floats(std::uint32_t index, std::span<const double> values) {
    for (const double value : values) add_float(index, value);
    add_number_nodes(index, Kind::kFloat);
  }
  void add_number_nodes(std::uint32_t index, Kind kind) {
    const Node list = tree_.nodes[index];
    for (std::uint32_t i = 0; i < list.number_count; ++i) {
      pending_.push_back(static_cast<std::uint32_t>(tree_.nodes.size()));
      Node item;
      item.kind = kind;
      item.number = list.number + i;
      item.number_count = 1;
      tree_.nodes.push_back(item);
    }
  }

  void add_dtype(std::uint32_t index, bool with_element) {
    format::Name description;
    const DType dtype = reader_.next_dtype(description);
    tree_.nodes[index].dtype = dtype;
    if (dtype == DType::kOther) add_text(index, description.text);
    if (with_element) {
      const std::uint64_t bytes = dtype == DType::kOther ? reader_.next_length() : item_bytes(dtype);
      add_text(index, reader_.next_text(bytes));
    }
  }

  void add_array(std::uint32_t index) {
    format::ArrayInfo info;
    if (!reader_.next_array(info)) return;
    const bool is_blob = format::has_trait(tree_.nodes[index].kind, format::kIsBlob);
    if (is_blob && (info.dtype != DType::kUInt8 || info.ndim != 1 || !info.contiguous() || info.external())) {
      return reader_.fail("long text or bytes are not contiguous bytes");
    }
    add_array(index, info);
  }

  // Stores the segment count as the node's second int.
  void add_segments(std::uint32_t index) {
    const std::uint64_t count = reader_.next_segment_count();
    add_int(index, static_cast<std::int64_t>(count));
    const auto first = static_cast<std::uint32_t>(tree_.arrays.size());
    format::ArrayInfo info;
    for (std::uint64_t i = 0; i < count && reader_.next_segment(info); ++i) add_array(index, info);
    tree_.nodes[index].array = first;
  }

  void add_array(std::uint32_t index, const format::ArrayInfo& info) {
    const std::byte* data = info.data;
    if (info.external()) {
      const format::External range = reader_.external(info.buffer);
      if (range.reference >= blocks_.size()) return reader_.fail("it refers to a block that the message does not have");
      const std::span<const std::byte> block = blocks_[range.reference];
      if (range.offset > block.size() || range.bytes > block.size() - range.offset) {
        return reader_.fail("it refers to bytes beyond the end of a block");
      }
      data = block.data() + range.offset + info.offset;
    }
    tree_.nodes[index].array = static_cast<std::uint32_t>(tree_.arrays.size());
    // Receivers may write to a message. `read_only` says if the array may be written.
    tree_.arrays.push_back({.data = const_cast<std::byte*>(data),
                            .item_bytes = info.item_bytes,
                            .elements = info.elements,
                            .description = info.description.text,
                            .dims = static_cast<std::uint32_t>(tree_.dims.size()),
                            .dtype = info.dtype,
                            .ndim = info.ndim,
                            .read_only = info.read_only()});
    tree_.dims.insert(tree_.dims.end(), info.shape, info.shape + info.ndim);
    tree_.dims.insert(tree_.dims.end(), info.strides, info.strides + info.ndim);
  }

  Tree& tree_;
  format::FrameReader& reader_;
  std::span<const std::span<const std::byte>> blocks_;

  // Memory for this pass only. For small messages it is on the stack.
  static constexpr std::size_t kFewNodes = 64;
  std::byte on_stack_[2 * kFewNodes * sizeof(std::uint32_t)];
  std::pmr::monotonic_buffer_resource memory_{on_stack_, sizeof(on_stack_)};
  std::pmr::vector<std::uint32_t> pending_{&memory_};
  std::pmr::vector<std::uint32_t> names_{&memory_};
};

// Copies of blocks that have no owner.
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
  Result<format::FrameReader> reader = format::FrameReader::open(frame);
  if (!reader.ok()) return std::move(reader).error();
  // All indices into the tree have 32 bits.
  if (reader->metadata_bytes() >= UINT32_MAX / 4) return corrupt("its tree is too large for one Item");
  const std::span<const std::byte> buffers = reader->buffers();
  const bool copied = owner == nullptr && !buffers.empty();
  const std::size_t extra = Tree::expected_bytes(*reader) + (copied ? buffers.size() + format::kBufferAlignment : 0);
  auto tree = std::allocate_shared<Tree>(TrailingAllocator<Tree>(extra), std::move(*reader), extra);
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
  Decoder decoder(*tree, blocks);
  decoder.node(kNone);
  decoder.resolve_references();
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
