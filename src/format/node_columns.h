// The nodes of a message that is being built: the columns of plain values to which they are appended, in preorder.
//
// shmtree/base/kind.h lists for each kind the values that its node takes from the columns. The caller appends them in
// exactly that order. Nothing is checked here; a reader rejects a frame if its columns do not match its nodes.
// Thread safety: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/column.h"
#include "format/depth.h"
#include "format/layout.h"
#include "format/references.h"
#include "platform/dcheck.h"
#include "shmtree/base/kind.h"

namespace shmtree::format {

class NodeColumns {
 public:
  void add_kind(Kind kind) noexcept { kinds_.push(static_cast<std::uint8_t>(kind)); }
  void add_int(std::int64_t value) noexcept { ints_.push(value); }
  void add_float(double value) noexcept { floats_.push(value); }
  [[gnu::always_inline]] void add_length(std::uint64_t value) noexcept {
    if (value < kLengthEscape) [[likely]] {
      lengths_.push(static_cast<std::uint8_t>(value));
    } else {
      lengths_.push(kLengthEscape);
      ints_.push(static_cast<std::int64_t>(value));
    }
  }
  // Appends bytes without their number, which the reader knows from elsewhere (T).
  void add_text(const void* bytes, std::size_t count) noexcept { text_.append(bytes, count); }
  // Appends the number of bytes, then the bytes (S).
  void add_string(const void* bytes, std::size_t count) noexcept {
    add_length(count);
    text_.append(bytes, count);
  }
  void add_string(std::string_view text) noexcept { add_string(text.data(), text.size()); }
  // Appends the name of a key, field or class, or a dtype description (N), of at most kMaxNameBytes. Returns its number
  // among the names of this message. A repeated name usually takes one byte.
  std::uint32_t add_name(std::string_view name) noexcept;
  // Does the same for a caller that has stored the result of hash_of_name().
  [[gnu::always_inline]] std::uint32_t add_name(std::string_view name, std::uint8_t hash) noexcept {
    std::uint32_t& latest = name_cache_[hash];
    if (latest < names_.size() && is_name(latest, name)) {
      add_known_name(latest);
      return latest;
    }
    latest = static_cast<std::uint32_t>(names_.size());
    if (std::uint8_t* lengths = name.size() < kLengthEscape ? lengths_.extend(2) : nullptr) [[likely]] {
      lengths[0] = 0;
      lengths[1] = static_cast<std::uint8_t>(name.size());
    } else {
      add_length(0);
      add_length(name.size());
    }
    names_.push({static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(name.size())});
    text_.append(name.data(), name.size());
    return latest;
  }
  static std::uint8_t hash_of_name(std::string_view name) noexcept;
  // Appends a name again, by the number that add_name() returned for it in this message.
  void add_known_name(std::uint32_t number) noexcept { add_length(std::uint64_t{number} + 1); }
  // All text added so far, including names and bytes. Valid until the next call.
  std::string_view text() const noexcept { return {text_.data(), text_.size()}; }
  // Returns true if a string of `count` bytes must go to a raw buffer (kLongStr and so on) instead of text.
  bool is_long(std::size_t count) const noexcept { return count > kMaxInlineText || text_.size() + count > kMaxText; }

  // Begins a node that starts with a length, in most cases its number of items.
  template <class Number>
  void begin_node(Kind kind, Number number) noexcept {
    add_kind(kind);
    add_length(static_cast<std::uint64_t>(number));
  }
  // Each appends one complete node.
  void add_int_node(std::int64_t value) noexcept { add_kind(Kind::kInt), add_int(value); }
  void add_float_node(double value) noexcept { add_kind(Kind::kFloat), add_float(value); }
  void add_bool_node(bool value) noexcept { add_kind(value ? Kind::kTrue : Kind::kFalse); }
  void add_none_node() noexcept { add_kind(Kind::kNone); }

  // set_kind() replaces the kind of an earlier node. `position` is the value of kinds() before that node's add_kind().
  std::size_t kinds() const noexcept { return kinds_.size(); }
  void set_kind(std::size_t position, Kind kind) noexcept {
    if (position >= kinds()) return;  // memory ran out; finish() reports it
    kinds_[position] = static_cast<std::uint8_t>(kind);
  }

  // Appends a reference to the object of an earlier node (kReference). `position` is the value of kinds() before that
  // node's add_kind().
  void add_reference(std::size_t position) noexcept;
  Kind kind_at(std::size_t position) const noexcept {
    return position < kinds() ? unmarked(static_cast<Kind>(kinds_[position])) : Kind::kInvalid;  // memory ran out
  }

  // Call this before the children of a node. False if the tree would be deeper than kMaxDepth, or too deep for this
  // thread's stack (has_no_stack). Call leave() once for each true.
  bool enter() noexcept { return depth_.enter(); }
  void leave() noexcept { depth_.leave(); }
  bool has_no_stack() const noexcept { return depth_.why() == Depth::Why::kNoStack; }

 protected:
  template <class Self, class Use>
  static auto with_columns(Self& self, Use use) noexcept {
    return use(self.kinds_, self.lengths_, self.ints_, self.floats_, self.text_, self.names_);
  }
  struct Mark {
    std::array<std::size_t, 6> sizes;  // in the order of with_columns()
    std::size_t depth;
  };
  Mark mark() const noexcept {
    return {with_columns(*this, [](auto&... column) { return std::array{column.size()...}; }), depth_.level()};
  }
  void rewind(const Mark& mark) noexcept {
    SHMTREE_DCHECK(failed() == 0);
    with_columns(*this, [size = mark.sizes.begin()](auto&... column) mutable { (column.truncate(*size++), ...); });
    depth_.back_to(mark.depth);
  }
  void clear() noexcept {
    with_columns(*this, [](auto&... column) { (column.clear(), ...); });
    depth_ = {};
  }
  // Returns a value other than 0 if memory ran out. Combines the flags without branches, because failure is rare.
  int failed() const noexcept {
    return with_columns(*this, [](auto&... column) { return (int{column.failed()} | ...); });
  }

 private:
  // Text stays far under Cap'n Proto's limit of 512 MiB: beyond this, every string becomes a raw buffer.
  static constexpr std::size_t kMaxText = std::size_t{1} << 28;
  struct NameRef {
    std::uint32_t offset;  // in text_
    std::uint32_t bytes;
  };
  bool is_name(std::uint32_t number, std::string_view name) const noexcept;

  Column<std::uint8_t> kinds_;
  Column<std::uint8_t> lengths_;
  Column<std::int64_t> ints_;
  Column<double> floats_;
  Column<char> text_;
  Column<NameRef> names_;
  Depth depth_;
  // Number of the latest name with each hash. Entries are hints that are checked against the names of this message, so
  // they are never cleared.
  std::uint32_t name_cache_[256] = {};
};

}  // namespace shmtree::format
