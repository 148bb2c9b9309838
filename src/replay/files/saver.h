// Saves a buffer to files while other processes use it. docs/internals/replay-files.md describes the bytes, and the
// effects of a kill or a full disk.
//
// Invariants:
//   - Files that the manifest names are complete. They are removed only after a manifest that does not name them is on
//     the disk.
//   - Rows are written directly from shared memory. They count if their chunk is still in the window afterwards.
//   - A buffer with rows is never saved as empty. If most rows were overwritten meanwhile, the newer ones are saved.
//   - A save changes nothing in the buffer and takes none of its locks, so it never blocks writers and samplers.
#pragma once

#include <string>

#include "replay/files/progress.h"
#include "replay/sampling/tables.h"

namespace shmtree::replay {

struct SaveReport {
  std::uint64_t save = 0;     // number of the save, from 1 on
  std::uint64_t rows = 0;     // rows in the files that may be sampled
  std::uint64_t written = 0;  // bytes that this save wrote
  std::uint64_t bytes = 0;    // size of all files
};

// Brings the folder up to date, and creates it if necessary. `tables` may be null. Errors:
//   - kUnavailable while another process saves or loads there, or if all rows were overwritten in several passes
//   - kExists if the folder has other files
//   - kOs, with errno, if the file system fails; the previous save stays valid
//   - kInterrupted by `wait`
// `progress` gets the bytes written, and those in total to write. The total grows if rows are overwritten and others
// take their place. If `progress` throws, the previous save stays valid.
Result<SaveReport> save(const Store& store, const Tables* tables, const std::string& path,
                        const platform::WaitContext& wait, const ProgressHook& progress = {});

}  // namespace shmtree::replay
