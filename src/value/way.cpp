// Finds the path of an Item in its message, and its name, for errors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/grammar.h"
#include "platform/text.h"
#include "shmtree/item.h"
#include "value/tree.h"

namespace shmtree {

namespace value {

std::string with_article(Kind kind) {
  const format::KindRow* row = format::row_of(kind);
  return row == nullptr ? "an unknown kind" : row->words;
}

std::string_view word_of(Kind kind) noexcept {
  const format::KindRow* row = format::row_of(kind);
  std::string_view words = row == nullptr ? "unknown kind" : row->words;
  for (const std::string_view article : {"a ", "an "}) {
    if (words.starts_with(article)) words.remove_prefix(article.size());
  }
  return words;
}

namespace {

bool is_control(unsigned char first, unsigned char second, std::size_t bytes) noexcept {
  if (bytes == 1) return first < 0x20 || first == 0x7f;
  return bytes == 2 && first == 0xc2 && second < 0xa0;
}
bool is_surrogate(unsigned char first, unsigned char second) noexcept {
  return first == 0xed && second >= 0xa0;
}

// Escapes a character like C++ and Python do, byte by byte if a terminal would not show it.
void append_escaped(std::string& text, std::string_view code_point, bool is_text) {
  const auto first = static_cast<unsigned char>(code_point[0]);
  const auto second = static_cast<unsigned char>(code_point.size() > 1 ? code_point[1] : 0);
  if (first == '"' || first == '\\') text += '\\';
  if (is_text && !is_control(first, second, code_point.size()) && !is_surrogate(first, second)) {
    text += code_point;
    return;
  }
  constexpr std::string_view kShort = "\n\r\t", kLetters = "nrt";
  if (const std::size_t place = kShort.find(code_point[0]); place != std::string_view::npos) {
    text.append("\\").append(1, kLetters[place]);
    return;
  }
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char each : code_point) {
    const auto byte = static_cast<unsigned char>(each);
    text.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
  }
}

}  // namespace

std::string quoted(std::string_view key) {
  constexpr std::size_t kMax = 100;
  std::string text = "\"";
  std::size_t at = 0;
  while (at < key.size()) {
    const std::size_t bytes = platform::code_point_bytes(key.substr(at)), end = at + std::max<std::size_t>(bytes, 1);
    if (end > kMax) break;
    append_escaped(text, key.substr(at, end - at), bytes != 0);
    at = end;
  }
  return text.append(at < key.size() ? "...\"" : "\"");
}

namespace {

std::string in_brackets(std::string_view text) {
  return std::string("[").append(text).append("]");
}

// Returns the expression for the child at `place` among the children of `parent`: `[3]`, `["key"]`.
std::string step(const Tree& tree, const Node& parent, std::uint32_t place) {
  const auto text_step = [](std::string_view key) { return in_brackets(quoted(key)); };
  if (has_named_entries(parent.kind)) return text_step(tree.key_of(tree.at(tree.children[parent.child + place])));
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

// Starts at the root. Nodes are in preorder, so the path goes through the last child that does not come after the node.
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

// An error already has a path if its text begins with the path to this node. Further steps or the reason follow.
Error Item::on_the_way(Error error) const {
  const std::string here = way();
  if (here.empty()) return error;
  const std::string_view rest =
      error.message.starts_with(here) ? std::string_view(error.message).substr(here.size()) : std::string_view();
  if (!rest.starts_with('[') && !rest.starts_with(": ")) error.message = here + ": " + error.message;
  return error;
}

}  // namespace shmtree
