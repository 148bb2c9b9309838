#include "format/array_source.h"

#include <bit>
#include <cstring>

namespace shmtree::format {

namespace {

std::size_t hash_range(const std::byte* begin, std::uint64_t bytes) noexcept {
  // The highest bits are the best ones: they come first.
  return std::rotr((std::bit_cast<std::uintptr_t>(begin) + bytes) * 0x9e3779b97f4a7c15, 44);
}

}  // namespace

std::uint32_t SourceTable::intern(const SourceRange& wanted) noexcept {
  const std::size_t count = ranges_.size();
  if (2 * (count + 1) > index_.size()) rebuild_index(count < 16 ? kFirstSlots : 4 * count);
  const std::size_t mask = index_.size() - 1;
  any_shares_ |= wanted.may_share;
  if (index_.empty() || ranges_.failed() || geometries_.failed()) [[unlikely]]
    return 0;
  std::size_t slot = hash_range(wanted.begin, wanted.bytes) & mask;
  for (; index_[slot] != 0; slot = (slot + 1) & mask) {
    SourceRange& known = ranges_[index_[slot] - 1];
    if (known.begin == wanted.begin && known.bytes == wanted.bytes && same_geometry(known, wanted)) {
      known.may_share |= wanted.may_share;
      known.unshared &= wanted.unshared;
      known.whole_words |= wanted.whole_words;
      return index_[slot] - 1;
    }
  }
  ranges_.push(wanted);
  if (ranges_.size() > count) index_[slot] = static_cast<std::uint32_t>(count + 1);
  return static_cast<std::uint32_t>(count);
}

bool SourceTable::same_geometry(const SourceRange& a, const SourceRange& b) const noexcept {
  if (a.geometry == kNoIndex || b.geometry == kNoIndex) return a.geometry == b.geometry;
  return a.ndim == b.ndim && a.item_bytes == b.item_bytes && a.first == b.first &&
         std::memcmp(geometry(a.geometry), geometry(b.geometry), 2 * std::size_t{a.ndim} * sizeof(std::int64_t)) == 0;
}

void SourceTable::rewind(const Mark& mark) noexcept {
  geometries_.truncate(mark.geometries);
  if (ranges_.size() == mark.ranges) return;
  ranges_.truncate(mark.ranges);
  rebuild_index(index_.size());
}

// Empty when memory ran out, which failed() reports.
void SourceTable::rebuild_index(std::size_t slots) noexcept {
  slots = std::bit_ceil(slots);
  if (index_.size() != slots) {
    index_.clear();
    if (index_.extend(slots) == nullptr) return;
  }
  std::memset(index_.data(), 0, index_.bytes());
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    std::size_t slot = hash_range(ranges_[i].begin, ranges_[i].bytes) & (slots - 1);
    while (index_[slot] != 0) slot = (slot + 1) & (slots - 1);
    index_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace shmtree::format
