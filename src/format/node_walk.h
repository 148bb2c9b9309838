// Reads the nodes of a frame in order, by the rules of grammar.h, and passes what they contain to a visitor.
//
// Checking, describing and decoding to an Item share this reading of the columns. It limits the depth, counts the
// children against the nodes that are left, and checks flags, kinds of parts, blobs, ranges in other blocks and
// references. A visitor checks the contents that matter to it, such as UTF-8. Walk and visitor report a failure with
// FrameReader::fail(), after which the walk ends soon. Until then, the visitor may get zeros and empty values.
//
// A visitor has these members; `node` is what its begin() returned for the node that has the value:
//   struct Node              the visitor's data about a node while the walk reads its parts; default-constructible
//   struct Object            the visitor's data about the object of a marked node, for references
//   Node begin(kind)         a node begins; its parts follow
//   void end(node)           all parts were read
//   Object object(node)      the node is marked. Called after begin()
//   void refer(node, position, earlier)         the node is a reference to the marked node at that position
//   void begin_child(node, place), void end_child(node, place, child)   around each child
//   void count(node, n), void segments(node, n)   n items or entries follow, or n segments, each as an array
//   void number(node, limit, value), void length(node, limit, value), void flags(node, value), void real(node, value)
//   void name(node, limit, name), void text(node, text), void bytes(node, bytes)
//   void ints(node, span), void floats(node, span), void array(node, limit, info)
//   void dtype(node, dtype, description), void element(node, bytes)
// and may have
//   bool scalar(kind, node)  reads a whole node of one value or none, and sets `node`. False: reads nothing
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "format/frame_reader.h"
#include "format/grammar.h"
#include "format/references.h"

namespace shmtree::format {

// The position of a child in its parent.
struct Place {
  enum Role : std::uint8_t { kPart, kItem, kField, kKey, kValue };
  Role role = kPart;
  std::uint64_t number = 0;  // of the item or entry
  Name name{};               // of a field
};

template <class Visitor>
class NodeWalk {
 public:
  using Node = typename Visitor::Node;
  struct Earlier {
    typename Visitor::Object object{};
    bool is_there = false;  // a reader has the object
    bool is_open = true;    // its parts are being read
  };

  // Makes the visitor of `arguments`. Without `blocks`, ranges in other blocks are not checked, and visitors get no
  // bytes of them.
  template <class... Arguments>
  NodeWalk(FrameReader& reader, std::optional<Blocks> blocks, Arguments&&... arguments)
      : in_(reader), blocks_(blocks), visitor_(std::forward<Arguments>(arguments)...) {}

  Visitor& visitor() noexcept { return visitor_; }

  // Reads the next node with everything below it.
  [[gnu::always_inline]] Node node() {
    const Kind kind = in_.next_kind();
    if constexpr (requires(Node & node) { visitor_.scalar(kind, node); }) {
      Node node;
      if (visitor_.scalar(kind, node)) return node;
    }
    return by_rule(kind);
  }

 private:
  [[gnu::noinline]] Node by_rule(Kind kind) {
    const char* rule = grammar_of(kind);
    if (rule == nullptr) [[unlikely]]
      return marked(kind);
    Node node = visitor_.begin(kind);
    follow(kind, rule, node);
    visitor_.end(node);
    return node;
  }

  [[gnu::noinline, gnu::cold]] Node marked(Kind marked) {
    const Kind kind = unmarked(marked);
    const char* rule = has_identity(kind) ? grammar_of(kind) : nullptr;
    if (rule == nullptr) return in_.fail_kind(marked), Node();
    const std::size_t number = earlier_.begin(in_.position());
    Node node = visitor_.begin(kind);
    earlier_[number] = {visitor_.object(node), has_trait(kind, kMadeBeforeItems), true};
    follow(kind, rule, node);
    visitor_.end(node);
    earlier_[number].is_there = true;
    earlier_[number].is_open = false;
    return node;
  }

  void follow(Kind kind, const char* const whole, Node& node) {
    const char* const limits = limits_of(kind);
    for (const char* rule = whole; *rule != 0 && !in_.failed(); ++rule) {
      if (*rule == '*') return repeat(rule + 1, node);
      part(*rule, limits[rule - whole], node);
    }
  }

  // `limit` is the letter of KindRow::limits for this letter of the rule, or 0.
  [[gnu::always_inline]] void part(char letter, char limit, Node& node) {
    switch (letter) {
      case 'I': return visitor_.number(node, limit, in_.next_int());
      case 'L': return visitor_.length(node, limit, in_.next_flags(max_of(limit)));
      case 'F': return visitor_.real(node, in_.next_float());
      case 'N': return visitor_.name(node, limit, in_.next_name());
      case 'S': return visitor_.text(node, in_.next_string());
      case 'B': return visitor_.bytes(node, in_.next_string());
      case 'U': return visitor_.bytes(node, in_.next_text(16));
      case 'A': return array(limit, node);
      case 'V':
        if (!is_allowed(in_.peek_kind(), limit)) return in_.fail("a part of a node has an invalid kind");
        return child(node, {});
      case 'R': return reference(node);
      case 'D':
      case 'E': return dtype(letter == 'E', node);
      case 'Q': {
        const std::uint64_t count = in_.next_count();
        visitor_.count(node, count);
        visitor_.length(node, 0, in_.next_length());
        return children(count, node);
      }
      case 'Z': {
        const std::uint64_t set = in_.next_flags(3);
        visitor_.flags(node, set);
        if ((set & 2) != 0) child(node, {});
        return;
      }
      case 'Y':
        if (in_.next_flags(1) != 0) visitor_.text(node, in_.next_string());
        return;
    }
  }

  void repeat(const char* rule, Node& node) {
    if (*rule == 'I') return visitor_.ints(node, in_.next_ints());
    if (*rule == 'F') return visitor_.floats(node, in_.next_floats());
    if (*rule == 'A') return segments(node);
    const bool pairs = rule[0] == 'V' && rule[1] == 'V';
    const std::uint64_t count = in_.next_count(pairs ? 2 : 1);
    visitor_.count(node, count);
    if (*rule == 'V' && !pairs) return children(count, node);
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      if (pairs) {
        child(node, {Place::kKey, i});
        child(node, {Place::kValue, i});
      } else {
        child(node, {Place::kField, i, in_.next_name()});
      }
    }
  }

  void children(std::uint64_t count, Node& node) {
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) child(node, {Place::kItem, i});
  }

  [[gnu::always_inline]] void child(Node& parent, const Place& place) {
    if (!in_.enter()) return;
    visitor_.begin_child(parent, place);
    const Node child = node();
    in_.leave();
    visitor_.end_child(parent, place, child);
  }

  [[gnu::noinline, gnu::cold]] void reference(Node& node) {
    const std::uint64_t position = in_.next_length();
    if (in_.failed()) return;
    const Earlier* earlier = earlier_.find(position);
    if (earlier == nullptr) return in_.fail(kNoSuchNode);
    if (!earlier->is_there) return in_.fail(kNotThereYet);
    visitor_.refer(node, position, *earlier);
  }

  void dtype(bool with_element, Node& node) {
    Name description;
    const DType dtype = in_.next_dtype(description);
    visitor_.dtype(node, dtype, description);
    if (with_element) {
      visitor_.element(node, in_.next_text(dtype == DType::kOther ? in_.next_length() : item_bytes(dtype)));
    }
  }

  // Not inlined: ArrayInfo has two shapes, which would take stack space at every level of the recursion.
  [[gnu::noinline]] void array(char limit, Node& node) {
    ArrayInfo info;
    if (!(limit == 'u' || limit == 'b' ? in_.next_blob(info) : in_.next_array(info))) return;
    visit(limit, node, info);
  }

  [[gnu::noinline]] void segments(Node& node) {
    ArrayInfo info;
    std::uint64_t left = in_.next_segment_count();
    visitor_.segments(node, left);
    for (; left > 0 && in_.next_segment(info); --left) visit(0, node, info);
  }

  void visit(char limit, Node& node, ArrayInfo& info) {
    if (info.external() && blocks_.has_value() && !in_.locate_in(*blocks_, info)) return;
    visitor_.array(node, limit, info);
  }

  FrameReader& in_;
  const std::optional<Blocks> blocks_;
  Visitor visitor_;
  EarlierNodes<Earlier> earlier_{};
};

}  // namespace shmtree::format
