// The file of a name: its bytes, where it lies, and whether anybody lives who has the name.
//
//   offset 0   8   magic "smtname2"
//          8  16   uuid of the arena
//         24   8   block of the channel or array, 0 for an arena
//         32   4   what it is (NamedKind)
//         36   4   bytes of the note
//         40 472   the note
//        512  16   per entry: pid (4), descriptor of the arena there (4), transfer (8); pid 0 for a free place
//
// An entry without a transfer is that of a process that has the name. One with a transfer is that of something in
// transit to a process that will have the name: the pid is its giver's, which keeps the arena for it, and the receiver
// clears it.
//
// The file is created whole. Everything else happens under the lock of its first byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "discovery/places.h"

namespace shmtree::discovery {

constexpr char kNameMagic[8] = {'s', 'm', 't', 'n', 'a', 'm', 'e', '2'};
constexpr std::int64_t kNameLockTimeoutNs = 5'000'000'000;

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

  // True if a living process has a part for itself, or for what this says to be in transit, by has(PartKind).
  template <class Has>
  bool is_kept(Has has) const noexcept {
    return has(platform::PartKind::kOwn) ||
           (std::ranges::any_of(entries, &NameEntry::is_in_transit) && has(platform::PartKind::kForOthers));
  }
};

// Code::kIncompatible when it is not one of this version.
Result<NameRecord> read_record(const platform::LockedFile& file);
// Without its lock: entries may be changing, the header never does.
struct KeptRecord {
  NameRecord record{};
  bool is_kept = false;  // somebody lives who has a part
};
Result<KeptRecord> kept_record(const platform::PrivateFile& file);
Result<KeptRecord> look_at_record(int directory, const std::string& name);

bool has_parts(const platform::LockedFile& file, const NameRecord& record) noexcept;
// The processes that are known to live, and have it or have it in transit. A single 0 stands for those that keep a part
// and cannot be seen from here. A process that is exiting keeps its parts a little longer than its memory: this waits
// for it, for up to 3 s. An error when this process has no descriptor left to look with.
Result<std::vector<int>> living(const platform::LockedFile& file, const NameRecord& record);

// Of a file that may have gone meanwhile, or be none of ours, it is enough to know that; but not where this process has
// no descriptor left to tell.
template <class T>
Result<T> unless_exhausted(const Error& why, T otherwise) {
  if (platform::is_exhausted(why)) return why;
  return otherwise;
}

struct MadeFile {
  std::string path;
  platform::UniqueFd part;
};

// Makes the file in the first folder of `paths` that takes it: others may be read-only, full or another user's. Returns
// where. Code::kExists when there is one by now.
Result<MadeFile> make_file(const std::vector<std::string>& paths, const std::string& name, const std::byte* bytes,
                           std::size_t count);

// What lies at a path, locked. The file refers to the directory.
struct OpenName {
  platform::UniqueFd directory;
  platform::LockedFile file;
  NameRecord record;

  bool is(const unsigned char uuid[16], std::uint64_t block) const noexcept;
  // kNotFound when it is not that any more.
  Status check(const unsigned char uuid[16], std::uint64_t block) const;
  // Into a place that is free, or whose process is gone; the living keep theirs.
  Status add(const NameEntry& entry);
  // Frees the places of those entries that `is` says true of, `most` of them at most: threads that open a name at once
  // have one each.
  template <class Is>
  Status clear(Is is, std::size_t most = SIZE_MAX) {
    for (std::size_t i = 0; i < record.entries.size() && most != 0; ++i) {
      if (record.entries[i].pid == 0 || !is(record.entries[i])) continue;
      if (Status written = write(i, NameEntry{}); !written) return written;
      --most;
    }
    return success();
  }
  // Removes the file unless a living process has the name, or has it in transit.
  Status remove_unless_alive();

 private:
  Status write(std::size_t index, const NameEntry& entry);
};
Result<OpenName> open_path(const std::string& path);

// Removes a file that nobody alive has. False when somebody does, or another process is at it; an error when this
// process has no descriptor left to tell. Of the names of the living it costs one look at a lock, and none is ever
// waited for.
Result<bool> sweep(const Place& place, const std::string& name);

}  // namespace shmtree::discovery
