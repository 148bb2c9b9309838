// Which classes one walk has checked, so that it checks a class with many instances once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmtree::python {

struct ClassInfo;

// Remembers the classes that were checked for this message: the description is of the class as it is now and, in an
// encoder, the name leads to the class. Every message checks again, since the program may replace and change classes in
// between.
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
