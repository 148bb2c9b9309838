#include "discovery/name_folders.h"

#include <algorithm>
#include <utility>

#include "platform/checksum.h"
#include "platform/machine.h"

namespace shmtree::discovery {
namespace {

constexpr const char* kFolder = "shmtree";
constexpr const char* kOnlyFolder = "SHMTREE_NAMES_DIR";
constexpr std::int64_t kMakersTimeoutNs = 20'000'000'000;

}  // namespace

Result<std::vector<std::string>> name_folder_paths() {
  std::string only = platform::environment_variable(kOnlyFolder);
  if (only.empty()) return platform::private_directories(kFolder);
  if (only[0] != '/')
    return Error{Code::kInvalid, std::string(kOnlyFolder) + " is " + only + "; it must be an absolute path"};
  while (only.size() > 1 && only.back() == '/') only.pop_back();
  return std::vector<std::string>{std::move(only)};
}

Result<std::optional<NameFolder>> open_name_folder(const std::string& path) {
  auto directory = platform::open_private_directory(path, platform::IfMissing::kFail);
  if (directory) return std::optional(NameFolder{std::move(*directory), path});
  if (platform::is_exhausted(directory.error())) return std::move(directory).error();
  return std::optional<NameFolder>();
}

Status for_each_name_folder(const std::function<Status(const NameFolder&)>& visit) {
  const auto paths = name_folder_paths();
  if (!paths) return paths.error();
  std::vector<platform::FileId> seen;
  for (const std::string& path : *paths) {
    auto folder = open_name_folder(path);
    if (!folder) return std::move(folder).error();
    if (!*folder) continue;
    const auto id = platform::file_id((*folder)->directory.get());
    if (!id) return id.error();
    if (std::find(seen.begin(), seen.end(), *id) != seen.end()) continue;
    seen.push_back(*id);
    if (Status visited = visit(**folder); !visited) return visited;
  }
  return success();
}

std::string searched(const std::vector<std::string>& paths) {
  std::string text = "searched ", unusable;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (i != 0) text += i + 1 == paths.size() ? " and " : ", ";
    text += paths[i];
    const auto opened = platform::open_private_directory(paths[i], platform::IfMissing::kFail);
    if (!opened && opened.code() != Code::kNotFound) unusable += "; " + opened.error().message;
  }
  return text + " (names are per user; this is uid " + std::to_string(platform::user_id()) + ")" + unusable;
}

Result<MakersLock> MakersLock::take(const std::vector<std::string>& paths, const std::string& name) {
  MakersLock taken;
  if (paths.size() == 1) return taken;
  const std::uint32_t key = platform::crc32c(0, name.data(), name.size());
  std::vector<platform::FileId> seen;
  for (const std::string& path : paths) {
    auto directory = platform::open_private_directory(
        path, taken.locks_.empty() ? platform::IfMissing::kCreate : platform::IfMissing::kFail);
    if (!directory && platform::is_exhausted(directory.error())) return std::move(directory).error();
    if (!directory) continue;
    const auto id = platform::file_id(directory->get());
    if (!id) return id.error();
    if (std::find(seen.begin(), seen.end(), *id) != seen.end()) continue;
    seen.push_back(*id);
    auto lock = platform::DirectoryLock::take(directory->get(), key, kMakersTimeoutNs);
    if (lock) {
      taken.locks_.push_back(std::move(*lock));
    } else if (lock.code() == Code::kTimeout || platform::is_exhausted(lock.error())) {
      return Error{lock.code(), path + ": " + lock.error().message, lock.error().os_errno};
    }
  }
  return taken;
}

}  // namespace shmtree::discovery
