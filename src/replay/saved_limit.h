// A rate limit in the files of a buffer.
#pragma once

#include "replay/limit.h"
#include "replay/saved_layout.h"
#include "replay/store.h"

namespace shmtree::replay {

void save_limit(const Limit& limit, ManifestHeader& out) noexcept;
// Of a new buffer that has all its rows, and that nobody else has yet. A limit as it was goes on where it stood;
// another one begins in the middle of its range.
void restore_limit(const ManifestHeader& then, const Store& store, Limit& limit) noexcept;

}  // namespace shmtree::replay
