#include "format/checked_frame.h"

#include <exception>
#include <utility>

#include "format/grammar.h"
#include "format/references.h"

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

  void follow(const char* rule, Kind kind) {
    for (; *rule != 0 && !in_.failed(); ++rule) {
      switch (*rule) {
        case 'I': in_.next_int(); break;
        case 'L': in_.next_length(); break;
        case 'F': in_.next_float(); break;
        case 'N': name(kind); break;
        case 'S':
        case 'B': in_.next_string(); break;
        case 'U': in_.next_text(16); break;
        case 'A': array(kind); break;
        case 'V': child(kind == Kind::kDefaultDict); break;
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
          if ((in_.next_length() & 2) != 0) child();
          break;
        case 'Y':
          if (in_.next_length() != 0) in_.next_string();
          break;
        case '*': return repeat(rule + 1);
      }
    }
  }

  void repeat(const char* rule) {
    if (*rule == 'I') return static_cast<void>(in_.next_ints());
    if (*rule == 'F') return static_cast<void>(in_.next_floats());
    const bool pairs = rule[0] == 'V' && rule[1] == 'V', named = *rule == 'N';
    const std::uint64_t count = in_.next_count(pairs ? 2 : 1);
    if (!named) return children(pairs ? 2 * count : count);
    for (std::uint64_t i = 0; i < count && !in_.failed(); ++i) {
      in_.next_name();
      child();
    }
  }

  void name(Kind kind) {
    const Name name = in_.next_name();
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
    if (kind != Kind::kArray && kind != Kind::kTensor) return static_cast<void>(in_.next_blob());
    ArrayInfo info;
    if (!in_.next_array(info) || !info.external()) return;
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
