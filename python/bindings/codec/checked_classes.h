// The classes that were checked for one message, so that a class with many instances is checked once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmtree::python {

struct ClassInfo;

// Remembers the classes that were checked for this message. The description of a checked class is up to date and, in an
// encoder, its name leads to the class. Each message checks again, since the program may replace or change classes
// between messages.
class CheckedClasses {
 public:
  bool knows(const ClassInfo* info) const noexcept {
    const Entry& entry = entries_[slot_of(info)];
    return entry.info == info && entry.message == message_;
  }
  void enter(const ClassInfo* info) noexcept { entries_[slot_of(info)] = {info, message_}; }
  void clear() noexcept { ++message_; }

 private:
  struct Entry {
    const ClassInfo* info = nullptr;
    std::uint64_t message = 0;
  };
  static std::size_t slot_of(const ClassInfo* info) noexcept {
    return (reinterpret_cast<std::uintptr_t>(info) >> 4) * 0x9e3779b97f4a7c15u >> 59;
  }
  std::uint64_t message_ = 1;
  Entry entries_[32];
};

}  // namespace shmtree::python
