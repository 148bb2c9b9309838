#include "format/checked_frame.h"

#include <exception>
#include <utility>

#include "format/node_walk.h"
#include "platform/text.h"

namespace shmtree::format {

namespace {

// The visitor that checks the contents of a frame that the walk itself does not check, and collects the facts about the
// frame.
class Checker {
 public:
  struct Node {
    Kind kind = Kind::kInvalid;
  };
  struct Object {};

  Checker(FrameReader& reader, FrameContents& contents) noexcept : in_(reader), contents_(contents) {}

  std::string_view handle_class() const noexcept { return handle_class_; }

  Node begin(Kind kind) noexcept {
    if (kind == Kind::kPickle || kind == Kind::kLongPickle) contents_.has_pickle = true;
    if (kind == Kind::kGlobal && !is_factory_) contents_.has_global = true;
    return {kind};
  }
  void end(Node&) {}
  // Receivers accept only an unmarked factory. Any other factory counts as a class or function.
  Object object(Node& node) {
    if (node.kind == Kind::kGlobal) contents_.has_global = true;
    return {};
  }
  void refer(Node&, std::uint64_t, const auto&) {}

  void begin_child(Node& parent, const Place& place) {
    is_factory_ = parent.kind == Kind::kDefaultDict && place.role == Place::kPart;
    if (place.role == Place::kField) key(place.name);
  }
  void end_child(Node&, const Place&, const Node&) {}

  void number(Node&, char limit, std::int64_t value) {
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

  // Texts and names must be UTF-8. A lone surrogate is allowed, like any other code point.
  void text(Node&, std::string_view text) {
    if (!platform::is_text(text)) in_.fail("a text is not UTF-8");
  }

  void name(Node& node, char limit, const Name& name) {
    key(name);
    if (limit == 'c' && name.fresh) {
      const std::size_t colon = name.text.find(':');
      if (colon == 0 || colon == std::string_view::npos || colon + 1 == name.text.size()) {
        return in_.fail("the name of a class is not 'module:qualname'");
      }
    }
    if (node.kind != Kind::kRegistered || contents_.has_handle() || in_.failed() || !is_handle(name.text)) return;
    contents_.handle = in_.position();
    handle_class_ = name.text;
  }

  void array(Node& node, char limit, const ArrayInfo& info) {
    if (limit == 'u') text(node, {reinterpret_cast<const char*>(info.data), static_cast<std::size_t>(info.nbytes)});
  }

  void count(Node&, std::uint64_t) {}
  void segments(Node&, std::uint64_t) {}
  void length(Node&, char, std::uint64_t) {}
  void flags(Node&, std::uint64_t) {}
  void real(Node&, double) {}
  void bytes(Node&, std::string_view) {}
  void ints(Node&, std::span<const std::int64_t>) {}
  void floats(Node&, std::span<const double>) {}
  void dtype(Node&, DType, const Name&) {}
  void element(Node&, std::string_view) {}

 private:
  void key(const Name& name) {
    if (name.fresh && !platform::is_text(name.text)) in_.fail("a name is not UTF-8");
  }

  static constexpr std::int64_t kDayMicroseconds = 86'400'000'000, kMaxDays = 999'999'999;
  static bool is_day(std::int64_t packed) noexcept {
    const std::int64_t year = packed >> 9, month = packed >> 5 & 15, day = packed & 31;
    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1) return false;
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day <= kDays[month - 1] + (month == 2 && is_leap ? 1 : 0);
  }

  FrameReader& in_;
  FrameContents& contents_;
  std::string_view handle_class_{};
  bool is_factory_ = false;  // the next node is the factory of a defaultdict
};

}  // namespace

Status CheckedFrame::load(std::span<const std::byte> frame, Blocks blocks) {
  Status loaded = reader_.load(frame);
  if (!loaded) return loaded;
  whole_ = reader_.left();
  contents_.bytes = reader_.total_bytes();
  contents_.is_standalone = reader_.external_count() == 0;
  NodeWalk<Checker> walk(reader_, blocks, reader_, contents_);
  try {
    walk.node();
  } catch (const std::exception&) {
    return no_memory();
  }
  handle_class_ = walk.visitor().handle_class();
  return reader_.finish();
}

}  // namespace shmtree::format
