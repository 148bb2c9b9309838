#include "format/checked_frame.h"

#include <exception>
#include <utility>

#include "format/grammar.h"
#include "format/references.h"
#include "platform/text.h"

namespace shmtree::format {

namespace {

// One walk over the nodes by the rules of grammar.h. Recursion is bounded by the reader's depth.
class Checker {
 public:
  Checker(FrameReader& reader, Blocks blocks, FrameContents& contents) noexcept
      : in_(reader), blocks_(blocks), contents_(contents) {}

  std::string_view handle_class() const noexcept { return handle_class_; }

  void node(bool is_factory = false) {
    const Kind kind = in_.next_kind();
    const char* rule = grammar_of(kind);
    if (rule == nullptr) [[unlikely]]
      return marked(kind);
    look_at(kind, is_factory);
    follow(rule, kind);
  }

 private:
  void marked(Kind marked) {
    const Kind kind = unmarked(marked);
    const char* rule = has_identity(kind) ? grammar_of(kind) : nullptr;
    if (rule == nullptr) return in_.fail_kind(marked);
    look_at(kind, false);
    const std::size_t number = earlier_.begin(in_.position());
    earlier_[number] = is_there_before_its_items(kind);
    follow(rule, kind);
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

  void follow(const char* const whole, Kind kind) {
    for (const char* rule = whole; *rule != 0 && !in_.failed(); ++rule) {
      switch (*rule) {
        case 'I': number(kind, rule - whole); break;
        case 'L': flags(kind); break;
        case 'F': in_.next_float(); break;
        case 'N': name(kind, rule == whole); break;
        case 'S': text(in_.next_string()); break;
        case 'B': in_.next_string(); break;
        case 'U': in_.next_text(16); break;
        case 'A': array(kind); break;
        case 'V':
          if (!may_begin(kind, rule == whole, in_.peek_kind())) return in_.fail("a part of a node has an invalid kind");
          child(kind == Kind::kDefaultDict);
          break;
        case 'R': reference(); break;
        case 'D':
        case 'E': dtype(*rule == 'E'); break;
        case 'Q': {
          const std::uint64_t count = in_.next_count();
          in_.next_length();
          children(count);
          break;
        }
        case 'Z':
          if ((flag_up_to(3) & 2) != 0) child();
          break;
        case 'Y':
          if (flag_up_to(1) != 0) text(in_.next_string());
          break;
        case '*': return repeat(rule + 1);
      }
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

  std::uint64_t flag_up_to(std::uint64_t most) {
    const std::uint64_t flags = in_.next_length();
    if (flags > most) in_.fail("a node has unknown flags");
    return flags;
  }
  void flags(Kind kind) {
    switch (kind) {
      case Kind::kMaskedArray: flag_up_to(1); break;
      case Kind::kPath: flag_up_to(2); break;
      case Kind::kTensor: flag_up_to(3); break;
      default: in_.next_length();
    }
  }

  // Checks the int at position `place` of the rule of its kind.
  void number(Kind kind, std::ptrdiff_t place) {
    const std::int64_t value = in_.next_int();
    const bool is_first = place == 0;
    bool fits = true;
    switch (kind) {
      case Kind::kDate: fits = is_day(value); break;
      case Kind::kDateTime: fits = is_first ? is_day(value) : is_time(value); break;
      case Kind::kTime: fits = is_time(value); break;
      case Kind::kTimeDelta: fits = is_first ? value >= -kMaxDays && value <= kMaxDays : is_time(value); break;
      case Kind::kTimezone: fits = value > -kDayMicroseconds && value < kDayMicroseconds; break;
      case Kind::kRange: fits = place != 2 || value != 0; break;
      default: break;
    }
    if (!fits) in_.fail("a date, time or range has an impossible value");
  }

  static constexpr std::int64_t kDayMicroseconds = 86'400'000'000, kMaxDays = 999'999'999;
  static bool is_time(std::int64_t microseconds) noexcept {
    return microseconds >= 0 && microseconds < kDayMicroseconds;
  }
  static bool is_day(std::int64_t packed) noexcept {
    const std::int64_t year = packed >> 9, month = packed >> 5 & 15, day = packed & 31;
    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1) return false;
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day <= kDays[month - 1] + (month == 2 && is_leap ? 1 : 0);
  }

  // True if a part of a node may be of that kind, as far as the kind alone decides. `is_first`: it is the first part.
  static bool may_begin(Kind parent, bool is_first, Kind child) noexcept {
    switch (parent) {
      case Kind::kMemoryView: return child == Kind::kArray;
      case Kind::kMaskedArray: return !is_first || child == Kind::kArray;
      case Kind::kFraction: return child == Kind::kInt || child == Kind::kBigInt;
      default: return true;
    }
  }

  void name(Kind kind, bool is_first) {
    const Name name = in_.next_name();
    key(name);
    if (is_first && name.fresh && kind != Kind::kZoneInfo) {
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

  // Apart: its shapes would lie on the stack of every level.
  [[gnu::noinline]] void array(Kind kind) {
    if (kind == Kind::kLongStr) {
      const std::span<const std::byte> blob = in_.next_blob();
      return text({reinterpret_cast<const char*>(blob.data()), blob.size()});
    }
    if (kind != Kind::kArray && kind != Kind::kTensor) return static_cast<void>(in_.next_blob());
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
    const std::size_t room = blocks_[range.reference].size();
    if (range.offset > room || range.bytes > room - range.offset) {
      return in_.fail("it refers to bytes beyond the end of a block");
    }
  }

  FrameReader& in_;
  const Blocks blocks_;
  FrameContents& contents_;
  std::string_view handle_class_{};
  EarlierNodes<char> earlier_{};  // whether their objects are there
};

}  // namespace

Status CheckedFrame::load(std::span<const std::byte> frame, Blocks blocks) {
  Status loaded = reader_.load(frame);
  if (!loaded) return loaded;
  whole_ = reader_.left();
  contents_.bytes = reader_.total_bytes();
  contents_.stands_alone = reader_.external_count() == 0;
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
