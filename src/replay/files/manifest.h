// The manifest of a saved buffer, which describes the buffer and names its files. It is read, checked and written as a
// whole.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "platform/folder.h"
#include "replay/files/layout.h"
#include "replay/rate_limiter/rate_limiter.h"
#include "replay/rows/row_store.h"

namespace shmtree::replay {

struct Manifest {
  ManifestHeader header{};
  std::vector<std::uint64_t> leaf_bytes{};
  std::vector<SavedTable> tables{};
  std::vector<SavedFile> files{};
  std::vector<SavedPart> parts{};
  std::vector<std::byte> note{};

  // Reads the manifest. Returns Code::kNotFound if there is none; kCorrupt, with file and numbers, if it was altered or
  // truncated; kIncompatible for another version.
  static Result<Manifest> read(const platform::Folder& folder);
  // Returns kCorrupt unless each file that the manifest names exists and has the size that the manifest states.
  Status check_files(const platform::Folder& folder) const;
  // Returns kCorrupt unless the files are large enough for the rows of these chunks.
  Status check_rows(const platform::Folder& folder, std::span<const StateEntry> chunks) const;
  // Returns kInvalid if `bytes`, the size of an empty buffer of the saved capacity, is more than 256 MiB plus 16 times
  // the size of the files.
  Status check_overhead(const platform::Folder& folder, std::uint64_t bytes) const;
  // Writes and syncs the manifest as kNextManifestName. The caller replaces the old one by a rename.
  Status write(const platform::Folder& folder);

  // Returns the size of all files, with the header of the manifest.
  std::uint64_t files_bytes() const noexcept;
  std::uint64_t row_bytes() const noexcept;
  // Returns the bytes of a state part of `chunks` chunks.
  std::uint64_t state_bytes(std::uint64_t chunks) const noexcept;
  std::uint64_t words_of(const SavedTable& table) const noexcept {  // 4-byte words per leaf
    return table.has_leaves == 0 ? 0u : (table.max_times == 0 ? 1u : 2u);
  }
};

std::string data_name(std::uint64_t number);
// Returns the number in a data file's name; 0 if it is no such name.
std::uint64_t number_of(const std::string& name) noexcept;
inline constexpr const char* kManifestName = "manifest";
inline constexpr const char* kNextManifestName = "manifest.new";

// Returns kCorrupt with the file's path and `what`.
Error corrupt(const platform::Folder& folder, const std::string& name, const std::string& what);

// Stores a rate limit and its counts in the header.
void save_limit(const RateLimiter& limit, ManifestHeader& out) noexcept;
// Sets the counts of the limiter of a new buffer. Requires that all rows are loaded and no other process is attached. A
// limit with the same options continues with the saved counts; another one begins in the middle of its range.
void restore_limit(const ManifestHeader& then, const Store& store, RateLimiter& limit) noexcept;

}  // namespace shmtree::replay
