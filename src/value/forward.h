// Forwards received nodes as part of another message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/frame_builder.h"
#include "format/grammar.h"
#include "shmtree/item.h"
#include "shmtree/value.h"
#include "value/array_layout.h"
#include "value/codec.h"
#include "value/tree.h"

namespace shmtree::value {

// The Items that were moved into a value to send.
class MovedItems {
 public:
  explicit MovedItems(const Value& value) { find(value); }
  // Returns the number of these Items that belong to the message `tree`.
  long count_of(const Tree& tree) const noexcept;

 private:
  void find(const Value& value);
  std::vector<const Item*> items_;  // Sorted by message, without duplicates.
};

// Returns true if the Item was moved and its message has other Items. These other Items may have been moved into the
// same value.
bool has_other_items(const Forward& forward) noexcept;

// Returns the origin of a message's arrays. The arrays may be given away if all Items of the message were moved into
// this value. The acquire makes visible what other threads wrote into the arrays before they released their Items.
Origin origin_of(const Forward& forward, const std::shared_ptr<const Tree>& tree, const MovedItems* moved);

constexpr bool needs_pickle(Kind kind) noexcept {
  return kind == Kind::kPickle || kind == Kind::kLongPickle || kind == Kind::kGlobal;
}
// True for a node that is or may be specific to this machine. A pickle counts, because it may have arrived through a
// channel that is not portable.
bool is_local(const Tree& tree, const Node& node) noexcept;

// Errors: the options refuse a node; it is not portable; another message gives the Item away; the value is nested too
// deeply.
Error refused(const std::shared_ptr<const Tree>& message, std::uint32_t index);
Error not_portable(const std::shared_ptr<const Tree>& message, std::uint32_t index);
Error given_away();
Error too_deep_error(const format::FrameBuilder& builder);

// Makes `source` refer to `memory`, where its elements are, if `lender` lends that memory.
template <Lender L>
void lend(const ArrayMemory& memory, format::FrameBuilder& builder, L& lender, format::ArraySource& source) {
  const std::optional<LentRange> lent = lender.lend(memory);
  if (!lent) return;
  source.external = builder.add_external(lent->range);
  source.external_offset = lent->at + (static_cast<const std::byte*>(source.data) - memory.begin);
}

// The inverse of the decoder: converts a tree to columns, by the same rules.
template <Lender L>
class Forwarder {
 public:
  Forwarder(const std::shared_ptr<const Tree>& tree, const Origin& origin, format::FrameBuilder& builder, L& lender)
      : message_(tree), tree_(*tree), origin_(origin), builder_(builder), lender_(lender), options_(lender.options()) {
    if (tree_.references != nullptr) forwarded_.resize(tree_.nodes.size());
  }

  Status add(std::uint32_t index, bool is_factory = false) {
    return tree_.references == nullptr ? add_node(index, is_factory) : add_once(index, is_factory);
  }

 private:
  // Position of a node in the new frame.
  struct Forwarded {
    std::uint32_t position = kNone;
    bool is_open = true;
  };

  // A reference may point to a node outside the forwarded part. The first use adds the node, later ones refer to it.
  Status add_once(std::uint32_t index, bool is_factory) {
    const std::uint32_t target = tree_.references->target_of(index);
    Forwarded& at = forwarded_[target];
    if (at.position == kNone) {
      at.position = static_cast<std::uint32_t>(builder_.kinds());
      Status added = add_node(target, is_factory);
      at.is_open = false;
      return added;
    }
    const Kind kind = tree_.at(target).kind;
    if (at.is_open && !format::has_trait(kind, format::kMadeBeforeItems)) {
      return Error{
          .code = Code::kInvalid,
          .message = "Cannot forward this part: a tuple or similar in it contains itself. Forward the whole message."};
    }
    builder_.add_reference(at.position);
    return success();
  }

  Status add_node(std::uint32_t index, bool is_factory) {
    const Node& node = tree_.at(index);
    if (!options_.allow_pickle && needs_pickle(node.kind) && !is_factory) return refused(message_, index);
    if (options_.portable && is_local(tree_, node)) return not_portable(message_, index);
    if (node.kind == Kind::kStr) return add_text(node, Kind::kLongStr);
    if (node.kind == Kind::kBytes) return add_text(node, Kind::kLongBytes);
    if (node.kind == Kind::kByteArray) return add_text(node, Kind::kLongByteArray);
    builder_.add_kind(node.kind);
    if (node.child_count == 0 || !format::has_trait(node.kind, format::kHasChildren))
      return follow(format::grammar_of(node.kind), node);
    if (!builder_.enter()) return too_deep_error(builder_);
    Status added = follow(format::grammar_of(node.kind), node);
    builder_.leave();
    return added;
  }

  // Positions of the next values and children of a node.
  struct Cursor {
    std::uint32_t number, text, child;
  };

  Status add_text(const Node& node, Kind long_kind) {
    const std::string_view text = tree_.texts[node.text];
    builder_.add_text_node(node.kind, long_kind, text.data(), text.size());
    return success();
  }

  Status follow(const char* rule, const Node& node) {
    Cursor at{node.number, node.text, node.child};
    for (; *rule != 0; ++rule) {
      Status added = success();
      switch (*rule) {
        case 'I': builder_.add_int(tree_.ints[at.number++]); break;
        case 'L': add_length(at); break;
        case 'F': builder_.add_float(tree_.floats[at.number++]); break;
        case 'N': builder_.add_name(tree_.texts[at.text++]); break;
        case 'S':
        case 'B': builder_.add_string(tree_.texts[at.text++]); break;
        case 'U': add_bytes(at); break;
        case 'A': add_array(node, tree_.arrays[node.array]); break;
        case 'V': added = add(tree_.children[at.child++], node.kind == Kind::kDefaultDict); break;
        case 'D':
        case 'E': add_dtype(node, at, *rule == 'E'); break;
        case 'Q':
          builder_.add_length(node.child_count);
          add_length(at);
          added = add_children(node, at);
          break;
        case 'Z':
          add_length(at);
          added = add_children(node, at);
          break;
        case 'Y':
          builder_.add_length(node.text_count);
          if (node.text_count != 0) builder_.add_string(tree_.texts[at.text++]);
          break;
        case '*': return repeat(rule + 1, node, at);
      }
      if (!added) return added;
    }
    return success();
  }

  Status repeat(const char* rule, const Node& node, Cursor& at) {
    if (*rule == 'I' || *rule == 'F') {
      builder_.add_length(node.number_count);
      for (std::uint32_t i = 0; i < node.number_count; ++i) {
        *rule == 'I' ? builder_.add_int(tree_.ints[node.number + i])
                     : builder_.add_float(tree_.floats[node.number + i]);
      }
      return success();
    }
    if (*rule == 'A') {
      const auto count = static_cast<std::uint32_t>(tree_.ints[at.number++]);
      builder_.add_length(count);
      for (std::uint32_t i = 0; i < count; ++i) add_array(node, tree_.arrays[node.array + i]);
      return success();
    }
    const bool pairs = rule[0] == 'V' && rule[1] == 'V', named = *rule == 'N';
    builder_.add_length((node.child + node.child_count - at.child) / (pairs ? 2u : 1u));
    while (at.child < node.child + node.child_count) {
      if (named) builder_.add_name(tree_.key_of(tree_.at(tree_.children[at.child])));
      Status added = add_child(at);
      if (!added) return added;
    }
    return success();
  }

  void add_length(Cursor& at) { builder_.add_length(static_cast<std::uint64_t>(tree_.ints[at.number++])); }
  void add_bytes(Cursor& at) {
    const std::string_view bytes = tree_.texts[at.text++];
    builder_.add_text(bytes.data(), bytes.size());
  }
  Status add_child(Cursor& at) { return add(tree_.children[at.child++]); }
  Status add_children(const Node& node, Cursor& at) {
    while (at.child < node.child + node.child_count) {
      Status added = add_child(at);
      if (!added) return added;
    }
    return success();
  }

  void add_dtype(const Node& node, Cursor& at, bool with_element) {
    const bool described = node.dtype == DType::kOther;
    builder_.add_length(static_cast<std::uint64_t>(node.dtype));
    if (described) builder_.add_name(tree_.texts[at.text++]);
    if (!with_element) return;
    if (described) builder_.add_length(tree_.texts[at.text].size());
    add_bytes(at);
  }

  void add_array(const Node& node, const Array& array) {
    if (format::has_trait(node.kind, format::kIsBlob)) {
      return builder_.add_blob(array.data, static_cast<std::size_t>(array.elements), array.read_only);
    }
    const std::int64_t* shape = tree_.dims.data() + array.dims;
    const auto item = static_cast<std::int64_t>(array.item_bytes);
    std::int64_t strides[kMaxDims];
    for (std::size_t i = 0; i < array.ndim; ++i) {
      strides[i] = shape[i] > 1 ? shape[array.ndim + i] : item;  // Any stride is valid for a dimension of one element.
    }
    const Layout layout = checked_layout({shape, array.ndim}, {strides, array.ndim}, item);
    format::ArraySource source{.data = array.data,
                               .shape = shape,
                               .strides = strides,
                               .ndim = array.ndim,
                               .order = layout.order,
                               .dtype = array.dtype,
                               .read_only = array.read_only,
                               .may_share = true,
                               .whole_words = format::has_trait(node.kind, format::kHasSegments),
                               .item_bytes = array.item_bytes,
                               .description = array.description};
    const bool goes = array.read_only ? origin_.to_give || origin_.to_show : origin_.to_give;
    if (goes && !layout.empty) {
      lend({.begin = array.data + layout.low,
            .bytes = static_cast<std::uint64_t>(layout.high - layout.low),
            .origin = &origin_,
            .writable = !array.read_only},
           builder_, lender_, source);
    }
    builder_.add_array(source);
  }

  const std::shared_ptr<const Tree>& message_;
  const Tree& tree_;
  const Origin origin_;
  format::FrameBuilder& builder_;
  L& lender_;
  const EncodeOptions options_;
  std::vector<Forwarded> forwarded_{};  // Position of each node in the new frame. Empty unless there are references.
};

// Adds the node of the item, and all nodes below it, to the frame, whatever their kinds are. Arrays that `lender` lends
// go by reference. The item must live until the frame has been written. `moved` are the Items that were moved into the
// same value; null if none of them has the same message.
//   kInvalid        deeper than kMaxDepth, not portable, or given away by another message
//   kPickleRefused  a pickle, or a class or function that is not the factory of a defaultdict
template <Lender L>
Status add_forwarded(const Forward& forward, const MovedItems* moved, format::FrameBuilder& builder, L& lender) {
  const std::shared_ptr<const Tree>& tree = Tree::of(*forward.item);
  if (tree == nullptr) return builder.add_none_node(), success();
  const Origin origin = origin_of(forward, tree, moved);
  if (origin.to_give && lender.is_given(origin)) return given_away();
  return Forwarder(tree, origin, builder, lender).add(Tree::node_of(*forward.item));
}

}  // namespace shmtree::value
