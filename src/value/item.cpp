// Item: looking into a received tree.
#include "shmtree/item.h"

#include "value/tree.h"

namespace shmtree {

using value::Node;
using value::node_of;
using value::text_of;

namespace {

Error not_there(const std::string& what, const Item& in) {
  return Error{.code = Code::kNotFound,
               .message = "there is no " + what + " in " + value::with_article(in.kind()) +
                          (in.is_dict() || in.is_sequence() ? " of " + std::to_string(in.size()) : "")};
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
  switch (kind()) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kIntList:
    case Kind::kFloatList:
    case Kind::kSet:
    case Kind::kFrozenSet:
    case Kind::kDeque:
    case Kind::kNamedTuple: return true;
    default: return false;
  }
}

bool Item::is_array() const noexcept {
  const Node& node = node_of(tree_, node_);
  if (node.kind != Kind::kMemoryView) return node.kind == Kind::kArray || node.kind == Kind::kTensor;
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
      if (tree_->texts[tree_->at(child).key] == key) return Item(tree_, child);
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

// The text of a key node: empty for a key that is no str.
std::string_view Item::key_text(std::size_t position) const noexcept {
  const Node& node = node_of(tree_, node_);
  if (value::has_named_entries(node.kind)) {
    return tree_->texts[tree_->at(tree_->children[node.child + position]).key];
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

std::vector<std::string_view> Item::keys() const {
  std::vector<std::string_view> found;
  if (!is_dict()) return found;
  found.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) found.push_back(key_text(i));
  return found;
}

std::string_view Item::key() const noexcept {
  const Node& node = node_of(tree_, node_);
  return node.key == value::kNone ? std::string_view() : tree_->texts[node.key];
}

Error Item::mismatch(std::string_view wanted) const {
  return on_the_way({.code = Code::kInvalid,
                     .message = "expected " + std::string(wanted) + ", found " + std::string(value::word_of(kind()))});
}

std::string_view Item::class_name() const noexcept {
  const Node& node = node_of(tree_, node_);
  switch (node.kind) {
    case Kind::kNamedTuple:
    case Kind::kDataclass:
    case Kind::kEnum:
    case Kind::kEnumValue:
    case Kind::kGlobal:
    case Kind::kRegistered: return tree_->texts[node.text];
    default: return {};
  }
}

std::string_view Item::member() const {
  if (kind() != Kind::kEnum) throw BadResult(mismatch("enum member"));
  return tree_->texts[tree_->at(node_).text + 1];
}

std::span<const std::int64_t> Item::ints() const noexcept {
  const Node& node = node_of(tree_, node_);
  const bool floats = node.kind == Kind::kFloat || node.kind == Kind::kComplex || node.kind == Kind::kFloatList;
  if (node.number_count == 0 || floats) return {};
  return {tree_->ints.data() + node.number, node.number_count};
}

std::span<const double> Item::floats() const noexcept {
  const Node& node = node_of(tree_, node_);
  const bool floats = node.kind == Kind::kFloat || node.kind == Kind::kComplex || node.kind == Kind::kFloatList;
  if (node.number_count == 0 || !floats) return {};
  return {tree_->floats.data() + node.number, node.number_count};
}

Result<std::string_view> Item::to_text() const {
  const Node& node = node_of(tree_, node_);
  switch (node.kind) {
    case Kind::kStr:
    case Kind::kDecimal:
    case Kind::kPath:
    case Kind::kZoneInfo: return tree_->texts[node.text];
    case Kind::kLongStr: return text_of(tree_->arrays[node.array]);
    default: return mismatch("string");
  }
}

Result<std::span<const std::byte>> Item::to_bytes() const {
  const Node& node = node_of(tree_, node_);
  switch (node.kind) {
    case Kind::kBytes:
    case Kind::kByteArray:
    case Kind::kBigInt:
    case Kind::kUuid:
    case Kind::kPickle: return std::as_bytes(std::span(tree_->texts[node.text]));
    case Kind::kLongBytes:
    case Kind::kLongByteArray:
    case Kind::kLongPickle: return std::as_bytes(std::span(text_of(tree_->arrays[node.array])));
    default: return mismatch("bytes");
  }
}

}  // namespace shmtree
