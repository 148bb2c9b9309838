#include "discovery/name_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "discovery/handle.h"
#include "platform/clock.h"
#include "platform/other_version.h"

namespace shmtree::discovery {

using platform::LockedFile;
using platform::UniqueFd;

namespace {

constexpr std::int64_t kMaxExitNs = 3'000'000'000;

Result<NameRecord> parse(const std::vector<std::byte>& bytes) {
  NameRecord record;
  if (bytes.size() >= sizeof(NameHeader)) std::memcpy(&record.header, bytes.data(), sizeof(NameHeader));
  const auto version = platform::version_of(record.header.magic, kNameMagic);
  const auto own = platform::version_of(kNameMagic, kNameMagic);
  if (version && version != own) return platform::other_version("its file has version", *version, *own);
  if (!version || record.header.note_bytes > sizeof record.header.note) {
    return Error{Code::kIncompatible, "its file is not a shmtree name file"};
  }
  record.entries.resize((bytes.size() - sizeof(NameHeader)) / sizeof(NameEntry));
  if (!record.entries.empty()) {
    std::memcpy(record.entries.data(), bytes.data() + sizeof(NameHeader), record.entries.size() * sizeof(NameEntry));
  }
  return record;
}

std::pair<std::string, std::string> split(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return {path.substr(0, slash == std::string::npos ? 0 : slash), path.substr(slash + 1)};
}

}  // namespace

std::string file_of_name(std::string_view name) {
  std::string file_name;
  for (const char each : name) {
    if (each == '/') {
      file_name += "%2F";
    } else if (each == '%') {
      file_name += "%25";
    } else {
      file_name += each;
    }
  }
  return file_name;
}

std::string name_of_file(std::string_view file_name) {
  std::string name;
  for (std::size_t at = 0; at < file_name.size(); ++at) {
    const std::string_view code = file_name.substr(at, 3);
    const bool is_slash = code == "%2F", is_percent = code == "%25";
    name += is_slash ? '/' : file_name[at];
    if (is_slash || is_percent) at += 2;
  }
  return name;
}

Result<NameRecord> read_record(const LockedFile& file) {
  auto bytes = file.read();
  if (!bytes) return std::move(bytes).error();
  return parse(*bytes);
}

Result<StoredRecord> stored_record(const platform::PrivateFile& file) {
  auto record = parse(file.bytes);
  if (!record) return std::move(record).error();
  const bool is_kept = record->is_kept([&](platform::PartKind kind) {
    return kind == platform::PartKind::kOwn ? file.has_parts : file.has_parts_for_others;
  });
  return StoredRecord{*std::move(record), is_kept};
}

Result<StoredRecord> look_at_record(int directory, const std::string& name) {
  auto seen = platform::stat_private_file(directory, name);
  if (!seen) return std::move(seen).error();
  return stored_record(*seen);
}

namespace {

// Checks if the processes of one file's entries are alive, each process once. A process counts as alive unless it is
// certainly dead, since taking a name from a living process cannot be undone.
class Alive {
 public:
  explicit Alive(const unsigned char uuid[16]) noexcept : uuid_(uuid) {}
  bool operator()(const NameEntry& entry) {
    if (entry.pid <= 0) return false;
    const auto [known, is_new] = known_.try_emplace({entry.pid, entry.fd}, false);
    if (is_new) known->second = look(entry);
    return known->second;
  }
  // Returns an error if some of the processes that count as alive may be dead, with the reason why that is not certain.
  const std::optional<Error>& unknown() const noexcept { return unknown_; }

 private:
  bool look(const NameEntry& entry);

  const unsigned char* uuid_;
  std::map<std::pair<int, int>, bool> known_;
  std::optional<Error> unknown_{};
};

// Opens the file read-only, so that other processes do not count this one as a user of the arena.
bool Alive::look(const NameEntry& entry) {
  auto opened = open_file_of(entry.pid, entry.fd, uuid_, platform::Access::kRead);
  if (opened) return true;
  if (opened.code() == Code::kNotFound) return false;
  if (platform::is_exhausted(opened.error())) unknown_ = std::move(opened).error();
  return platform::is_own_process(entry.pid);
}

// Returns true if there are parts that do not belong to an exiting process. Checks for parts last: if the earlier
// checks missed an exiting process, it has released its parts by then.
bool outlast_exits(const LockedFile& file, const NameRecord& record) {
  const auto deadline = platform::Deadline::after_ns(kMaxExitNs);
  while (has_parts(file, record) && platform::any_process_is_exiting() && !deadline.passed()) platform::pause_briefly();
  return has_parts(file, record);
}

}  // namespace

Result<std::vector<int>> living(const LockedFile& file, const NameRecord& record) {
  std::vector<int> pids;
  Alive is_alive(record.header.uuid);
  for (const NameEntry& entry : record.entries) {
    if (is_alive(entry)) pids.push_back(entry.pid);
  }
  if (is_alive.unknown()) return *is_alive.unknown();
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  if (!pids.empty() || !outlast_exits(file, record)) return pids;
  auto holders = file.part_holders();  // for example a forked child that has not added itself yet
  if (!holders || !holders->empty()) return holders;
  return std::vector<int>{0};
}

bool has_parts(const LockedFile& file, const NameRecord& record) noexcept {
  return record.is_kept([&](platform::PartKind kind) { return file.has_parts(kind); });
}

Result<MadeFile> make_file(const std::vector<std::string>& paths, const std::string& name, const std::byte* bytes,
                           std::size_t count) {
  std::optional<Error> failure;
  for (const std::string& folder : paths) {
    auto directory = platform::open_private_directory(folder, platform::IfMissing::kCreate);
    std::string path = folder + "/" + name;
    auto file = directory ? platform::create_private_file(directory->get(), name, bytes, count) : std::move(directory);
    if (file) return MadeFile{std::move(path), std::move(*file)};
    if (file.code() == Code::kExists) return std::move(file).error();
    if (!failure) {
      failure = std::move(file).error();
    } else {
      failure->message += "; " + file.error().message;
    }
  }
  return *std::move(failure);
}

bool OpenName::is(const unsigned char uuid[16], std::uint64_t block) const noexcept {
  return std::memcmp(record.header.uuid, uuid, sizeof record.header.uuid) == 0 && record.header.block == block;
}

Status OpenName::check(const unsigned char uuid[16], std::uint64_t block) const {
  if (is(uuid, block)) return success();
  return Error{Code::kNotFound, "another process created another object with this name in the meantime"};
}

Status OpenName::write(std::size_t index, const NameEntry& entry) {
  Status written = file.write(sizeof(NameHeader) + index * sizeof(NameEntry), &entry, sizeof entry);
  if (written && index < record.entries.size()) record.entries[index] = entry;
  return written;
}

Status OpenName::add(const NameEntry& entry) {
  Alive is_alive(record.header.uuid);
  const auto found = std::ranges::find_if(record.entries, [&](const NameEntry& each) { return !is_alive(each); });
  return write(static_cast<std::size_t>(found - record.entries.begin()), entry);
}

Status OpenName::remove_unless_alive() {
  const auto pids = living(file, record);
  if (!pids) return pids.error();
  return pids->empty() ? file.remove() : success();
}

Result<OpenName> open_path(const std::string& path) {
  const auto [folder, name] = split(path);
  auto directory = platform::open_private_directory(folder, platform::IfMissing::kFail);
  if (!directory) return std::move(directory).error();
  auto file = LockedFile::open(directory->get(), name, kNameLockTimeoutNs);
  if (!file) return std::move(file).error();
  auto record = read_record(*file);
  if (!record) return std::move(record).error();
  return OpenName{std::move(*directory), std::move(*file), std::move(*record)};
}

Result<bool> sweep(const NameFolder& folder, const std::string& name) {
  const auto has_parts = platform::has_parts(folder.directory.get(), name);
  if (!has_parts) return unless_exhausted(has_parts.error(), false);
  if (*has_parts) return false;
  auto file = LockedFile::open(folder.directory.get(), name, 0);
  if (!file) return unless_exhausted(file.error(), false);
  auto record = read_record(*file);
  if (!record) return unless_exhausted(record.error(), false);
  const auto pids = living(*file, *record);
  if (!pids) return pids.error();
  return pids->empty() && file->remove();
}

}  // namespace shmtree::discovery
