// What earlier saves left in a folder, and which of it a save uses again.
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
  // `next`: the new manifest, which gets what is kept. Not owned.
  explicit KeptFiles(Manifest& next) noexcept : next_(next) {}

  // Which rows are in files already: of this buffer, or of that which it was loaded from. The new manifest has its
  // leaves by then, and gets the number of the last save. kExists where the folder is another buffer's.
  Status look(const platform::Folder& folder, const Store& store, const Snapshot& now);
  // Files of which little counts any more are not used, nor the smaller half of many: their rows are written again.
  void choose();

  // How many parts the files have, and that with the rows of a place, if a file that is used has all of them.
  std::size_t parts() const noexcept { return old_.parts.size(); }
  std::optional<std::uint32_t> part_with(const StateEntry& place) const;
  void keep(std::uint32_t part);
  // Whether a file that stays has the same, which is kept then.
  bool keep_state(std::uint64_t first, const std::vector<std::byte>& state);

 private:
  struct Known {
    std::uint64_t rows = 0;
    std::uint32_t part = 0;
  };

  void look_at_part(std::uint32_t number, const platform::UniqueFd& fd);
  std::uint32_t number_of_kept(std::uint32_t old);

  Manifest& next_;
  Manifest old_;
  std::vector<platform::UniqueFd> old_files_;       // none: not to be used
  std::vector<std::uint64_t> live_;                 // bytes of each that still count
  std::unordered_map<std::uint64_t, Known> known_;  // rows of tickets that are in old files
  std::vector<std::uint32_t> kept_;                 // number in the new manifest of each old file, + 1
};

}  // namespace shmtree::replay
