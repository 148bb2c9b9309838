// The folders that names are kept in.
//
// Every process of a user looks in the same folders, whatever its environment, and makes a name in the first of them
// that takes it (platform::private_directories()). SHMTREE_NAMES_DIR replaces them by one folder of that path, and the
// processes that have it neither see nor disturb the names of others.
//
// Folders may come, go, fill up, or be out of reach of one process (a mount namespace of its own), so processes that
// make one name may choose different folders. MakersLock therefore locks the name in each folder that there is, in the
// order of place_paths(): makers that have one writable folder in common exclude each other.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "platform/private_directory.h"

namespace shmtree::discovery {

struct Place {
  platform::UniqueFd directory;
  std::string path;
};

// Returns the folders, the preferred one first. Code::kInvalid if SHMTREE_NAMES_DIR is no absolute path.
Result<std::vector<std::string>> place_paths();

// Opens the folder. Returns nothing if there is none, or if it is not private to this user: its names are not trusted.
// An error if this process has no free descriptor.
Result<std::optional<Place>> open_place(const std::string& path);
// Calls `visit` once for each folder that exists, even if several paths lead to it, until a call returns an error.
// Keeps one folder open at a time.
Status for_each_place(const std::function<Status(const Place&)>& visit);

// Describes a search for errors: "searched A and B (names are per user; this is uid 1000)", and why a folder that
// exists was left out.
std::string searched(const std::vector<std::string>& paths);

// Held by a process that makes a name, from its check that no other process has the name until its file is there.
class MakersLock {
 public:
  // Makes the first folder that can be made, if there is none to lock. Locks nothing for a single folder: the making of
  // the file decides there. Code::kTimeout if another process makes the same name for 20 s.
  static Result<MakersLock> take(const std::vector<std::string>& paths, const std::string& name);

 private:
  std::vector<platform::DirectoryLock> locks_{};
};

}  // namespace shmtree::discovery
