// Files that earlier saves left in a folder, and the choice of those that a new save uses again.
//
// Thread safety: one thread at a time.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "platform/folder.h"
#include "replay/files/manifest.h"
#include "replay/files/snapshot.h"

namespace shmtree::replay {

class KeptFiles {
 public:
  // Adds the files and parts that are kept to the new manifest `next`, which the caller owns.
  explicit KeptFiles(Manifest& next) noexcept : next_(next) {}

  // Finds the rows that are in files already: of this buffer, or of the buffer from which it was loaded. The caller has
  // set the leaves of the new manifest. Sets its save number to that of the last save. Returns kExists if the folder
  // belongs to another buffer.
  Status choose_parts(const platform::Folder& folder, const Store& store, const Snapshot& now);
  // Drops files of which little is still needed, and the smaller half if there are too many. Their rows are written
  // again.
  void choose();

  // Return the number of parts in the old files, and the part with all rows of a chunk, if a kept file has it.
  std::size_t parts() const noexcept { return old_.parts.size(); }
  std::optional<std::uint32_t> part_with(const StateEntry& chunk) const;
  void keep(std::uint32_t part);
  // Keeps the state part with the same bytes, if a kept file has one. Returns true if it does.
  bool keep_state(std::uint64_t first, const std::vector<std::byte>& state);

 private:
  struct Known {
    std::uint64_t rows = 0;
    std::uint32_t part = 0;
  };

  void read_part_entries(std::uint32_t number, const platform::UniqueFd& fd);
  std::uint32_t number_of_kept(std::uint32_t old);

  Manifest& next_;
  Manifest old_;
  std::vector<platform::UniqueFd> old_files_;       // Invalid: the file is not used again.
  std::vector<std::uint64_t> live_;                 // Bytes of each file that are still needed.
  std::unordered_map<std::uint64_t, Known> known_;  // Rows in old files, by ticket.
  std::vector<std::uint32_t> kept_;                 // Number in the new manifest of each old file, + 1.
};

}  // namespace shmtree::replay
