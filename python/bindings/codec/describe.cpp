#include "bindings/codec/describe.h"

#include <charconv>
#include <cstdio>

#include "format/frame_reader.h"
#include "format/grammar.h"
#include "format/references.h"
#include "platform/text.h"

namespace shmtree::python {
namespace {

constexpr std::uint64_t kShownItems = 100;
constexpr std::size_t kShownText = 60;
constexpr std::size_t kIndent = 2;
constexpr std::size_t kLongestPath = 200;  // limit in a description
constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);

// Avoids operator+, because gcc 12 warns of overlapping copies in `"..." + std::string()` (GCC bug 105651).
template <class... Parts>
std::string join(const Parts&... parts) {
  std::string out;
  (out.append(std::string_view(parts)), ...);
  return out;
}

std::string number(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

// Quotes a text and shortens it to kShownText bytes. add() makes it printable.
std::string quoted(std::string_view text, const char* quote = "'") {
  std::string_view shown = text.substr(0, kShownText);
  if (shown.size() < text.size()) shown = shown.substr(0, platform::utf8_prefix(shown));
  return join(quote, shown, quote, text.size() > kShownText ? "..." : "");
}

std::string bytes_text(std::uint64_t bytes) {
  return join(std::to_string(bytes), bytes == 1 ? " byte" : " bytes");
}

class Describer {
 public:
  explicit Describer(format::FrameReader& reader) : in_(reader) {}
  // Writes nothing, and stops at the node with the number `wanted`.
  Describer(format::FrameReader& reader, std::size_t wanted) : in_(reader), muted_(1), wanted_(wanted) {}

  std::string text() { return std::move(out_); }
  // Returns the path of the wanted node if node() has found it.
  std::optional<std::string> path() const { return found_ ? std::optional(platform::printable(path_)) : std::nullopt; }

  // Returns the field names of the wanted node, at which node() has stopped.
  std::vector<std::string> fields() {
    std::vector<std::string> names;
    wanted_ = kNoNode;
    if (!found_ || format::unmarked(in_.next_kind()) != Kind::kDataclass) return names;
    in_.next_name();
    const std::uint64_t count = in_.next_count();
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      names.emplace_back(in_.next_name().text);
      if (!node(0, "")) break;
    }
    return names;
  }

  // Writes the lines of the next node, with `label` before the first one. Returns false after a failure and at the
  // wanted node.
  bool node(std::size_t indent, const std::string& label) {
    if (in_.nodes() - in_.left().kinds.left() == wanted_) return found_ = true, false;
    if (!in_.enter()) return false;
    const Kind marked = in_.next_kind(), kind = format::unmarked(marked);
    const char* rule = format::grammar_of(kind);
    if (!rule || (marked != kind && !format::has_identity(kind))) return in_.fail_kind(marked), false;
    std::size_t number = 0;
    if (marked != kind) {
      number = earlier_.begin(in_.position());
      earlier_[number] = {muted_ == 0 ? join("message", path_) : "", format::has_trait(kind, format::kMadeBeforeItems)};
    }
    Line line{indent, join(label, name_of(kind)), false};
    for (; *rule != '\0' && *rule != '*'; ++rule) {
      if (*rule == 'V') {
        emit(line);
        if (!step_to(kind == Kind::kRegistered ? ".<flat>" : "", indent + kIndent, "")) return false;
      } else {
        line.text += kind == Kind::kCapnp ? schema_id() : detail(*rule, line, indent);
      }
    }
    if (*rule == '*' && !items(rule + 1, kind, line)) return false;
    emit(line);
    if (marked != kind) earlier_[number].is_there = true;
    in_.leave();
    return !in_.failed();
  }

 private:
  struct Earlier {
    std::string path{};
    bool is_there = false;
  };

  std::string reference() {
    const std::uint64_t position = in_.next_length();
    const Earlier* earlier = in_.failed() ? nullptr : earlier_.find(position);
    if (!earlier) return in_.fail(format::kNoSuchNode), "";
    if (!earlier->is_there) return in_.fail(format::kNotThereYet), "";
    return earlier->path.empty() ? join(" to node ", std::to_string(position)) : join(" to ", earlier->path);
  }

  // Describes the next node, which its parent reaches by `step`.
  bool step_to(const std::string& step, std::size_t indent, const std::string& label) {
    const std::size_t before = path_.size();
    if (wanted_ != kNoNode || before < kLongestPath) path_ += step;
    if (wanted_ == kNoNode && before < kLongestPath && path_.size() >= kLongestPath) path_ += "...";
    const bool written = node(indent, label);
    if (!found_) path_.resize(before);
    return written;
  }

  struct Line {
    std::size_t indent;
    std::string text;
    bool is_out;
  };

  void emit(Line& line) {
    if (line.is_out) return;
    line.is_out = true;
    add(line.indent, line.text);
  }

  void add(std::size_t indent, const std::string& text) {
    if (muted_ == 0) out_.append(indent, ' ').append(platform::printable(text)).append("\n");
  }

  // Reads the item for one letter of the grammar and returns it as text. Not for V and *.
  std::string detail(char letter, Line& line, std::size_t indent) {
    switch (letter) {
      case 'I': return join(" ", last_ = std::to_string(in_.next_int()));
      case 'F': return join(" ", number(in_.next_float()));
      case 'R': return reference();
      case 'L': return join(" ", std::to_string(in_.next_length()));
      case 'N': return join(" ", in_.next_name().text);
      case 'S': {
        const std::string_view characters = in_.next_string();
        last_ = quoted(characters, "\"");
        return join(" ", quoted(characters));
      }
      case 'B': return join(" of ", bytes_text(in_.next_string().size()));
      case 'U': return in_.next_text(16).empty() ? "" : " of 16 bytes";
      case 'A': return array();
      case 'D': return join(" ", dtype(nullptr));
      case 'E': return scalar();
      case 'Q': return deque(line);
      case 'Y': return in_.next_length() != 0 ? join(" ", quoted(in_.next_string())) : "";
      case 'Z':
        if (in_.next_length() & 2) {
          emit(line);
          node(indent + kIndent, "");
        }
        return "";
      default: in_.fail("its kind has an unknown part"); return "";
    }
  }

  std::string dtype(std::size_t* item) {
    format::Name description;
    const DType code = in_.next_dtype(description);
    if (item) *item = item_bytes(code);
    if (code != DType::kOther) return std::string(name_of(code));
    if (item) *item = in_.next_length();
    return std::string(description.text.substr(0, kShownText));
  }

  std::string scalar() {
    std::size_t item = 0;
    std::string name = dtype(&item);
    in_.next_text(item);
    return join(" ", name);
  }

  // Formats the id like the `capnp` tool.
  std::string schema_id() {
    char digits[24];
    std::snprintf(digits, sizeof digits, " @0x%016llx", static_cast<unsigned long long>(in_.next_int()));
    return digits;
  }

  bool segments(Line& line) {
    const std::uint64_t count = in_.next_segment_count();
    std::uint64_t bytes = 0;
    format::ArrayInfo info;
    for (std::uint64_t i = 0; i < count && in_.next_segment(info); ++i) bytes += info.nbytes;
    line.text += join(" of ", std::to_string(count), count == 1 ? " segment, " : " segments, ", bytes_text(bytes));
    return !in_.failed();
  }

  std::string array() {
    format::ArrayInfo info;
    if (!in_.next_array(info)) return "";
    std::string text = " ";
    text += info.dtype == DType::kOther ? info.description.text.substr(0, kShownText) : name_of(info.dtype);
    text += " (";
    for (std::size_t i = 0; i < info.ndim; ++i) text += join(i ? ", " : "", std::to_string(info.shape[i]));
    text += info.ndim == 1 ? ",) " : ") ";
    text += bytes_text(info.nbytes);
    if (info.buffer != format::kNoIndex)
      text += join(info.external() ? ", range " : ", buffer ", std::to_string(info.buffer));
    if (info.flags & format::kFortran) text += ", Fortran order";
    if (info.flags & format::kStrided) text += ", strided";
    if (info.read_only()) text += ", read-only";
    return text;
  }

  std::string deque(Line& line) {
    const std::uint64_t count = in_.next_count();
    const std::uint64_t bound = in_.next_length();
    line.text += join(" of ", std::to_string(count));
    if (bound) line.text += join(", at most ", std::to_string(bound - 1));
    emit(line);
    repeat("V", Kind::kDeque, count, line.indent);
    return "";
  }

  bool items(const char* rule, Kind kind, Line& line) {
    if (*rule == 'I' || *rule == 'F') {
      const std::size_t count = *rule == 'I' ? in_.next_ints().size() : in_.next_floats().size();
      line.text += join(" of ", std::to_string(count));
      return !in_.failed();
    }
    if (*rule == 'A') return segments(line);
    const bool pairs = rule[0] == 'V' && rule[1] == 'V';
    const std::uint64_t count = in_.next_count(pairs ? 2 : 1);
    if (line.is_out) {
      add(line.indent + kIndent, join(std::to_string(count), " entries"));
    } else {
      line.text += join(" of ", std::to_string(count));
    }
    emit(line);
    return repeat(rule, kind, count, line.indent);
  }

  bool repeat(std::string_view rule, Kind kind, std::uint64_t count, std::size_t indent) {
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      if (i == kShownItems) {
        add(indent + kIndent, join("... and ", std::to_string(count - kShownItems), " more"));
        ++muted_;
      }
      Own own{join("[", std::to_string(i), "]"), ""};
      if (rule == "NV") own = field(kind);
      if (rule == "VV" && !key(i, own)) return false;
      if (!step_to(own.step, indent + kIndent, own.label)) return false;
    }
    if (count > kShownItems) --muted_;
    return !in_.failed();
  }

  // The part of a container's entry that precedes its value: the step to it, and its label.
  struct Own {
    std::string step, label;
  };

  Own field(Kind kind) {
    const std::string_view name = in_.next_name().text;
    return {kind == Kind::kDataclass ? join(".", name.substr(0, kShownText)) : join("[", quoted(name, "\""), "]"),
            join(quoted(name), ": ")};
  }

  // Writes a key on one line.
  bool key(std::uint64_t i, Own& own) {
    const Kind kind = format::unmarked(in_.peek_kind());
    std::string lines;
    lines.swap(out_);
    const bool written = step_to(join(".keys()[", std::to_string(i), "]"), 0, "");
    lines.swap(out_);
    for (char& c : lines) {
      if (c == '\n') c = ' ';
    }
    if (!lines.empty()) lines.pop_back();
    const bool is_plain = kind == Kind::kInt || kind == Kind::kStr;
    own = {is_plain ? join("[", last_, "]") : join("[<", name_of(kind), ">]"), join(lines, ": ")};
    return written;
  }

  format::FrameReader& in_;
  std::string out_;
  std::size_t muted_ = 0;
  std::size_t wanted_ = kNoNode;
  bool found_ = false;
  std::string path_;
  std::string last_;  // the last integer or text that was read, in the form of a step
  format::EarlierNodes<Earlier> earlier_{};
};

}  // namespace

Result<std::string> describe_frame(std::span<const std::byte> frame) {
  Result<format::FrameReader> opened = format::FrameReader::open(frame);
  if (!opened.ok()) return opened.error();
  format::FrameReader& reader = *opened;
  Describer describer(reader);
  if (!describer.node(0, "")) return reader.error();
  const Status finished = reader.finish();
  if (!finished.ok()) return finished.error();
  return join("frame of ", bytes_text(reader.total_bytes()), ", ", std::to_string(reader.metadata_bytes()),
              " of them metadata\n", describer.text());
}

std::optional<std::string> path_of_node(std::span<const std::byte> frame, std::size_t number) {
  Result<format::FrameReader> opened = format::FrameReader::open(frame);
  if (!opened.ok()) return std::nullopt;
  Describer describer(*opened, number);
  describer.node(0, "");
  return describer.path();
}

std::vector<std::string> fields_of_node(std::span<const std::byte> frame, std::size_t number) {
  Result<format::FrameReader> opened = format::FrameReader::open(frame);
  if (!opened.ok()) return {};
  Describer describer(*opened, number);
  describer.node(0, "");
  return describer.fields();
}

}  // namespace shmtree::python
