// What the files of a saved buffer say about all of it: read whole, checked, and written whole.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "platform/folder.h"
#include "replay/files/layout.h"
#include "replay/rate_limiter/rate_limiter.h"
#include "replay/rows/store.h"

namespace shmtree::replay {

struct Manifest {
  ManifestHeader header{};
  std::vector<std::uint64_t> leaf_bytes{};
  std::vector<SavedTable> tables{};
  std::vector<SavedFile> files{};
  std::vector<SavedPart> parts{};
  std::vector<std::byte> note{};

  // Code::kNotFound where there is none, kCorrupt with file and numbers for one that was altered or cut off,
  // kIncompatible for one of another version.
  static Result<Manifest> read(const platform::Folder& folder);
  // kCorrupt unless each file that the manifest names is there and has the size that the manifest says.
  Status check_files(const platform::Folder& folder) const;
  // kCorrupt unless the files are large enough for the rows of these places.
  Status check_rows(const platform::Folder& folder, std::span<const StateEntry> places) const;
  // kInvalid if `bytes`, the size of an empty buffer of the saved capacity, is more than 256 MiB plus 16 times the size
  // of the files.
  Status check_overhead(const platform::Folder& folder, std::uint64_t bytes) const;
  // Beside the one that there is, whose place it takes with a rename.
  Status write(const platform::Folder& folder);

  std::uint64_t row_bytes() const noexcept;
  // Of the state of so many places.
  std::uint64_t state_bytes(std::uint64_t places) const noexcept;
  std::uint64_t words_of(const SavedTable& table) const noexcept {  // of each of its leaves
    return table.has_leaves == 0 ? 0u : (table.max_times == 0 ? 1u : 2u);
  }
};

std::string data_name(std::uint64_t number);
// The number of a file of that name; 0 for another's.
std::uint64_t number_of(const std::string& name) noexcept;
inline constexpr const char* kManifestName = "manifest";
inline constexpr const char* kNextManifestName = "manifest.new";

// Of files that were changed by others: which, and how.
Error corrupt(const platform::Folder& folder, const std::string& name, const std::string& what);

// A rate limit, in the header.
void save_limit(const RateLimiter& limit, ManifestHeader& out) noexcept;
// Of a new buffer that has all its rows, and that nobody else has yet. A limit as it was goes on where it stood;
// another one begins in the middle of its range.
void restore_limit(const ManifestHeader& then, const Store& store, RateLimiter& limit) noexcept;

}  // namespace shmtree::replay
