// Finds the Items that were moved into a value, and makes the errors of forwarding.
#include "value/forward.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/checked_frame.h"

namespace shmtree::value {

namespace {

const Tree* message_of(const Item* item) noexcept {
  return Tree::of(*item).get();
}

}  // namespace

// Copies of a Value share the Items that were moved into it.
void MovedItems::find(const Value& value) {
  std::vector<const Value*> left{&value};
  while (!left.empty()) {
    const Value::Variant& held = left.back()->variant();
    left.pop_back();
    const auto go_into = [&](const std::vector<Value>& items) {
      for (const Value& item : items) left.push_back(&item);
    };
    if (const auto* forward = std::get_if<Forward>(&held); forward != nullptr && forward->moved) {
      items_.push_back(forward->item.get());
    } else if (const auto* list = std::get_if<List>(&held)) {
      go_into(list->items());
    } else if (const auto* tuple = std::get_if<Tuple>(&held)) {
      go_into(tuple->items());
    } else if (const auto* dict = std::get_if<Dict>(&held)) {
      for (const Entry& entry : dict->entries()) left.push_back(&entry.value);
    }
  }
  std::sort(items_.begin(), items_.end(),
            [](const Item* a, const Item* b) { return std::pair(message_of(a), a) < std::pair(message_of(b), b); });
  items_.erase(std::unique(items_.begin(), items_.end()), items_.end());
}

long MovedItems::count_of(const Tree& tree) const noexcept {
  const auto before = [](const Item* item, const Tree* message) { return message_of(item) < message; };
  const auto begin = std::lower_bound(items_.begin(), items_.end(), &tree, before);
  const auto end = std::find_if(begin, items_.end(), [&](const Item* item) { return message_of(item) != &tree; });
  return end - begin;
}

bool has_other_items(const Forward& forward) noexcept {
  const std::shared_ptr<const Tree>& tree = Tree::of(*forward.item);
  return forward.moved && tree != nullptr && tree->home != nullptr && tree.use_count() > 1;
}

Origin origin_of(const Forward& forward, const std::shared_ptr<const Tree>& tree, const MovedItems* moved) {
  Origin origin{.home = tree->home};
  if (origin.home == nullptr) return origin;
  origin.to_give = forward.moved && tree.use_count() == (moved == nullptr ? 1 : moved->count_of(*tree));
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto& arrays = tree->arrays;
  origin.to_show = std::all_of(arrays.begin(), arrays.end(), [](const Array& array) { return array.read_only; });
  return origin;
}

bool is_local(const Tree& tree, const Node& node) noexcept {
  return node.kind == Kind::kPickle || node.kind == Kind::kLongPickle ||
         (node.kind == Kind::kRegistered && format::is_handle(tree.texts[node.text]));
}

Error refused(const std::shared_ptr<const Tree>& message, std::uint32_t index) {
  const std::string way = Tree::item(message, index).way();
  std::string text("The message to forward contains ");
  text.append(name_of(message->at(index).kind)).append(", and this end refuses pickles (allow_pickle is false).");
  return Error{.code = Code::kPickleRefused,
               .message = way.empty() ? text : std::string(way).append(": ").append(text)};
}

Error not_portable(const std::shared_ptr<const Tree>& message, std::uint32_t index) {
  const Node& node = message->at(index);
  const std::string way = Tree::item(message, index).way();
  std::string text(way.empty() ? "" : way + ": ");
  text.append("a ").append(node.kind == Kind::kRegistered ? message->texts[node.text] : name_of(node.kind));
  text.append(" is, or may be, valid on this machine only, but this channel is portable.");
  return Error{.code = Code::kInvalid, .message = std::move(text)};
}

Error given_away() {
  return {.code = Code::kInvalid,
          .message = "An Item that was moved into this value is no longer available: another put gives it away."};
}

Error too_deep_error(const format::FrameBuilder& builder) {
  return {.code = Code::kInvalid,
          .message = builder.has_no_stack()
                         ? "A value to send is nested too deep for the stack of this thread."
                         : "A value to send is nested deeper than " + std::to_string(kMaxDepth) + "."};
}

}  // namespace shmtree::value
