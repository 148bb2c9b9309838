// Objects of one message that may occur again, and where each occurred first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "platform/flat_table.h"

namespace shmtree::python {

// Keyed by address, so the caller must keep each noted object alive. Allocates nothing before the first object and is
// cheap to clear, since most messages note few objects or none.
class SeenObjects {
 public:
  struct Seen {
    const void* object;
    std::size_t position;  // position of its kind in the frame
    bool is_open;          // true while its items are being encoded
  };

  // Returns the object's number, and true if it is new. A new object is open. Numbers are given in order. Throws
  // std::bad_alloc.
  [[gnu::noinline]] std::pair<std::size_t, bool> note(const void* object, std::size_t position) {
    if (seen_.size() >= kFew) return note_hashed(object, position);
    for (std::size_t number = 0; number < seen_.size(); ++number) {
      if (seen_[number].object == object) return {number, false};
    }
    seen_.push_back({object, position, true});
    return {seen_.size() - 1, true};
  }
  const Seen& operator[](std::size_t number) const noexcept { return seen_[number]; }
  void close(std::size_t number) noexcept { seen_[number].is_open = false; }
  std::size_t size() const noexcept { return seen_.size(); }

  void clear() {
    if (numbers_.slots() > kMaxIdleSlots) seen_ = {};
    numbers_.clear_to(kMaxIdleSlots);
    seen_.clear();
  }

 private:
  static constexpr std::size_t kMaxIdleSlots = 1024;
  static constexpr std::size_t kFew = 8;  // so few objects are compared one by one

  std::pair<std::size_t, bool> note_hashed(const void* object, std::size_t position) {
    const auto hash_of = [this](std::uint32_t number) { return hash(seen_[number - 1].object); };
    const auto slot_of = [this](const void* wanted) -> std::uint32_t& {
      return numbers_.slot(hash(wanted), [&](std::uint32_t number) { return seen_[number - 1].object == wanted; });
    };
    if (!numbers_.make_space_for(seen_.size() + 1, hash_of)) throw std::bad_alloc();
    while (numbers_.size() < seen_.size()) {  // the first few
      const auto number = static_cast<std::uint32_t>(numbers_.size() + 1);
      numbers_.insert(slot_of(seen_[number - 1].object), number);
    }
    std::uint32_t& number = slot_of(object);
    if (number != 0) return {number - 1, false};
    seen_.push_back({object, position, true});
    numbers_.insert(number, static_cast<std::uint32_t>(seen_.size()));
    return {seen_.size() - 1, true};
  }

  static std::uint64_t hash(const void* object) noexcept {
    return platform::mixed(reinterpret_cast<std::uintptr_t>(object) >> 4) >> 20;
  }

  std::vector<Seen> seen_;
  // Numbers of the objects plus 1, by the hash of the address. Empty for a few objects.
  platform::FlatTable<std::uint32_t> numbers_;
};

}  // namespace shmtree::python
