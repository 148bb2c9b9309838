// Tracks which bytes of a block messages take without a copy.
//
// Invariants: each byte is given away at most once. While a message is being put, it has a promise for the bytes that
// it refers to. settle() gives these bytes away, and withdraw() makes them available again. In between, other messages
// copy the bytes. Bytes that no process can write any more are only shown, any number of times.
//
// Thread safety: none. The owner of the block guards it.
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

// Selects what a message may take without a copy.
enum class Lending {
  kGifts,  // For put() of a queue: whole arrays that were allocated as gifts.
  // For put() of a sender: whole arrays that were allocated to be put, and arrays that no process can write any more.
  kOwn,
  kMove,  // For objects that their owner moves: anything in the arena.
};

// An array, or a part of one, in a block of the message's arena.
struct Lendable {
  bool received = false;  // True: the array was received with a message. False: it was allocated by this process.
  bool gift = false;      // The array was allocated to be put.
  bool whole = false;     // The bytes are the whole allocated array.
  bool writable = false;  // The owner can write to it: sending gives it away. False: shows it.
  bool frozen = false;    // No view in this process can write to the array.
  bool shown = false;     // The owner has shared the array with any number of readers (show()).
};

// Returns true if the array may be sent without a copy. Claims decide if that is still possible.
constexpr bool is_lent(Lending lending, const Lendable& what) noexcept {
  if (what.shown) return true;
  if (lending == Lending::kGifts && !(what.gift && what.whole && what.writable)) return false;
  if (!what.writable) return what.frozen || (what.received && lending == Lending::kMove);
  return lending == Lending::kMove || (!what.received && what.whole);
}

class Claims {
 public:
  // False in a forked child, which inherits the memory: only the parent may give it away.
  bool are_ours() const noexcept { return process_ == platform::process_id(); }
  // Returns true if `message` may give these bytes away (`to_give`), or show them.
  bool are_free(ByteRange range, const void* message, bool to_give) const noexcept {
    const auto taken = [&](const ByteRange& given) { return range.overlaps(given); };
    const auto promised = [&](const Promise& other) {
      return other.message != message && (to_give || other.to_give) && range.overlaps(other.range);
    };
    return std::none_of(given_.begin(), given_.end(), taken) &&
           std::none_of(promised_.begin(), promised_.end(), promised);
  }
  // Returns true if some of the bytes were given away, or are promised to another message that gives them away.
  bool are_given(const void* message) const noexcept {
    return !given_.empty() || std::any_of(promised_.begin(), promised_.end(), [message](const Promise& other) {
      return other.message != message && other.to_give;
    });
  }
  // Promises the bytes to `message` until settle() or withdraw(). Throws std::bad_alloc, without a promise.
  void promise(ByteRange range, const void* message, bool to_give) {
    make_space(given_, given_.size() + promised_.size() + 1);  // Reserved in advance, so that settle() cannot fail.
    make_space(promised_, promised_.size() + 1);
    promised_.push_back(Promise{range, message, to_give});
  }
  // Call this after the message was put.
  void settle(const void* message) noexcept {
    for (const Promise& each : promised_) {
      if (each.message == message && each.to_give) given_.push_back(each.range);
    }
    withdraw(message);
  }
  // Call this if the message was not put.
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
  static void make_space(std::vector<T>& items, std::size_t count) {
    if (items.capacity() < count) items.reserve(std::max(count, 2 * items.capacity()));
  }

  int process_ = platform::process_id();
  std::vector<ByteRange> given_{};
  std::vector<Promise> promised_{};
};

}  // namespace shmtree::endpoint
