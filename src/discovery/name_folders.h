// The folders that contain the files of names.
//
// Every process of a user searches the same folders, whatever its environment, and creates a name in the first one that
// accepts it (platform::private_directories()). SHMTREE_NAMES_DIR replaces them by one folder of that path. Processes
// with that variable neither see nor affect names in other folders.
//
// Folders may appear, disappear, fill up, or be out of reach of one process (a mount namespace of its own). So two
// processes that create one name may choose different folders. MakersLock therefore locks the name in each existing
// folder, in the order of name_folder_paths(). Processes that can write to a common folder exclude each other.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "platform/private_directory.h"

namespace shmtree::discovery {

struct NameFolder {
  platform::UniqueFd directory;
  std::string path;
};

// Returns the folders, the preferred one first. Code::kInvalid if SHMTREE_NAMES_DIR is not an absolute path.
Result<std::vector<std::string>> name_folder_paths();

// Opens the folder. Returns nullopt if there is none, or if it is not private to this user, because then its names
// cannot be trusted. An error if this process has no free descriptor.
Result<std::optional<NameFolder>> open_name_folder(const std::string& path);
// Calls `visit` once for each folder that exists, even if several paths lead to it, until a call returns an error.
// Keeps one folder open at a time.
Status for_each_name_folder(const std::function<Status(const NameFolder&)>& visit);

// Describes a search for errors: "searched A and B (names are per user; this is uid 1000)", and the reason if a folder
// that exists was not searched.
std::string searched(const std::vector<std::string>& paths);

// Held by a process that creates a name, from its check that no other process holds the name until its file exists.
class MakersLock {
 public:
  // Creates the first folder that can be created, if none exists. Takes no lock if there is a single folder, since then
  // the creation of the file decides which process makes the name. Code::kTimeout if another process takes 20 s to
  // create the same name.
  static Result<MakersLock> take(const std::vector<std::string>& paths, const std::string& name);

 private:
  std::vector<platform::DirectoryLock> locks_{};
};

}  // namespace shmtree::discovery
