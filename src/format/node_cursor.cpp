#include "format/node_cursor.h"

#include <string>
#include <utility>

#include "format/references.h"

namespace shmtree::format {

Error corrupt(std::string reason) {
  return Error{.code = Code::kCorrupt, .message = "The frame is corrupt: " + std::move(reason) + "."};
}

Error no_memory() {
  return Error{.code = Code::kOutOfSharedMemory, .message = "Out of memory while the message was being decoded."};
}

std::uint64_t NodeCursor::next_long_length() noexcept {
  const std::int64_t value = next_int();
  if (value < 0) return fail("a length is negative"), 0;
  return static_cast<std::uint64_t>(value);
}

std::uint64_t NodeCursor::add_name(std::uint64_t bytes) noexcept {
  if (bytes > kMaxNameBytes) return fail("a name is longer than 4096 bytes"), 0;
  const std::string_view text = next_text(bytes);
  if (failed()) return 0;
  try {
    names_->push_back(text);
  } catch (...) {
    return fail_for_memory(), 0;
  }
  return names_->size();
}

DType NodeCursor::next_dtype(Name& description) noexcept {
  const std::uint64_t code = next_length();
  if (code > kMaxDType) return fail("an element type is unknown"), DType::kOther;
  const auto dtype = static_cast<DType>(code);
  if (dtype == DType::kOther) description = next_name();
  return dtype;
}

void NodeCursor::fail(const char* reason) noexcept {
  if (reason_ != nullptr) return;
  reason_ = reason;
  failed_at_ = static_cast<std::size_t>(columns_.kinds.at - kinds_begin_);
  failed_kind_ = failed_at_ == 0 ? std::uint8_t{0} : columns_.kinds.at[-1];
  columns_.visit([](auto&... column) { ((column.at = column.end), ...); });
}

void NodeCursor::fail_kind(Kind kind) noexcept {
  fail("a node has a kind that is unknown or not expected here");
  failed_kind_ = static_cast<std::uint8_t>(kind);
}

void NodeCursor::fail_for_memory() noexcept {
  no_memory_ = reason_ == nullptr;
  fail("no memory is left for its names");
}

bool NodeCursor::enter_deeper() noexcept {
  if (depth_.enter()) return true;
  no_stack_ = reason_ == nullptr && depth_.why() == Depth::Why::kNoStack;
  fail("it is nested too deep");
  return false;
}

Error NodeCursor::error() const {
  if (no_stack_) {
    return Error{.code = Code::kOutOfSharedMemory,
                 .message = "The message has more than " + std::to_string(depth_.level()) +
                            " nested levels, too many for the stack of this thread."};
  }
  if (no_memory_) return no_memory();
  const std::string reason = reason_ == nullptr ? "nothing is wrong with it" : reason_;
  return corrupt(reason + " (after node " + std::to_string(failed_at_) + " of " + std::to_string(nodes()) +
                 ", of kind " + std::to_string(failed_kind_) + " " +
                 std::string(name_of(unmarked(static_cast<Kind>(failed_kind_)))) + ")");
}

Status NodeCursor::finish() {
  columns_.visit([this](auto&... column) {
    if (!(column.is_over() && ...)) fail("values are left over after the last node");
  });
  if (reason_ != nullptr) return error();
  return success();
}

}  // namespace shmtree::format
