// The file of a name: its layout, its location, and the check if a living process holds the name.
//
//   offset 0   8   magic "smtname2"
//          8  16   uuid of the arena
//         24   8   block of the channel or array, 0 for an arena
//         32   4   kind of the object (NamedKind)
//         36   4   bytes of the note
//         40 472   the note
//        512  16   per entry: pid (4), descriptor of the arena there (4), transfer (8); pid 0 for a free entry
//
// An entry without a transfer belongs to a process that holds the name. An entry with a transfer stands for an object
// in transit to a process that will hold the name. The pid of such an entry is that of the giver, which keeps the arena
// alive until the receiver clears the entry.
//
// The file appears complete. All later changes are made under the lock of its first byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "discovery/name_folders.h"

namespace shmtree::discovery {

constexpr char kNameMagic[8] = {'s', 'm', 't', 'n', 'a', 'm', 'e', '2'};
constexpr std::int64_t kNameLockTimeoutNs = 5'000'000'000;

// Returns the name of the file: "robot%2Flidar" for "robot/lidar", with "%25" for '%'. So the files of a folder are
// never in folders of their own, and different names have different files.
std::string file_of_name(std::string_view name);
// Returns the name that a file name stands for. If file_of_name() never returns the text, the result has another file
// name, so a caller compares both.
std::string name_of_file(std::string_view file_name);

struct NameHeader {
  char magic[8];
  unsigned char uuid[16];
  std::uint64_t block;
  std::uint32_t kind;
  std::uint32_t note_bytes;
  char note[472];
};
static_assert(sizeof(NameHeader) == 512);
struct NameEntry {
  std::int32_t pid;
  std::int32_t fd;
  std::uint64_t transfer;

  bool is_in_transit() const noexcept { return pid > 0 && transfer != 0; }
};
static_assert(sizeof(NameEntry) == 16);

struct NameRecord {
  NameHeader header{};
  std::vector<NameEntry> entries{};

  // True if a living process has a part, according to has(PartKind): either for itself, or for an object that an entry
  // lists as in transit.
  template <class Has>
  bool is_kept(Has has) const noexcept {
    return has(platform::PartKind::kOwn) ||
           (std::ranges::any_of(entries, &NameEntry::is_in_transit) && has(platform::PartKind::kForOthers));
  }
};

// Reads the file. Code::kIncompatible if it is not one of this version.
Result<NameRecord> read_record(const platform::LockedFile& file);
// Contents of a file, read without its lock. Entries may change meanwhile; the header never changes.
struct StoredRecord {
  NameRecord record{};
  bool is_kept = false;  // a living process has a part
};
Result<StoredRecord> stored_record(const platform::PrivateFile& file);
Result<StoredRecord> look_at_record(int directory, const std::string& name);

bool has_parts(const platform::LockedFile& file, const NameRecord& record) noexcept;
// Returns the pids of living processes that hold the name, for themselves or in transit. A single 0 stands for
// processes that have a part and are not visible from here. An exiting process keeps its parts a little longer than its
// memory, so this waits for it, for up to 3 s. Fails if this process has no free descriptor.
Result<std::vector<int>> living(const platform::LockedFile& file, const NameRecord& record);

// Replaces an error by `otherwise`, for a file that may have been removed meanwhile or that is not ours. Returns the
// error if this process is out of descriptors and so could not tell.
template <class T>
Result<T> unless_exhausted(const Error& why, T otherwise) {
  if (platform::is_exhausted(why)) return why;
  return otherwise;
}

struct MadeFile {
  std::string path;
  platform::UniqueFd part;
};

// Creates the file in the first folder of `paths` that accepts it; others may be read-only, full or another user's.
// Code::kExists if there is one by now.
Result<MadeFile> make_file(const std::vector<std::string>& paths, const std::string& name, const std::byte* bytes,
                           std::size_t count);

// A locked file of a name. `file` uses `directory`.
struct OpenName {
  platform::UniqueFd directory;
  platform::LockedFile file;
  NameRecord record;

  bool is(const unsigned char uuid[16], std::uint64_t block) const noexcept;
  // Returns kNotFound if the name stands for another object by now.
  Status check(const unsigned char uuid[16], std::uint64_t block) const;
  // Writes the entry over a free one, or over one of a dead process; otherwise appends it.
  Status add(const NameEntry& entry);
  // Clears up to `most` entries for which `is` returns true. The limit is needed because threads that open the name at
  // the same time have one entry each, and the entries are equal.
  template <class Is>
  Status clear(Is is, std::size_t most = SIZE_MAX) {
    for (std::size_t i = 0; i < record.entries.size() && most != 0; ++i) {
      if (record.entries[i].pid == 0 || !is(record.entries[i])) continue;
      if (Status written = write(i, NameEntry{}); !written) return written;
      --most;
    }
    return success();
  }
  // Removes the file unless a living process holds the name, for itself or in transit.
  Status remove_unless_alive();

 private:
  Status write(std::size_t index, const NameEntry& entry);
};
Result<OpenName> open_path(const std::string& path);

// Removes the file of a name that no living process holds. False if one does, or if another process has locked the
// file. Fails if this process has no free descriptor. For a name in use, it costs one check of a lock, and it never
// waits.
Result<bool> sweep(const NameFolder& folder, const std::string& name);

}  // namespace shmtree::discovery
