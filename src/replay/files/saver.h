// A buffer into files, while others go on with it: docs/replay-files.md has the bytes, and why a kill or a full disk
// does no harm.
//
// Invariants:
//   - Files that the manifest names are whole, and stay until a manifest that does not name them is there for good.
//   - A row is written from where it lies: what was written counts once the place is found in the window afterwards.
//   - A buffer that has rows is not saved without any: where most were overwritten meanwhile, those that came are.
//   - Whoever adds or samples meanwhile waits for nothing: nothing of the buffer is changed, and no lock of it taken.
#pragma once

#include <string>

#include "replay/sampling/tables.h"

namespace shmtree::replay {

struct SaveReport {
  std::uint64_t save = 0;     // its number, from 1 on
  std::uint64_t rows = 0;     // that are in the files and may be sampled
  std::uint64_t written = 0;  // bytes
  std::uint64_t bytes = 0;    // of all files
};

// Brings the folder up to date; makes it where there is none. `tables`: null where there are none. kUnavailable while
// somebody else saves or loads there, and when all rows were overwritten in each of several passes; kExists for a
// folder of other files, kOs with errno for the disk's refusals (nothing that was there is lost), kInterrupted by
// `wait`.
Result<SaveReport> save(const Store& store, const Tables* tables, const std::string& path,
                        const platform::WaitContext& wait);

}  // namespace shmtree::replay
