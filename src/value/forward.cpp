// The decoder backwards: a tree to columns, by the same rules.
#include "value/forward.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/checked_frame.h"
#include "format/grammar.h"
#include "shmtree/item.h"
#include "value/array_layout.h"
#include "value/tree.h"

namespace shmtree::value {

namespace {

// The origin of a message's arrays. When all Items that there are of the message were moved into one value, that gives
// them: nobody else has any. Who let go of another one before may have written into the arrays, which is why that is to
// be seen.
Origin origin_of(const Forward& forward, const std::shared_ptr<const Tree>& tree, const MovedItems* moved) {
  Origin origin{.home = tree->home};
  if (origin.home == nullptr) return origin;
  origin.to_give = forward.moved && tree.use_count() == (moved == nullptr ? 1 : moved->of(*tree));
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto& arrays = tree->arrays;
  origin.to_show = std::all_of(arrays.begin(), arrays.end(), [](const Array& array) { return array.read_only; });
  return origin;
}

const Tree* message_of(const Item* item) noexcept {
  return Tree::of(*item).get();
}

class Forwarder {
 public:
  Forwarder(const std::shared_ptr<const Tree>& tree, const Origin& origin, format::FrameBuilder& builder,
            ExternalArrays* externals)
      : message_(tree), tree_(*tree), origin_(origin), builder_(builder), externals_(externals) {
    if (tree_.references != nullptr) forwarded_.resize(tree_.nodes.size());
  }

  Status add(std::uint32_t index, bool is_factory = false) {
    return tree_.references == nullptr ? add_node(index, is_factory) : add_once(index, is_factory);
  }

 private:
  // Where a node is in the frame that is built.
  struct Forwarded {
    std::uint32_t position = kNone;
    bool is_open = true;
  };

  // What an earlier part of the message was, may be first met in the part that is forwarded.
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
    if (at.is_open && !format::is_there_before_its_items(kind)) {
      return Error{.code = Code::kInvalid,
                   .message = "The part to forward is in itself, which only the whole message can say."};
    }
    builder_.add_reference(at.position);
    return success();
  }

  Status add_node(std::uint32_t index, bool is_factory) {
    const Node& node = tree_.at(index);
    if (needs_pickle(node.kind) && !is_factory && externals_ != nullptr && !externals_->allows_pickle())
      return refused(index, node.kind);
    if (externals_ != nullptr && externals_->is_portable() && is_local(node)) return not_portable(index, node);
    if (node.kind == Kind::kStr) return add_text(node, Kind::kLongStr);
    if (node.kind == Kind::kBytes) return add_text(node, Kind::kLongBytes);
    if (node.kind == Kind::kByteArray) return add_text(node, Kind::kLongByteArray);
    builder_.add_kind(node.kind);
    const bool numbers = node.kind == Kind::kIntList || node.kind == Kind::kFloatList;
    if (node.child_count == 0 || numbers) return follow(format::grammar_of(node.kind), node);
    if (!builder_.enter()) {
      return Error{.code = Code::kInvalid,
                   .message = "A value to send is nested deeper than " + std::to_string(kMaxDepth) + "."};
    }
    Status added = follow(format::grammar_of(node.kind), node);
    builder_.leave();
    return added;
  }

  static bool needs_pickle(Kind kind) noexcept {
    return kind == Kind::kPickle || kind == Kind::kLongPickle || kind == Kind::kGlobal;
  }
  Error refused(std::uint32_t index, Kind kind) const {
    const std::string way = Tree::item(message_, index).way();
    std::string text("The message to forward has a ");
    text.append(name_of(kind)).append(" in it, and this channel takes no pickles.");
    return Error{.code = Code::kPickleRefused,
                 .message = way.empty() ? text : std::string(way).append(": ").append(text)};
  }

  // A pickle may have come by a channel that is not portable.
  bool is_local(const Node& node) const noexcept {
    return node.kind == Kind::kPickle || node.kind == Kind::kLongPickle ||
           (node.kind == Kind::kRegistered && format::is_handle(tree_.texts[node.text]));
  }
  Error not_portable(std::uint32_t index, const Node& node) const {
    const std::string way = Tree::item(message_, index).way();
    std::string text(way.empty() ? "" : way + ": ");
    text.append("a ").append(node.kind == Kind::kRegistered ? tree_.texts[node.text] : name_of(node.kind));
    text.append(" means something on this machine only, or may, and what is sent here is to be portable.");
    return Error{.code = Code::kInvalid, .message = std::move(text)};
  }

  // Where a node's own values and children are taken from.
  struct Place {
    std::uint32_t number, text, child;
  };

  Status add_text(const Node& node, Kind long_kind) {
    const std::string_view text = tree_.texts[node.text];
    builder_.add_text_node(node.kind, long_kind, text.data(), text.size());
    return success();
  }

  Status follow(const char* rule, const Node& node) {
    Place at{node.number, node.text, node.child};
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

  Status repeat(const char* rule, const Node& node, Place& at) {
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
      if (named) builder_.add_name(tree_.texts[tree_.at(tree_.children[at.child]).key]);
      Status added = add_child(at);
      if (!added) return added;
    }
    return success();
  }

  void add_length(Place& at) { builder_.add_length(static_cast<std::uint64_t>(tree_.ints[at.number++])); }
  void add_bytes(Place& at) {
    const std::string_view bytes = tree_.texts[at.text++];
    builder_.add_text(bytes.data(), bytes.size());
  }
  Status add_child(Place& at) { return add(tree_.children[at.child++]); }
  Status add_children(const Node& node, Place& at) {
    while (at.child < node.child + node.child_count) {
      Status added = add_child(at);
      if (!added) return added;
    }
    return success();
  }

  void add_dtype(const Node& node, Place& at, bool with_element) {
    const bool described = node.dtype == DType::kOther;
    builder_.add_length(static_cast<std::uint64_t>(node.dtype));
    if (described) builder_.add_name(tree_.texts[at.text++]);
    if (!with_element) return;
    if (described) builder_.add_length(tree_.texts[at.text].size());
    add_bytes(at);
  }

  void add_array(const Node& node, const Array& array) {
    if (node.kind != Kind::kArray && node.kind != Kind::kTensor && node.kind != Kind::kCapnp) {
      return builder_.add_blob(array.data, static_cast<std::size_t>(array.elements), array.read_only);
    }
    const std::int64_t* shape = tree_.dims.data() + array.dims;
    const auto item = static_cast<std::int64_t>(array.item_bytes);
    std::int64_t strides[kMaxDims];
    for (std::size_t i = 0; i < array.ndim; ++i) {
      strides[i] = shape[i] > 1 ? shape[array.ndim + i] : item;  // where there is one index, it may be anything
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
                               .whole_words = node.kind == Kind::kCapnp,
                               .item_bytes = array.item_bytes,
                               .description = array.description};
    const bool goes = array.read_only ? origin_.to_give || origin_.to_show : origin_.to_give;
    if (goes && externals_ != nullptr && !layout.empty) {
      format::External range;
      std::int64_t at = 0;
      if (externals_->find_received(origin_, array.data + layout.low,
                                    static_cast<std::uint64_t>(layout.high - layout.low), !array.read_only, range,
                                    at)) {
        source.external = builder_.add_external(range);
        source.external_offset = at - layout.low;
      }
    }
    builder_.add_array(source);
  }

  const std::shared_ptr<const Tree>& message_;
  const Tree& tree_;
  const Origin origin_;
  format::FrameBuilder& builder_;
  ExternalArrays* externals_;
  std::vector<Forwarded> forwarded_{};  // by node, where there are references
};

}  // namespace

// Copies of a Value share the Items that were moved into it.
void MovedItems::find(const Value& value) {
  std::vector<const Value*> left{&value};
  while (!left.empty()) {
    const Value::Variant& held = left.back()->variant();
    left.pop_back();
    const auto go_into = [&](const std::vector<Value>& items) {
      for (const Value& item : items) left.push_back(&item);
    };
    if (const auto* forward = std::get_if<Forward>(&held); forward != nullptr && forward->moved) {
      items_.push_back(forward->item.get());
    } else if (const auto* list = std::get_if<List>(&held)) {
      go_into(list->items());
    } else if (const auto* tuple = std::get_if<Tuple>(&held)) {
      go_into(tuple->items());
    } else if (const auto* dict = std::get_if<Dict>(&held)) {
      for (const Entry& entry : dict->entries()) left.push_back(&entry.value);
    }
  }
  std::sort(items_.begin(), items_.end(),
            [](const Item* a, const Item* b) { return std::pair(message_of(a), a) < std::pair(message_of(b), b); });
  items_.erase(std::unique(items_.begin(), items_.end()), items_.end());
}

long MovedItems::of(const Tree& tree) const noexcept {
  const auto before = [](const Item* item, const Tree* message) { return message_of(item) < message; };
  const auto begin = std::lower_bound(items_.begin(), items_.end(), &tree, before);
  const auto end = std::find_if(begin, items_.end(), [&](const Item* item) { return message_of(item) != &tree; });
  return end - begin;
}

bool has_company(const Forward& forward) noexcept {
  const std::shared_ptr<const Tree>& tree = Tree::of(*forward.item);
  return forward.moved && tree != nullptr && tree->home != nullptr && tree.use_count() > 1;
}

Status add_forwarded(const Forward& forward, const MovedItems* moved, format::FrameBuilder& builder,
                     ExternalArrays* externals) {
  const std::shared_ptr<const Tree>& tree = Tree::of(*forward.item);
  if (tree == nullptr) return builder.add_none_node(), success();
  const Origin origin = origin_of(forward, tree, moved);
  if (origin.to_give && externals != nullptr && externals->is_given(origin)) {
    return Error{.code = Code::kInvalid,
                 .message =
                     "An Item that was moved into this value is gone: another put of it gave it away, or is about "
                     "to."};
  }
  return Forwarder(tree, origin, builder, externals).add(Tree::node_of(*forward.item));
}

}  // namespace shmtree::value
