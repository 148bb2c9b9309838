#include "replay/files/kept_files.h"

#include <algorithm>
#include <cstring>

#include "replay/files/data_file.h"

namespace shmtree::replay {

using namespace platform;

namespace {

constexpr std::size_t kMaxFiles = 32;  // with more files, the smaller half is merged
constexpr std::uint64_t kMinWaste = 64u << 20;

}  // namespace

Status KeptFiles::choose_parts(const Folder& folder, const Store& store, const Snapshot& now) {
  auto read = Manifest::read(folder);
  if (!read) {
    const Code code = read.error().code;
    const bool is_replaced = code == Code::kNotFound || code == Code::kCorrupt || code == Code::kIncompatible;
    return is_replaced ? success() : Status(std::move(read).error());
  }
  const ManifestHeader &then = read->header, &header = next_.header;
  next_.header.save = then.save;
  const Origin& origin = store.origin();
  const bool is_own = std::memcmp(then.uuid, origin.uuid, sizeof then.uuid) == 0;
  const bool is_parents = std::memcmp(then.uuid, origin.parent, sizeof then.uuid) == 0;
  if (!is_own && !is_parents) {
    return Error{.code = Code::kExists,
                 .message = folder.path() +
                            " has the rows of another replay buffer, which would be lost: save to another folder"};
  }
  if (then.rows_per_chunk != header.rows_per_chunk || then.record_bytes != header.record_bytes ||
      read->leaf_bytes != next_.leaf_bytes) {
    return success();
  }
  old_ = std::move(*read);
  live_.resize(old_.files.size());
  kept_.resize(old_.files.size());
  for (const SavedFile& file : old_.files) {
    auto fd = folder.open_file(data_name(file.number));
    auto size = fd.ok() ? file_size(fd->get()) : Result<std::uint64_t>(0);
    const bool is_whole = fd.ok() && size.ok() && *size == file.bytes;
    old_files_.push_back(is_whole ? std::move(*fd) : UniqueFd());
  }
  for (std::uint32_t i = 0; i < old_.parts.size(); ++i) read_part_entries(i, old_files_[old_.parts[i].file]);
  if (!is_own) std::erase_if(known_, [&](const auto& each) { return each.first >= origin.inherited; });
  for (const StateEntry& chunk : now.chunks) {
    const auto found = known_.find(chunk.ticket);
    if (found == known_.end() || found->second.rows != chunk.rows) continue;
    live_[old_.parts[found->second.part].file] += chunk.rows * next_.row_bytes();
  }
  return success();
}

void KeptFiles::read_part_entries(std::uint32_t number, const UniqueFd& fd) {
  const SavedPart& part = old_.parts[number];
  if (part.kind != PartKind::kRows || !fd.valid()) return;
  std::vector<RowsEntry> entries(part.chunks);
  if (!read_at(fd.get(), part.offset, entries.data(), entries.size() * sizeof(RowsEntry))) return;
  for (const RowsEntry& entry : entries) {
    Known& known = known_[entry.ticket];  // a chunk that was written twice has more rows the second time
    if (entry.rows > known.rows) known = {.rows = entry.rows, .part = number};
  }
}

void KeptFiles::choose() {
  std::vector<std::uint32_t> order;
  std::uint64_t bytes = 0, live = 0;
  for (std::uint32_t i = 0; i < old_files_.size(); ++i) {
    if (!old_files_[i].valid()) continue;
    order.push_back(i);
    bytes += old_.files[i].bytes;
    live += live_[i];
  }
  const auto share = [&](std::uint32_t i) {
    return static_cast<double>(live_[i]) / static_cast<double>(old_.files[i].bytes);
  };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return share(a) < share(b); });
  for (const std::uint32_t i : order) {
    if (bytes <= 2 * live + kMinWaste) break;
    bytes -= old_.files[i].bytes;
    bytes += live_[i];
    old_files_[i] = {};
  }
  std::erase_if(order, [&](auto i) { return !old_files_[i].valid(); });
  if (order.size() <= kMaxFiles) return;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return old_.files[a].bytes < old_.files[b].bytes; });
  for (std::size_t i = 0; i < kMaxFiles / 2; ++i) old_files_[order[i]] = {};
}

std::optional<std::uint32_t> KeptFiles::part_with(const StateEntry& chunk) const {
  const auto found = known_.find(chunk.ticket);
  if (found == known_.end() || found->second.rows != chunk.rows) return std::nullopt;
  const std::uint32_t part = found->second.part;
  return old_files_[old_.parts[part].file].valid() ? std::optional(part) : std::nullopt;
}

void KeptFiles::keep(std::uint32_t part) {
  next_.parts.push_back(old_.parts[part]);
  next_.parts.back().file = number_of_kept(old_.parts[part].file);
}

// Returns the file's number in the new manifest, to which it adds the file if necessary.
std::uint32_t KeptFiles::number_of_kept(std::uint32_t old) {
  if (kept_[old] == 0) {
    next_.files.push_back(old_.files[old]);
    kept_[old] = static_cast<std::uint32_t>(next_.files.size());
  }
  return kept_[old] - 1;
}

bool KeptFiles::keep_state(std::uint64_t first, const std::vector<std::byte>& state) {
  for (const SavedPart& part : old_.parts) {
    if (part.kind != PartKind::kState || part.first != first || part.bytes != state.size()) continue;
    if (!old_files_[part.file].valid()) continue;
    // Does not keep a large file if only its state is still needed.
    if (kept_[part.file] == 0 && old_.files[part.file].bytes > kMinWaste) continue;
    std::vector<std::byte> then(part.bytes);
    if (!read_at(old_files_[part.file].get(), part.offset, then.data(), then.size()) || then != state) continue;
    next_.parts.push_back(part);
    next_.parts.back().file = number_of_kept(part.file);
    return true;
  }
  return false;
}

}  // namespace shmtree::replay
