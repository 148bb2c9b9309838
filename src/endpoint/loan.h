// Which bytes of a block, made to be put, messages have of it without a copy.
//
// What holds: each byte is given once. A message that is on its way is promised the bytes that it refers to. When it
// was put they are given; when it was not they are free again. Meanwhile other messages copy them. What is only shown,
// since nobody can write it any more, may be shown any number of times.
//
// Thread safety: none; whoever has the block guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "platform/machine.h"

namespace shmtree::endpoint {

struct ByteRange {
  std::size_t begin, end;
  bool overlaps(const ByteRange& other) const noexcept { return begin < other.end && other.begin < end; }
};

// What a message takes without a copy.
enum class Lending {
  kGifts,  // whole arrays that were made as gifts: a queue's put()
  kOwn,    // whole arrays that were made to be put, and what nobody can write any more: a sender's
  kMove,   // whatever lies in the arena: what its owner moves
};

// An array, or a part of one, in a block of the message's arena.
struct Lendable {
  bool received = false;  // with a message; else it was made here
  bool gift = false;      // made to be put
  bool whole = false;     // all of what was made
  bool writable = false;  // here, by whoever has it: it would be given away, and is only shown otherwise
  bool frozen = false;    // nobody here can write it, by whatever other view
  bool shown = false;     // its owner said that it goes to any number of readers as it is
};

// Whether it goes without a copy, as far as its owner is concerned: Claims say whether it still can.
constexpr bool is_lent(Lending lending, const Lendable& what) noexcept {
  if (what.shown) return true;
  if (lending == Lending::kGifts && !(what.gift && what.whole && what.writable)) return false;
  if (!what.writable) return what.frozen || (what.received && lending == Lending::kMove);
  return lending == Lending::kMove || (!what.received && what.whole);
}

class Claims {
 public:
  // Not in a forked child, which has the memory as well: what it would give, its parent gives.
  bool are_ours() const noexcept { return process_ == platform::process_id(); }
  // Whether `message` may have these bytes, `to_give` them away or to show them.
  bool are_free(ByteRange range, const void* message, bool to_give) const noexcept {
    const auto taken = [&](const ByteRange& given) { return range.overlaps(given); };
    const auto promised = [&](const Promise& other) {
      return other.message != message && (to_give || other.to_give) && range.overlaps(other.range);
    };
    return std::none_of(given_.begin(), given_.end(), taken) &&
           std::none_of(promised_.begin(), promised_.end(), promised);
  }
  // Whether any of it was given, or is going to be by another message.
  bool are_given(const void* message) const noexcept {
    return !given_.empty() || std::any_of(promised_.begin(), promised_.end(), [message](const Promise& other) {
      return other.message != message && other.to_give;
    });
  }
  // Until settle() or withdraw(). Nothing is promised when there is no memory for it.
  void promise(ByteRange range, const void* message, bool to_give) {
    make_room(given_, given_.size() + promised_.size() + 1);  // settle() may not fail
    make_room(promised_, promised_.size() + 1);
    promised_.push_back(Promise{range, message, to_give});
  }
  // The message was put.
  void settle(const void* message) noexcept {
    for (const Promise& each : promised_) {
      if (each.message == message && each.to_give) given_.push_back(each.range);
    }
    withdraw(message);
  }
  // It was not.
  void withdraw(const void* message) noexcept {
    std::erase_if(promised_, [message](const Promise& each) { return each.message == message; });
  }

 private:
  struct Promise {
    ByteRange range;
    const void* message;
    bool to_give;
  };
  template <class T>
  static void make_room(std::vector<T>& items, std::size_t count) {
    if (items.capacity() < count) items.reserve(std::max(count, 2 * items.capacity()));
  }

  int process_ = platform::process_id();
  std::vector<ByteRange> given_{};
  std::vector<Promise> promised_{};
};

}  // namespace shmtree::endpoint
