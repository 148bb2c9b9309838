// Restores the file of a name that was removed while processes hold the name: by logind at a logout, by a program that
// cleans temporary folders, or by a person. The processes still have the file open, so it is reachable through /proc.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "platform/file.h"

namespace shmtree::discovery {

struct RemovedName {
  std::string folder{};
  std::vector<std::byte> bytes{};  // contents of the file
  std::vector<int> pids{};         // processes that hold the name
};

// Searches for a removed file of that name, in one of the folders at `paths`, that a living process keeps open. Reads
// the descriptors of all processes of this user. An error if this process has no free descriptor.
Result<std::optional<RemovedName>> find_removed(const std::vector<std::string>& paths, const std::string& file_name);

// Writes the file again, with the same bytes, in the same folder. Other processes then find the name, and its holders
// continue to use it by path. Code::kExists if there is a file by now.
Status restore(const RemovedName& removed, const std::string& file_name);

}  // namespace shmtree::discovery
