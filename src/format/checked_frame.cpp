#include "format/checked_frame.h"

#include <exception>
#include <utility>

#include "format/grammar.h"
#include "format/references.h"
#include "platform/text.h"

namespace shmtree::format {

namespace {

// Walks once over the nodes, by the rules of grammar.h. The reader's depth limit bounds the recursion.
class Checker {
 public:
  Checker(FrameReader& reader, Blocks blocks, FrameContents& contents) noexcept
      : in_(reader), blocks_(blocks), contents_(contents) {}

  std::string_view handle_class() const noexcept { return handle_class_; }

  void node(bool is_factory = false) {
    const Kind kind = in_.next_kind();
    if (grammar_of(kind) == nullptr) [[unlikely]]
      return marked(kind);
    look_at(kind, is_factory);
    follow(*row_of(kind));
  }

 private:
  void marked(Kind marked) {
    const Kind kind = unmarked(marked);
    if (!has_identity(kind) || grammar_of(kind) == nullptr) return in_.fail_kind(marked);
    look_at(kind, false);
    const std::size_t number = earlier_.begin(in_.position());
    earlier_[number] = has_trait(kind, kMadeBeforeItems);
    follow(*row_of(kind));
    earlier_[number] = true;
  }

  void look_at(Kind kind, bool is_factory) noexcept {
    if (kind == Kind::kPickle || kind == Kind::kLongPickle) contents_.has_pickle = true;
    if (kind == Kind::kGlobal && !is_factory) contents_.has_global = true;
  }

  void child(bool is_factory = false) {
    if (!in_.enter()) return;
    node(is_factory);
    in_.leave();
  }
  void children(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) child();
  }

  void follow(const KindRow& row) {
    const char* limit = row.limits;
    for (const char* rule = row.rule; *rule != 0 && !in_.failed(); ++rule) {
      if (*rule == '*') return repeat(rule + 1);
      follow(row.kind, *rule, *limit);
      if (*limit != 0) ++limit;
    }
  }

  // `limit` is the letter of KindRow::limits for this letter of the rule, or 0.
  void follow(Kind kind, char letter, char limit) {
    switch (letter) {
      case 'I': number(limit); break;
      case 'L': flags(limit); break;
      case 'F': in_.next_float(); break;
      case 'N': name(kind, limit); break;
      case 'S': text(in_.next_string()); break;
      case 'B': in_.next_string(); break;
      case 'U': in_.next_text(16); break;
      case 'A': array(limit); break;
      case 'V':
        if (!is_allowed(in_.peek_kind(), limit)) return in_.fail("a part of a node has an invalid kind");
        child(kind == Kind::kDefaultDict);
        break;
      case 'R': reference(); break;
      case 'D':
      case 'E': dtype(letter == 'E'); break;
      case 'Q': {
        const std::uint64_t count = in_.next_count();
        in_.next_length();
        children(count);
        break;
      }
      case 'Z':
        if ((flags('3') & 2) != 0) child();
        break;
      case 'Y':
        if (flags('1') != 0) text(in_.next_string());
        break;
    }
  }

  void repeat(const char* rule) {
    if (*rule == 'I') return static_cast<void>(in_.next_ints());
    if (*rule == 'F') return static_cast<void>(in_.next_floats());
    if (*rule == 'A') return segments();
    const bool pairs = rule[0] == 'V' && rule[1] == 'V', named = *rule == 'N';
    const std::uint64_t count = in_.next_count(pairs ? 2 : 1);
    if (!named) return children(pairs ? 2 * count : count);
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      key(in_.next_name());
      child();
    }
  }

  // Texts and names must be UTF-8. A lone surrogate is allowed, like any other code point.
  void text(std::string_view text) {
    if (!platform::is_text(text)) in_.fail("a text is not UTF-8");
  }
  void key(const Name& name) {
    if (name.fresh && !platform::is_text(name.text)) in_.fail("a name is not UTF-8");
  }

  std::uint64_t flags(char limit) {
    const std::uint64_t flags = in_.next_length();
    if (limit >= '0' && limit <= '9' && flags > static_cast<std::uint64_t>(limit - '0')) {
      in_.fail("a node has unknown flags");
    }
    return flags;
  }

  void number(char limit) {
    const std::int64_t value = in_.next_int();
    bool fits = true;
    switch (limit) {
      case 'd': fits = is_day(value); break;
      case 't': fits = value >= 0 && value < kDayMicroseconds; break;
      case 'D': fits = value >= -kMaxDays && value <= kMaxDays; break;
      case 'o': fits = value > -kDayMicroseconds && value < kDayMicroseconds; break;
      case 's': fits = value != 0; break;
      default: break;
    }
    if (!fits) in_.fail("a date, time or range has an impossible value");
  }

  static constexpr std::int64_t kDayMicroseconds = 86'400'000'000, kMaxDays = 999'999'999;
  static bool is_day(std::int64_t packed) noexcept {
    const std::int64_t year = packed >> 9, month = packed >> 5 & 15, day = packed & 31;
    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1) return false;
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day <= kDays[month - 1] + (month == 2 && is_leap ? 1 : 0);
  }

  void name(Kind kind, char limit) {
    const Name name = in_.next_name();
    key(name);
    if (limit == 'c' && name.fresh) {
      const std::size_t colon = name.text.find(':');
      if (colon == 0 || colon == std::string_view::npos || colon + 1 == name.text.size()) {
        return in_.fail("the name of a class is not 'module:qualname'");
      }
    }
    if (kind != Kind::kRegistered || contents_.has_handle() || in_.failed() || !is_handle(name.text)) return;
    contents_.handle = in_.position();
    handle_class_ = name.text;
  }

  void reference() {
    const std::uint64_t position = in_.next_length();
    if (in_.failed()) return;
    const char* is_there = earlier_.find(position);
    if (is_there == nullptr) return in_.fail(kNoSuchNode);
    if (*is_there == 0) return in_.fail(kNotThereYet);
  }

  void dtype(bool with_element) {
    Name description;
    const DType dtype = in_.next_dtype(description);
    if (with_element) in_.next_text(dtype == DType::kOther ? in_.next_length() : item_bytes(dtype));
  }

  // Not inlined: ArrayInfo has two shapes, which would take stack space at every level of the recursion.
  [[gnu::noinline]] void array(char limit) {
    if (limit == 'u') {
      const std::span<const std::byte> blob = in_.next_blob();
      return text({reinterpret_cast<const char*>(blob.data()), blob.size()});
    }
    if (limit == 'b') return static_cast<void>(in_.next_blob());
    ArrayInfo info;
    if (in_.next_array(info)) range_of(info);
  }

  [[gnu::noinline]] void segments() {
    ArrayInfo info;
    for (std::uint64_t left = in_.next_segment_count(); left > 0 && in_.next_segment(info); --left) range_of(info);
  }

  void range_of(const ArrayInfo& info) {
    if (!info.external()) return;
    const External range = in_.external(info.buffer);
    if (range.reference >= blocks_.size()) return in_.fail("it refers to a block that the message does not have");
    const std::size_t available = blocks_[range.reference].size();
    if (range.offset > available || range.bytes > available - range.offset) {
      return in_.fail("it refers to bytes beyond the end of a block");
    }
  }

  FrameReader& in_;
  const Blocks blocks_;
  FrameContents& contents_;
  std::string_view handle_class_{};
  EarlierNodes<char> earlier_{};  // 1 if the reader already has the node's object
};

}  // namespace

Status CheckedFrame::load(std::span<const std::byte> frame, Blocks blocks) {
  Status loaded = reader_.load(frame);
  if (!loaded) return loaded;
  whole_ = reader_.left();
  contents_.bytes = reader_.total_bytes();
  contents_.is_standalone = reader_.external_count() == 0;
  Checker checker(reader_, blocks, contents_);
  try {
    checker.node();
  } catch (const std::exception&) {
    return no_memory();
  }
  handle_class_ = checker.handle_class();
  return reader_.finish();
}

}  // namespace shmtree::format
