// Where an Item stands in its message, and what it is called, for errors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shmtree/item.h"
#include "value/tree.h"

namespace shmtree {

namespace value {

std::string_view word_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kNone: return "None";
    case Kind::kFalse:
    case Kind::kTrue: return "bool";
    case Kind::kInt:
    case Kind::kBigInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kComplex: return "complex";
    case Kind::kStr:
    case Kind::kLongStr: return "string";
    case Kind::kBytes:
    case Kind::kLongBytes: return "bytes";
    case Kind::kByteArray:
    case Kind::kLongByteArray: return "bytearray";
    case Kind::kMemoryView: return "memoryview";
    case Kind::kEllipsis: return "Ellipsis";
    case Kind::kNotImplemented: return "NotImplemented";
    case Kind::kList:
    case Kind::kIntList:
    case Kind::kFloatList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kSet: return "set";
    case Kind::kFrozenSet: return "frozenset";
    case Kind::kDeque: return "deque";
    case Kind::kDict:
    case Kind::kStrDict: return "dict";
    case Kind::kOrderedDict:
    case Kind::kStrOrderedDict: return "OrderedDict";
    case Kind::kDefaultDict: return "defaultdict";
    case Kind::kCounter: return "Counter";
    case Kind::kNamedTuple: return "namedtuple";
    case Kind::kDataclass: return "dataclass";
    case Kind::kEnum:
    case Kind::kEnumValue: return "enum member";
    case Kind::kGlobal: return "class or function";
    case Kind::kRegistered: return "registered object";
    case Kind::kPickle:
    case Kind::kLongPickle: return "pickled object";
    case Kind::kDate: return "date";
    case Kind::kTime: return "time";
    case Kind::kDateTime: return "datetime";
    case Kind::kTimeDelta: return "timedelta";
    case Kind::kTimezoneUtc:
    case Kind::kTimezone: return "timezone";
    case Kind::kZoneInfo: return "ZoneInfo";
    case Kind::kDecimal: return "Decimal";
    case Kind::kFraction: return "Fraction";
    case Kind::kUuid: return "UUID";
    case Kind::kPath: return "Path";
    case Kind::kRange: return "range";
    case Kind::kSlice: return "slice";
    case Kind::kArray: return "array";
    case Kind::kNumpyScalar: return "NumPy scalar";
    case Kind::kDType: return "dtype";
    case Kind::kMaskedArray: return "masked array";
    case Kind::kTensor: return "tensor";
    case Kind::kInvalid: break;
  }
  return "unknown kind";
}

std::string with_article(Kind kind) {
  const std::string word(word_of(kind));
  if (kind == Kind::kNone || kind == Kind::kEllipsis || kind == Kind::kNotImplemented) return word;
  const bool vowel = std::string_view("aeiouAEIO").find(word.front()) != std::string_view::npos && kind != Kind::kUuid;
  return (vowel ? "an " : "a ") + word;
}

std::string quoted(std::string_view key) {
  constexpr std::size_t kMost = 100;
  return '"' + std::string(key.substr(0, kMost)) + (key.size() > kMost ? "...\"" : "\"");
}

namespace {

std::string in_brackets(std::string_view text) {
  return std::string("[").append(text).append("]");
}

// `[3]`, `["key"]`: how the child at `place` among the children of `parent` is got.
std::string step(const Tree& tree, const Node& parent, std::uint32_t place) {
  const auto text_step = [](std::string_view key) { return in_brackets(quoted(key)); };
  if (has_named_entries(parent.kind)) return text_step(tree.texts[tree.at(tree.children[parent.child + place]).key]);
  if (!has_key_nodes(parent.kind)) return in_brackets(std::to_string(place));
  const std::uint32_t entry = place < parent.lead ? 0 : (place - parent.lead) / 2;
  const bool is_value = place >= parent.lead && (place - parent.lead) % 2 == 1;
  if (is_value) {
    const Node& key = tree.at(tree.children[parent.child + place - 1]);
    if (key.kind == Kind::kStr) return text_step(tree.texts[key.text]);
    if (key.kind == Kind::kLongStr) return text_step(text_of(tree.arrays[key.array]));
    if (key.kind == Kind::kInt) return in_brackets(std::to_string(tree.ints[key.number]));
  }
  return in_brackets(std::string("key ").append(std::to_string(entry)));
}

}  // namespace
}  // namespace value

// Down from the root: nodes are in preorder, so that the way goes through the last child that does not come after.
std::string Item::way() const {
  std::string way;
  for (std::uint32_t at = 0; at != node_;) {
    const value::Node& parent = tree_->at(at);
    const auto begin = tree_->children.begin() + parent.child;
    const auto after = std::upper_bound(begin, begin + parent.child_count, node_);
    if (after == begin) break;
    way += value::step(*tree_, parent, static_cast<std::uint32_t>(after - begin - 1));
    at = *(after - 1);
  }
  return way;
}

Error Item::on_the_way(Error error) const {
  if (error.message.starts_with('[')) return error;
  const std::string here = way();
  if (!here.empty()) error.message = here + ": " + error.message;
  return error;
}

}  // namespace shmtree
