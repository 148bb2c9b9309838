#include "discovery/removed_name.h"

#include <algorithm>
#include <utility>

#include "discovery/name_file.h"

namespace shmtree::discovery {

using platform::OpenFile;

Result<std::optional<RemovedName>> find_removed(const std::vector<std::string>& paths, const std::string& file_name) {
  std::vector<std::string> links;
  std::vector<std::uint64_t> devices;
  for (const std::string& path : paths) {
    links.push_back(path + "/" + file_name + " (deleted)");
    if (const auto device = platform::device_at(path)) devices.push_back(*device);
  }
  std::vector<OpenFile> parts;
  const Status searched = platform::find_files(links, [&](const OpenFile& one) {
    // A folder of another container may have the same path, but is on another device.
    const bool is_here = std::find(devices.begin(), devices.end(), one.id.device) != devices.end();
    if (is_here && one.is_removed && platform::shares_a_lock(one)) parts.push_back(one);
    return false;
  });
  if (!searched && platform::is_exhausted(searched.error())) return searched.error();
  for (const OpenFile& part : parts) {
    auto seen = platform::stat_private_file(part);
    if (!seen && platform::is_exhausted(seen.error())) return std::move(seen).error();
    if (!seen) continue;
    const auto kept = stored_record(*seen);
    if (!kept || !kept->is_kept) continue;
    RemovedName found;
    found.bytes = std::move(seen->bytes);
    for (const OpenFile& each : parts) {
      if (each.id == part.id) found.pids.push_back(each.pid);
    }
    std::sort(found.pids.begin(), found.pids.end());
    found.pids.erase(std::unique(found.pids.begin(), found.pids.end()), found.pids.end());
    found.folder = part.link.substr(0, part.link.rfind('/'));
    return std::optional(std::move(found));
  }
  return std::optional<RemovedName>();
}

Status restore(const RemovedName& removed, const std::string& file_name) {
  auto directory = platform::open_private_directory(removed.folder, platform::IfMissing::kCreate);
  if (!directory) return std::move(directory).error();
  auto part = platform::create_private_file(directory->get(), file_name, removed.bytes.data(), removed.bytes.size());
  if (!part) return std::move(part).error();
  platform::end_part(std::move(*part));
  return success();
}

}  // namespace shmtree::discovery
