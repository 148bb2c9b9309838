#include "bindings/codec/frame_path.h"

#include <cstdint>
#include <string_view>

#include "format/frame_reader.h"
#include "format/grammar.h"
#include "format/references.h"

namespace shmtree::python {
namespace {

constexpr std::size_t kLongestName = 60;

std::string shortened(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kLongestName)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  if (text.size() > kLongestName) out.append("...");
  return out;
}

std::string in_brackets(std::string_view text, const char* quote = "") {
  std::string out("[");
  return out.append(quote).append(text).append(quote).append("]");
}

class Finder {
 public:
  Finder(format::FrameReader& reader, std::size_t wanted) : in_(reader), wanted_(wanted) {}

  // Passes over the next node, whose step from its container is `step`. False when there is an end to it: the wanted
  // node was met, or the frame is corrupt.
  bool node(const std::string& step) {
    const std::size_t length = path_.size();
    path_.append(step);
    if (in_.nodes() - in_.left().kinds.left() == wanted_) return found_ = true, false;
    if (!in_.enter()) return false;
    const Kind kind = format::unmarked(in_.next_kind());
    const char* rule = format::grammar_of(kind);
    if (rule == nullptr) return false;
    for (; *rule != '\0' && *rule != '*'; ++rule) {
      if (!part(*rule, kind)) return false;
    }
    if (*rule == '*' && !items(rule + 1, kind)) return false;
    in_.leave();
    path_.resize(length);
    return !in_.failed();
  }

  bool found() const noexcept { return found_; }
  std::string path() const { return path_; }

 private:
  // What one letter of the grammar takes. Parts that have no name of their own are no step.
  bool part(char letter, Kind kind) {
    switch (letter) {
      case 'I': in_.next_int(); break;
      case 'F': in_.next_float(); break;
      case 'L':
      case 'R': in_.next_length(); break;
      case 'N': in_.next_name(); break;
      case 'S':
      case 'B': in_.next_string(); break;
      case 'U': in_.next_text(16); break;
      case 'A': {
        format::ArrayInfo info;
        in_.next_array(info);
        break;
      }
      case 'D':
      case 'E': dtype(letter == 'E'); break;
      case 'Y':
        if (in_.next_length() != 0) in_.next_string();
        break;
      case 'Z': return (in_.next_length() & 2) == 0 || node("");
      case 'V': return node(kind == Kind::kRegistered ? ".<flat>" : "");
      case 'Q': {
        const std::uint64_t count = in_.next_count();
        in_.next_length();
        return repeat("V", kind, count);
      }
      default: return false;
    }
    return !in_.failed();
  }

  void dtype(bool with_element) {
    format::Name description;
    const DType code = in_.next_dtype(description);
    if (!with_element) return;
    in_.next_text(code == DType::kOther ? in_.next_length() : item_bytes(code));
  }

  bool items(std::string_view rule, Kind kind) {
    if (rule == "I") return in_.next_ints(), !in_.failed();
    if (rule == "F") return in_.next_floats(), !in_.failed();
    return repeat(rule, kind, in_.next_count(rule == "VV" ? 2 : 1));
  }

  bool repeat(std::string_view rule, Kind kind, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string step;
      if (rule == "NV") {
        const std::string name = shortened(in_.next_name().text);
        step = kind == Kind::kDataclass ? std::string(".").append(name) : in_brackets(name, "\"");
      } else if (rule == "VV") {
        if (!key(i, step)) return false;
      } else {
        step = in_brackets(std::to_string(i));
      }
      if (!node(step)) return false;
    }
    return !in_.failed();
  }

  // Passes over a key, and says what its value's step is.
  bool key(std::uint64_t i, std::string& step) {
    const Kind kind = in_.peek_kind();
    if (kind != Kind::kInt && kind != Kind::kStr) {
      step = std::string("[<").append(name_of(kind)).append(">]");
      return node(std::string(".keys()").append(in_brackets(std::to_string(i))));
    }
    in_.next_kind();
    step = kind == Kind::kInt ? in_brackets(std::to_string(in_.next_int()))
                              : in_brackets(shortened(in_.next_string()), "\"");
    return !in_.failed();
  }

  format::FrameReader& in_;
  const std::size_t wanted_;
  std::string path_;
  bool found_ = false;
};

}  // namespace

std::optional<std::string> path_of_node(std::span<const std::byte> frame, std::size_t number) {
  Result<format::FrameReader> opened = format::FrameReader::open(frame);
  if (!opened.ok()) return std::nullopt;
  Finder finder(*opened, number);
  finder.node("");
  return finder.found() ? std::optional(finder.path()) : std::nullopt;
}

}  // namespace shmtree::python
