// The objects of one message that may be met again, and where they were met first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shmtree::python {

// By address, so whoever notes an object keeps it. Empty until the first one and cheap to clear, since most messages
// note nothing or little.
class MetObjects {
 public:
  struct Met {
    const void* object;
    std::size_t position;  // of its kind in the frame
    bool is_open;          // its items are being encoded
  };

  // The number of the object; objects are numbered as they are noted. True when it was not there before: it is open
  // then.
  [[gnu::noinline]] std::pair<std::size_t, bool> note(const void* object, std::size_t position) {
    if (2 * (met_.size() + 1) > slots_.size()) grow();
    std::uint32_t& slot = slots_[slot_of(object)];
    if (slot != 0) return {slot - 1, false};
    met_.push_back({object, position, true});
    slot = static_cast<std::uint32_t>(met_.size());
    return {met_.size() - 1, true};
  }
  const Met& operator[](std::size_t number) const noexcept { return met_[number]; }
  void close(std::size_t number) noexcept { met_[number].is_open = false; }
  std::size_t size() const noexcept { return met_.size(); }

  void clear() {
    if (met_.empty()) return;
    if (slots_.size() > kKeptSlots) {
      slots_ = {};
      met_ = {};
    }
    slots_.assign(slots_.size(), 0);
    met_.clear();
  }

 private:
  static constexpr std::size_t kKeptSlots = 1024;

  // Where it is, or may be put: open addressing.
  std::size_t slot_of(const void* object) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = (reinterpret_cast<std::uintptr_t>(object) >> 4) * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (slots_[i] != 0 && met_[slots_[i] - 1].object != object) i = (i + 1) & mask;
    return i;
  }

  void grow() {
    slots_.assign(slots_.empty() ? 32 : 2 * slots_.size(), 0);
    for (std::size_t i = 0; i < met_.size(); ++i) slots_[slot_of(met_[i].object)] = static_cast<std::uint32_t>(i + 1);
  }

  std::vector<Met> met_;
  std::vector<std::uint32_t> slots_;  // number + 1, 0 for free
};

}  // namespace shmtree::python
