#include "replay/sampling/leaves.h"

#include <algorithm>
#include <utility>

#include "platform/dcheck.h"

namespace shmtree::replay {

using namespace platform;

LeafWatch::LeafWatch(Leaves leaves)
    : leaves_(leaves), groups_(leaves.groups().size()), uppers_(leaves.uppers().size()) {
  lines_.reserve(1024);
}

void LeafWatch::begin() noexcept {
  const auto seen = [](const auto& counters, std::vector<std::uint32_t>& out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_acquire(counters[i]);
  };
  seen(leaves_.uppers(), uppers_);  // read before the groups that they count
  seen(leaves_.groups(), groups_);
  lines_.clear();
  is_complete_ = true;
}

void LeafWatch::changed(std::uint64_t slot) noexcept {
  SHMTREE_DCHECK(slot < leaves_.slots());
  const std::uint64_t group = slot / kGroupLeaves, upper = group / kGroupLeaves;
  if (const std::uint32_t before = add(leaves_.groups()[group], 1u); before == groups_[group]) ++groups_[group];
  if (const std::uint32_t before = add(leaves_.uppers()[upper], 1u); before == uppers_[upper]) ++uppers_[upper];
  mark_stale(slot / kLineLeaves);
}

void LeafWatch::mark_stale(std::uint64_t line) noexcept {
  SHMTREE_DCHECK(line < leaves_.lines());
  if (lines_.size() < lines_.capacity()) lines_.push_back(static_cast<std::uint32_t>(line));
}

void LeafWatch::collect_groups(std::uint64_t upper) {
  const std::uint64_t end = std::min<std::uint64_t>((upper + 1) * kGroupLeaves, groups_.size());
  for (std::uint64_t group = upper * kGroupLeaves; group < end; ++group) {
    const std::uint32_t now = load_acquire(leaves_.groups()[group]);
    if (now == groups_[group]) continue;
    groups_[group] = now;
    const std::uint64_t last = std::min((group + 1) * kGroupLeaves / kLineLeaves, leaves_.lines());
    for (std::uint64_t line = group * kGroupLeaves / kLineLeaves; line < last; ++line) {
      prefetch(&leaves_.word(line * kLineLeaves), 64);
      lines_.push_back(static_cast<std::uint32_t>(line));
    }
  }
}

bool LeafWatch::collect() {
  if (!std::exchange(is_complete_, false)) return begin(), false;
  const auto uppers = leaves_.uppers();
  changed_uppers_.clear();
  for (std::size_t upper = 0; upper < uppers_.size(); ++upper) {
    const std::uint32_t now = load_acquire(uppers[upper]);
    if (now == uppers_[upper]) continue;
    uppers_[upper] = now;
    prefetch(&leaves_.groups()[upper * kGroupLeaves], kGroupLeaves * sizeof(now));
    prefetch(&groups_[upper * kGroupLeaves], kGroupLeaves * sizeof(now));
    changed_uppers_.push_back(static_cast<std::uint32_t>(upper));
  }
  for (const std::uint64_t upper : changed_uppers_) collect_groups(upper);
  is_complete_ = true;
  if (lines_.size() < leaves_.lines() / 4) return true;
  begin();
  return false;
}

}  // namespace shmtree::replay
