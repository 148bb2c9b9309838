#include "format/array_source.h"

#include <bit>
#include <cstring>

#include "platform/dcheck.h"
#include "platform/flat_table.h"

namespace shmtree::format {

std::uint64_t SourceTable::hash(const SourceRange& range) noexcept {
  return std::rotr(platform::mixed(std::bit_cast<std::uintptr_t>(range.begin) + range.bytes),
                   44);  // the highest bits are mixed best, so they select the bucket
}

std::uint32_t SourceTable::intern(const SourceRange& wanted) noexcept {
  any_shares_ |= wanted.may_share;
  has_no_memory_ |= !numbers_.make_space(hash_of());
  if (has_no_memory_ || ranges_.failed() || geometries_.failed()) [[unlikely]]
    return 0;
  std::uint32_t& number = numbers_.slot(hash(wanted), [&](std::uint32_t stored) {
    const SourceRange& range = ranges_[stored - 1];
    return range.begin == wanted.begin && range.bytes == wanted.bytes && same_geometry(range, wanted);
  });
  if (number != 0) {
    SourceRange& stored = ranges_[number - 1];
    stored.may_share |= wanted.may_share;
    stored.unshared &= wanted.unshared;
    stored.whole_words |= wanted.whole_words;
    return number - 1;
  }
  SHMTREE_DCHECK(wanted.bytes != 0 && wanted.item_bytes != 0);
  const auto added = static_cast<std::uint32_t>(ranges_.size());
  ranges_.push(wanted);
  if (ranges_.size() > added) numbers_.insert(number, added + 1);
  return added;
}

bool SourceTable::same_geometry(const SourceRange& a, const SourceRange& b) const noexcept {
  if (a.geometry == kNoIndex || b.geometry == kNoIndex) return a.geometry == b.geometry;
  return a.ndim == b.ndim && a.item_bytes == b.item_bytes && a.first == b.first &&
         std::memcmp(geometry(a.geometry), geometry(b.geometry), 2 * std::size_t{a.ndim} * sizeof(std::int64_t)) == 0;
}

void SourceTable::rewind(const Mark& mark) noexcept {
  SHMTREE_DCHECK(mark.ranges <= ranges_.size() && mark.geometries <= geometries_.size());
  geometries_.truncate(mark.geometries);
  // Removes the newest ranges first, so that each entry is still in its bucket when it is looked up.
  while (ranges_.size() > mark.ranges) {
    const auto number = static_cast<std::uint32_t>(ranges_.size());
    std::uint32_t* found =
        numbers_.find(hash(ranges_[number - 1]), [number](std::uint32_t stored) { return stored == number; });
    if (found != nullptr) numbers_.erase(found, hash_of());
    ranges_.truncate(number - 1);
  }
}

}  // namespace shmtree::format
