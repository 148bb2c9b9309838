#include "replay/saved_limit.h"

#include <algorithm>

namespace shmtree::replay {

void save_limit(const Limit& limit, ManifestHeader& out) noexcept {
  const RateLimit terms = limit.limit();
  out.samples_per_insert = terms.samples_per_insert;
  out.error_buffer = terms.error_buffer;
  out.min_size = terms.min_size;
  out.inserts = limit.inserts();
  out.samples = limit.samples();
}

void restore_limit(const ManifestHeader& then, const Store& store, Limit& limit) noexcept {
  const RateLimit now = limit.limit();
  const bool is_same = then.samples_per_insert == now.samples_per_insert && then.error_buffer == now.error_buffer &&
                       then.min_size == now.min_size;
  if (is_same) return limit.restore(then.inserts, then.samples);
  const std::uint64_t rows = store.size(), over = rows - std::min(rows, now.min_size);
  const double samples = now.samples_per_insert * static_cast<double>(over);
  limit.restore(rows, samples < static_cast<double>(kMostCount) ? static_cast<std::uint64_t>(samples) : kMostCount);
}

}  // namespace shmtree::replay
