#include "bindings/codec/describe.h"

#include <charconv>
#include <cstdio>
#include <utility>

#include "format/node_walk.h"
#include "platform/text.h"

namespace shmtree::python {
namespace {

constexpr std::uint64_t kShownItems = 100;
constexpr std::size_t kShownText = 60;
constexpr std::size_t kIndent = 2;
constexpr std::size_t kLongestPath = 200;  // maximum number of items that a description shows
constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);

// Avoids operator+, because gcc 12 warns of overlapping copies in `"..." + std::string()` (GCC bug 105651).
template <class... Parts>
std::string join(const Parts&... parts) {
  std::string out;
  (out.append(std::string_view(parts)), ...);
  return out;
}

std::string shortest(double value) {
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

std::string name_of(DType dtype, const format::Name& description) {
  return std::string(dtype == DType::kOther ? description.text.substr(0, kShownText) : shmtree::name_of(dtype));
}

// Writes a line or more per node.
class Describer {
 public:
  // The first line of a node.
  struct Node {
    Kind kind = Kind::kInvalid;
    std::size_t number = kNoNode, indent = 0;
    std::string text{};
    bool is_out = false;
    std::uint64_t items = 0, bytes = 0;     // bytes of the message's segments
    std::size_t path_bytes = 0;             // of the path to the node
    std::string label{}, step{}, before{};  // of the current entry, while its key is read
  };
  using Object = std::string;  // its path

  explicit Describer(format::FrameReader& reader) : in_(reader) {}
  // Writes nothing, but notes the path and the fields of the node with the number `wanted`. Stops the walk after it.
  Describer(format::FrameReader& reader, std::size_t wanted) : in_(reader), muted_(1), wanted_(wanted) {}

  std::string text() { return std::move(out_); }
  NodeFacts facts() { return std::move(facts_); }

  Node begin(Kind kind) {
    if (in_.position() == wanted_) facts_.path = platform::printable(path_);
    return {.kind = kind,
            .number = in_.position(),
            .indent = indent_,
            .text = join(label_, shmtree::name_of(kind)),
            .path_bytes = path_.size()};
  }
  void end(Node& node) {
    if (node.kind == Kind::kCapnp) node.text += bytes_text(node.bytes);
    emit(node);
    if (node.items > kShownItems) --muted_;
    if (node.number == wanted_) in_.fail("the wanted node was read");
  }

  Object object(Node&) { return muted_ == 0 ? join("message", path_) : ""; }
  void refer(Node& node, std::uint64_t position, const auto& earlier) {
    node.text += earlier.object.empty() ? join(" to node ", std::to_string(position)) : join(" to ", earlier.object);
  }

  void begin_child(Node& node, const format::Place& place) {
    using enum format::Place::Role;
    emit(node);
    if (place.number == kShownItems && place.role != kValue) {
      add(node.indent + kIndent, join("... and ", std::to_string(node.items - kShownItems), " more"));
      ++muted_;
    }
    indent_ = node.indent + kIndent;
    label_.clear();
    const std::string number = std::to_string(place.number);
    switch (place.role) {
      case kPart: step(node.kind == Kind::kRegistered ? ".<flat>" : ""); break;
      case kItem: step(join("[", number, "]")); break;
      case kField: field(node, place.name.text); break;
      case kKey:
        step(join(".keys()[", number, "]"));
        indent_ = 0;
        node.before.swap(out_);
        break;
      case kValue:
        label_ = node.label;
        step(node.step);
        break;
    }
  }
  void end_child(Node& node, const format::Place& place, const Node& child) {
    path_.resize(node.path_bytes);
    if (place.role == format::Place::kKey) end_key(node, child.kind);
  }

  void count(Node& node, std::uint64_t items) {
    node.items = items;
    if (node.is_out) {
      add(node.indent + kIndent, join(std::to_string(items), " entries"));
    } else {
      node.text += join(" of ", std::to_string(items));
    }
  }
  void segments(Node& node, std::uint64_t count) {
    node.text += join(" of ", std::to_string(count), count == 1 ? " segment, " : " segments, ");
  }

  void number(Node& node, char, std::int64_t value) {
    last_ = std::to_string(value);
    node.text += node.kind == Kind::kCapnp ? schema_id(value) : join(" ", last_);
  }
  void length(Node& node, char, std::uint64_t value) {
    if (node.kind != Kind::kDeque) {
      node.text += join(" ", std::to_string(value));
    } else if (value != 0) {
      node.text += join(", at most ", std::to_string(value - 1));
    }
  }
  void flags(Node&, std::uint64_t) {}
  void real(Node& node, double value) { node.text += join(" ", shortest(value)); }
  void name(Node& node, char, const format::Name& name) { node.text += join(" ", name.text); }
  void text(Node& node, std::string_view text) {
    last_ = quoted(text, "\"");
    node.text += join(" ", quoted(text));
  }
  void bytes(Node& node, std::string_view bytes) { node.text += join(" of ", bytes_text(bytes.size())); }
  void element(Node&, std::string_view) {}
  void dtype(Node& node, DType dtype, const format::Name& description) {
    node.text += join(" ", name_of(dtype, description));
  }
  void ints(Node& node, std::span<const std::int64_t> values) { count_numbers(node, values.size()); }
  void floats(Node& node, std::span<const double> values) { count_numbers(node, values.size()); }

  void array(Node& node, char, const format::ArrayInfo& info) {
    if (node.kind == Kind::kCapnp) {
      node.bytes += info.nbytes;
      return;
    }
    std::string& text = node.text;
    text += join(" ", name_of(info.dtype, info.description), " (");
    for (std::size_t i = 0; i < info.ndim; ++i) text += join(i ? ", " : "", std::to_string(info.shape[i]));
    text += info.ndim == 1 ? ",) " : ") ";
    text += bytes_text(info.nbytes);
    if (info.buffer != format::kNoIndex)
      text += join(info.external() ? ", range " : ", buffer ", std::to_string(info.buffer));
    if (info.flags & format::kFortran) text += ", Fortran order";
    if (info.flags & format::kStrided) text += ", strided";
    if (info.read_only()) text += ", read-only";
  }

 private:
  void count_numbers(Node& node, std::size_t numbers) { node.text += join(" of ", std::to_string(numbers)); }

  void field(Node& node, std::string_view name) {
    const bool is_attribute = node.kind == Kind::kDataclass;
    if (is_attribute && node.number == wanted_) facts_.fields.emplace_back(name);
    label_ = join(quoted(name), ": ");
    step(is_attribute ? join(".", name.substr(0, kShownText)) : join("[", quoted(name, "\""), "]"));
  }

  // Turns the lines of a key, which were written to an empty text, into the label of its value.
  void end_key(Node& node, Kind kind) {
    out_.swap(node.before);
    std::string& line = node.before;
    for (char& c : line) {
      if (c == '\n') c = ' ';
    }
    if (!line.empty()) line.pop_back();
    node.label = join(line, ": ");
    line.clear();
    const bool is_plain = kind == Kind::kInt || kind == Kind::kStr;
    node.step = is_plain ? join("[", last_, "]") : join("[<", shmtree::name_of(kind), ">]");
  }

  void step(const std::string& step) {
    const bool is_short = path_.size() < kLongestPath;
    if (wanted_ != kNoNode || is_short) path_ += step;
    if (wanted_ == kNoNode && is_short && path_.size() >= kLongestPath) path_ += "...";
  }

  void emit(Node& node) {
    if (!std::exchange(node.is_out, true)) add(node.indent, node.text);
  }

  void add(std::size_t indent, const std::string& text) {
    if (muted_ == 0) out_.append(indent, ' ').append(platform::printable(text)).append("\n");
  }

  // Formats the id like the `capnp` tool.
  static std::string schema_id(std::int64_t id) {
    char digits[24];
    std::snprintf(digits, sizeof digits, " @0x%016llx", static_cast<unsigned long long>(id));
    return digits;
  }

  format::FrameReader& in_;
  std::string out_;
  std::size_t muted_ = 0;
  std::size_t wanted_ = kNoNode;
  NodeFacts facts_;         // of the wanted node
  std::size_t indent_ = 0;  // of the next node
  std::string label_;       // of the next node
  std::string path_;
  std::string last_;  // the last integer or text that was read, as a step of a path
};

}  // namespace

Result<std::string> describe_frame(std::span<const std::byte> frame) {
  Result<format::FrameReader> opened = format::FrameReader::open(frame);
  if (!opened.ok()) return opened.error();
  format::FrameReader& reader = *opened;
  format::NodeWalk<Describer> walk(reader, std::nullopt, reader);
  walk.node();
  const Status finished = reader.finish();
  if (!finished.ok()) return finished.error();
  return join("frame of ", bytes_text(reader.total_bytes()), ", ", std::to_string(reader.metadata_bytes()),
              " of them metadata\n", walk.visitor().text());
}

NodeFacts facts_of_node(std::span<const std::byte> frame, std::size_t number) {
  Result<format::FrameReader> opened = format::FrameReader::open(frame);
  if (!opened.ok()) return {};
  format::NodeWalk<Describer> walk(*opened, std::nullopt, *opened, number);
  walk.node();
  return walk.visitor().facts();
}

}  // namespace shmtree::python
