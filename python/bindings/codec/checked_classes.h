// Classes that were checked for one message, so that a class with many instances is checked once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/flat_table.h"

namespace shmtree::python {

struct ClassInfo;

// The classes that were checked for this message. The description of a checked class is up to date. In an encoder, the
// name of the class was also found to lead to the class. Each message checks again, since the program may replace or
// change classes between messages.
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
  static constexpr std::size_t kEntries = 32;
  static std::size_t slot_of(const ClassInfo* info) noexcept { return platform::slot_of_address<kEntries>(info); }

  std::uint64_t message_ = 1;
  Entry entries_[kEntries];
};

}  // namespace shmtree::python
