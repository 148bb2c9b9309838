// Implements Item: access to a received tree.
#include "shmtree/item.h"

#include "value/tree.h"

namespace shmtree {

using format::has_trait;
using value::Node;
using value::node_of;
using value::text_of;

namespace {

Error not_there(const std::string& what, const Item& in) {
  return Error{.code = Code::kNotFound,
               .message = "there is no " + what + " in " + value::with_article(in.kind()) +
                          (in.is_dict() || in.is_sequence() ? " of " + std::to_string(in.size()) : "")};
}

// Returns the text or bytes that a node stands for.
std::string_view own_text(const value::Tree& tree, const Node& node) noexcept {
  return has_trait(node.kind, format::kIsBlob) ? text_of(tree.arrays[node.array]) : tree.texts[node.text];
}

}  // namespace

Item::Item(std::shared_ptr<const value::Tree> tree, std::uint32_t node) noexcept
    : tree_(std::move(tree)), node_(node) {}

Kind Item::kind() const noexcept {
  return node_of(tree_, node_).kind;
}

bool Item::is_dict() const noexcept {
  return value::has_key_nodes(kind()) || value::has_named_entries(kind());
}

bool Item::is_sequence() const noexcept {
  return has_trait(kind(), format::kIsSequence);
}

bool Item::is_array() const noexcept {
  const Node& node = node_of(tree_, node_);
  if (node.kind != Kind::kMemoryView) return has_trait(node.kind, format::kIsArray);
  return node.child_count != 0 && Item(tree_, tree_->children[node.child]).is_array();
}

std::size_t Item::size() const noexcept {
  const Node& node = node_of(tree_, node_);
  return value::has_key_nodes(node.kind) ? (node.child_count - node.lead) / 2 : node.child_count;
}

Item Item::at(std::size_t position) const {
  if (position >= size()) {
    throw BadResult(on_the_way(not_there("item " + std::to_string(position), *this)));
  }
  const Node& node = tree_->at(node_);
  const std::size_t child = value::has_key_nodes(node.kind) ? node.lead + 2 * position + 1 : position;
  return Item(tree_, tree_->children[node.child + child]);
}

Item Item::key_at(std::size_t position) const {
  if (position >= size() || !value::has_key_nodes(kind())) {
    throw BadResult(on_the_way(not_there("key node " + std::to_string(position), *this)));
  }
  const Node& node = tree_->at(node_);
  return Item(tree_, tree_->children[node.child + node.lead + 2 * position]);
}

std::optional<Item> Item::find(std::string_view key) const noexcept {
  const Node& node = node_of(tree_, node_);
  if (value::has_named_entries(node.kind)) {
    for (std::uint32_t i = 0; i < node.child_count; ++i) {
      const std::uint32_t child = tree_->children[node.child + i];
      if (tree_->key_of(tree_->at(child)) == key) return Item(tree_, child);
    }
  } else if (value::has_key_nodes(node.kind)) {
    for (std::uint32_t i = node.lead; i + 1 < node.child_count; i += 2) {
      const Node& candidate = tree_->at(tree_->children[node.child + i]);
      if (candidate.kind == Kind::kStr && tree_->texts[candidate.text] == key) {
        return Item(tree_, tree_->children[node.child + i + 1]);
      }
      if (candidate.kind == Kind::kLongStr && text_of(tree_->arrays[candidate.array]) == key) {
        return Item(tree_, tree_->children[node.child + i + 1]);
      }
    }
  }
  return std::nullopt;
}

Item Item::operator[](std::string_view key) const {
  std::optional<Item> found = find(key);
  if (found) return *std::move(found);
  throw BadResult(on_the_way(not_there("key " + value::quoted(key), *this)));
}

// Returns the text of a key node; empty if the key is not a str.
std::string_view Item::key_text(std::size_t position) const noexcept {
  const Node& node = node_of(tree_, node_);
  if (value::has_named_entries(node.kind)) {
    return tree_->key_of(tree_->at(tree_->children[node.child + position]));
  }
  const Node& key = tree_->at(tree_->children[node.child + node.lead + 2 * position]);
  if (key.kind == Kind::kStr) return tree_->texts[key.text];
  return key.kind == Kind::kLongStr ? text_of(tree_->arrays[key.array]) : std::string_view();
}

Item::Iterator Item::begin() const noexcept {
  return {*this, 0};
}
Item::Iterator Item::end() const noexcept {
  return {*this, size()};
}

std::vector<std::string_view> Item::keys() const& {
  std::vector<std::string_view> found;
  if (!is_dict()) return found;
  found.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) found.push_back(key_text(i));
  return found;
}

std::string_view Item::key() const& noexcept {
  const Node& node = node_of(tree_, node_);
  return node.key == value::kNone ? std::string_view() : tree_->key_of(node);
}

Error Item::mismatch(std::string_view wanted) const {
  return on_the_way({.code = Code::kInvalid,
                     .message = "expected " + std::string(wanted) + ", found " + std::string(value::word_of(kind()))});
}

std::string_view Item::class_name() const& noexcept {
  const Node& node = node_of(tree_, node_);
  return has_trait(node.kind, format::kHasClass) ? tree_->texts[node.text] : std::string_view();
}

std::string_view Item::member() const& {
  if (kind() != Kind::kEnum) throw BadResult(mismatch("enum member"));
  return tree_->texts[tree_->at(node_).text + 1];
}

std::span<const std::int64_t> Item::ints() const& noexcept {
  const Node& node = node_of(tree_, node_);
  if (node.number_count == 0 || has_trait(node.kind, format::kHasFloats)) return {};
  return {tree_->ints.data() + node.number, node.number_count};
}

std::span<const double> Item::floats() const& noexcept {
  const Node& node = node_of(tree_, node_);
  if (node.number_count == 0 || !has_trait(node.kind, format::kHasFloats)) return {};
  return {tree_->floats.data() + node.number, node.number_count};
}

Result<std::string_view> Item::to_text() const {
  const Node& node = node_of(tree_, node_);
  const bool has_text = node.kind == Kind::kPath || node.kind == Kind::kDecimal;
  if (!has_text && !has_trait(node.kind, format::kIsText)) return mismatch("string");
  return own_text(*tree_, node);
}

Result<std::span<const std::byte>> Item::to_bytes() const {
  const Node& node = node_of(tree_, node_);
  if (!has_trait(node.kind, format::kIsBytes)) return mismatch("bytes");
  return std::as_bytes(std::span(own_text(*tree_, node)));
}

}  // namespace shmtree
