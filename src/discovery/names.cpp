#include "discovery/names.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "discovery/handle.h"
#include "discovery/name_file.h"
#include "discovery/name_folders.h"
#include "discovery/removed_name.h"
#include "platform/clock.h"
#include "platform/machine.h"

namespace shmtree::discovery {

using memory::Arena;
using platform::CheckedFd;
using platform::LockedFile;
using platform::UniqueFd;

namespace {

constexpr std::int64_t kFirstPauseNs = 1'000'000, kMaxPauseNs = 50'000'000;

// Describes the processes that living() returned as 0.
std::string out_of_sight() {
  if (platform::any_process_is_exiting()) return "a process that is exiting";
  return "a process that cannot be seen from here, such as one in another PID namespace";
}

Error in_use(const std::vector<int>& pids, const std::string& note = "") {
  std::string text = "it is in use by ";
  if (!pids.empty() && pids[0] == 0) {
    text += out_of_sight();
  } else {
    text += "process ";
    for (std::size_t i = 0; i < pids.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(pids[i]);
  }
  return Error{Code::kExists, text + note + "; to open it, pass exist_ok"};
}

Error with_name(Error error, const std::string& name) {
  error.message = "the name \"" + name + "\": " + error.message;
  return error;
}

Status check_name(const std::string& name) {
  std::size_t bytes = name.size();
  bool bad = name.empty() || name.find('\0') != std::string::npos;
  for (std::size_t at = 0; at < name.size() && !bad; ++at) {
    if (name[at] == '/' || name[at] == '%') bytes += 2;
    const bool begins_part = at == 0 || name[at - 1] == '/';
    bad = begins_part && (name[at] == '/' || name[at] == '.');
  }
  bad = bad || name.back() == '/' || bytes > 200;
  if (!bad) return success();
  return Error{Code::kInvalid,
               "a name must have 1 to 200 bytes, of which '/' and '%' count three each, and no part between '/' may be"
               " empty or begin with '.'"};
}

// Removes the file of a name that no living process holds; Code::kExists if one does. Objects that this process has in
// transit do not count: a process that creates the name anew has released the old one.
Status take_over(const NameFolder& folder, const std::string& file_name) {
  auto file = LockedFile::open(folder.directory.get(), file_name, kNameLockTimeoutNs);
  if (!file) return file.code() == Code::kNotFound ? success() : Status(std::move(file).error());
  auto record = read_record(*file);
  if (!record) return std::move(record).error();
  const int me = platform::process_id();
  std::erase_if(record->entries, [me](const NameEntry& entry) { return entry.is_in_transit() && entry.pid == me; });
  const auto found = living(*file, *record);
  if (!found) return found.error();
  if (found->empty()) return file->remove();
  return in_use(*found);
}

// Restores the file of a name that was removed while processes hold the name, and returns Code::kExists. Succeeds if
// there is no such file.
Status check_removed(const std::vector<std::string>& paths, const std::string& file_name) {
  auto removed = find_removed(paths, file_name);
  if (!removed) return std::move(removed).error();
  if (!*removed) return success();
  const Status restored = restore(**removed, file_name);
  if (!restored && platform::is_exhausted(restored.error())) return restored.error();
  return in_use((*removed)->pids, " (the name's file in " + (*removed)->folder + " was removed)");
}

// Shared by all directories. In each one, a call checks the names after those that the previous call checked.
std::atomic<std::size_t> g_next_checked{static_cast<std::size_t>(platform::monotonic_ns())};

// Removes names that dead processes have left. Runs whenever a name is created or opened, and checks a few files each
// time.
void sweep_some() noexcept {
  static constexpr std::size_t kMaxListed = 1024, kMaxChecked = 32;
  const std::size_t first = g_next_checked.fetch_add(kMaxChecked, std::memory_order_relaxed);
  try {
    for_each_name_folder([first](const NameFolder& folder) {
      const auto names = platform::list_directory(folder.directory.get(), kMaxListed);
      if (!names) return success();
      for (std::size_t i = 0; i < std::min(names->size(), kMaxChecked); ++i) {
        sweep(folder, (*names)[(first + i) % names->size()]).ok();  // otherwise a later call removes the names
      }
      return success();
    }).ok();
  } catch (const std::bad_alloc&) {  // a later call does it
  }
}

struct SweepAtTheEnd {
  ~SweepAtTheEnd() { sweep_some(); }
};

// Returns the error of open() for a name that does not exist: Code::kTimeout if it has waited for `waited`.
Error not_found(const std::string& name, const Error& why, std::optional<std::chrono::nanoseconds> waited,
                const std::vector<std::string>& paths) {
  Error error{Code::kNotFound, "no object named \"" + name + "\""};
  if (waited) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", std::chrono::duration<double>(*waited).count());
    error = Error{Code::kTimeout, "no process created the name \"" + name + "\" within " + seconds + " s"};
  }
  if (!why.message.empty()) error.message += ": " + why.message;
  error.message += "; " + searched(paths);
  return error;
}

NamedObject object_of(const NameHeader& header, std::shared_ptr<Arena> arena) {
  return NamedObject{static_cast<NamedKind>(header.kind), std::move(arena), header.block,
                     std::string(header.note, header.note_bytes)};
}

}  // namespace

Result<std::unique_ptr<Name>> Name::create(const std::string& name, const NamedObject& object) {
  Status valid = check_name(name);
  if (!valid) return with_name(std::move(valid).error(), name);
  const SweepAtTheEnd sweeping;
  NameHeader header{};
  if (object.note.size() > sizeof header.note)
    return Error{Code::kInvalid,
                 "the note of a name has " + std::to_string(object.note.size()) + " bytes; it must have at most 472"};
  std::memcpy(header.magic, kNameMagic, sizeof kNameMagic);
  std::memcpy(header.uuid, object.arena->uuid(), sizeof header.uuid);
  header.block = object.block;
  header.kind = static_cast<std::uint32_t>(object.kind);
  header.note_bytes = static_cast<std::uint32_t>(object.note.size());
  std::memcpy(header.note, object.note.data(), object.note.size());
  const NameEntry entry{platform::process_id(), object.arena->fd(), 0};
  std::byte bytes[sizeof header + sizeof entry];
  std::memcpy(bytes, &header, sizeof header);
  std::memcpy(bytes + sizeof header, &entry, sizeof entry);

  // Created before the file, so that lack of memory leaves no file behind.
  std::unique_ptr<Name> result(new Name("", object));
  const auto paths = name_folder_paths();
  if (!paths) return with_name(paths.error(), name);
  const std::string file_name = file_of_name(name);
  const auto lock = MakersLock::take(*paths, file_name);
  if (!lock) return with_name(lock.error(), name);
  for (;;) {
    for (const std::string& path : *paths) {
      const auto folder = open_name_folder(path);
      if (!folder) return with_name(folder.error(), name);
      if (!*folder) continue;
      Status taken = take_over(**folder, file_name);
      if (!taken) return with_name(std::move(taken).error(), name);
    }
    Status unused = check_removed(*paths, file_name);
    if (!unused) return with_name(std::move(unused).error(), name);
    auto file = make_file(*paths, file_name, bytes, sizeof bytes);
    if (file) {
      result->path_ = std::move(file->path);
      result->pid_ = entry.pid;
      result->part_ = CheckedFd(std::move(file->part));
      return result;
    }
    if (file.code() != Code::kExists) return with_name(std::move(file).error(), name);
  }
}

// Opens the name if it exists now. Code::kNotFound, without a list of folders, if it does not.
Result<std::unique_ptr<Name>> Name::open_now(const std::vector<std::string>& paths, const std::string& file_name) {
  Error error{Code::kNotFound, ""};
  for (const std::string& path : paths) {
    const auto folder = open_name_folder(path);
    if (!folder) return folder.error();
    if (!*folder) continue;
    auto file = LockedFile::open((*folder)->directory.get(), file_name, kNameLockTimeoutNs);
    if (!file) {
      if (file.code() != Code::kNotFound) error = std::move(file).error();
      continue;
    }
    auto record = read_record(*file);
    if (!record) return std::move(record).error();
    std::shared_ptr<Arena> arena = Arena::find(record->header.uuid);
    error = Error{Code::kNotFound, "every process that had it has ended"};
    for (const NameEntry& entry : record->entries) {
      if (arena != nullptr) break;
      if (entry.pid <= 0) continue;
      auto opened = open_arena_of(entry.pid, entry.fd, record->header.uuid);
      if (opened) {
        arena = std::move(*opened);
      } else if (opened.code() != Code::kNotFound) {
        error = std::move(opened).error();
      }
    }
    const auto pids = arena != nullptr ? Result<std::vector<int>>(std::vector<int>()) : living(*file, *record);
    file = Error{};  // unlocks
    if (!pids) return pids.error();
    if (arena == nullptr && pids->empty()) {  // these pids may belong to other processes by now
      error = Error{Code::kNotFound, "every process that had it has ended"};
    }
    if (!pids->empty()) {
      if (error.code == Code::kNotFound && (*pids)[0] == 0) {
        error = Error{Code::kUnavailable, "it belongs to " + out_of_sight()};
      }
      auto found = open_arena_of_any_process(record->header.uuid, error);
      if (found) {
        arena = std::move(*found);
      } else {
        error = std::move(found).error();
      }
    }
    if (arena == nullptr) continue;
    std::unique_ptr<Name> result(new Name(path + "/" + file_name, object_of(record->header, std::move(arena))));
    Status added = result->add_entry();
    if (!added) return std::move(added).error();
    return result;
  }
  return error;
}

Result<std::unique_ptr<Name>> Name::open(const std::string& name, std::optional<std::chrono::nanoseconds> timeout,
                                         platform::WaitHooks* hooks) {
  Status valid = check_name(name);
  if (!valid) return with_name(std::move(valid).error(), name);
  const auto paths = name_folder_paths();
  if (!paths) return with_name(paths.error(), name);
  const SweepAtTheEnd sweeping;
  const std::string file_name = file_of_name(name);
  const auto deadline = platform::Deadline::after(timeout);
  const bool waits = !timeout || timeout->count() > 0;
  std::int64_t pause_ns = 0;
  for (;;) {
    const bool is_first = pause_ns == 0, is_last = !waits || deadline.passed();
    auto opened = open_now(*paths, file_name);
    const auto is_missing = [&] { return !opened && opened.code() == Code::kNotFound; };
    if (is_missing() && (is_first || is_last)) {  // this scans all processes, so it is not done each time
      const Status unused = check_removed(*paths, file_name);
      if (!unused && unused.code() == Code::kExists) opened = open_now(*paths, file_name);
    }
    if (!is_missing()) return opened ? std::move(opened) : with_name(std::move(opened).error(), name);
    if (is_last) return not_found(name, std::move(opened).error(), waits ? timeout : std::nullopt, *paths);
    if (hooks != nullptr && hooks->interrupted())
      return Error{Code::kInterrupted, "interrupted while waiting for the name \"" + name + "\""};
    pause_ns = std::min(kMaxPauseNs, is_first ? kFirstPauseNs : 2 * pause_ns);
    const platform::BlockingScope scope(hooks);
    platform::sleep_ns(deadline.remaining_ns(pause_ns));
  }
}

Result<std::unique_ptr<Name>> Name::join(const std::string& path, std::shared_ptr<Arena> arena, UniqueFd part) {
  NameHeader header;
  {
    auto open = open_path(path);
    if (!open) return std::move(open).error();
    header = open->record.header;
  }
  std::unique_ptr<Name> result(new Name(path, object_of(header, std::move(arena))));
  Status added = result->add_entry();
  CheckedFd inherited(std::move(part));
  platform::end_part(inherited);  // this process has its own part; ends the parent's copy too
  if (!added) return std::move(added).error();
  return result;
}

Status Name::add_entry() {
  auto open = open_path(path_);
  if (!open) return std::move(open).error();
  if (Status same = open->check(object_.arena->uuid(), object_.block); !same) return same;
  const NameEntry mine{platform::process_id(), object_.arena->fd(), 0};
  Status written = open->add(mine);
  if (!written) return written;
  pid_ = mine.pid;
  if (part_.valid()) return success();
  auto part = open->file.take_part();
  if (!part) return std::move(part).error();
  part_ = CheckedFd(std::move(*part));
  return success();
}

Status Name::remove_entry() {
  auto open = open_path(path_);
  if (!open) return std::move(open).error();
  if (!open->is(object_.arena->uuid(), object_.block)) return success();
  Status cleared = open->clear(
      [&](const NameEntry& entry) {
        return entry.pid == pid_ && entry.fd == object_.arena->fd() && entry.transfer == 0;
      },
      1);
  if (!cleared) return cleared;
  end_part();
  return open->remove_unless_alive();
}

Result<UniqueFd> Name::part_for_child() const {
  return platform::another_part(part_);
}

void Name::give_up_part(const std::string& path, UniqueFd part) noexcept {
  CheckedFd given_up(std::move(part));
  platform::end_part(given_up);
  try {
    if (auto open = open_path(path)) open->remove_unless_alive().ok();
  } catch (const std::bad_alloc&) {  // what cannot be removed is left to clean_names()
  }
}

Status Name::note_arrival(std::uint64_t transfer) {
  auto open = open_path(path_);
  if (!open) return std::move(open).error();
  return open->clear([transfer](const NameEntry& entry) { return entry.transfer == transfer; }, 1);
}

// In a child without a part of its own, `part_` is still the parent's part. The mutex is held, so that no child is
// forked between the end of the part and its removal from the object.
void Name::end_part() noexcept {
  const std::lock_guard guard(mutex_);
  if (pid_ == platform::process_id()) platform::end_part(part_);
  part_.reset();
}

void Name::leave() noexcept {
  try {
    if (pid_ == platform::process_id()) remove_entry().ok();
  } catch (const std::bad_alloc&) {  // what cannot be removed is left to clean_names()
  }
  end_part();
  pid_ = 0;
}

// The parent's own part keeps the file until the child has a part, so the file's lock is not needed.
void Name::before_fork() noexcept {
  if (!part_.valid()) return;
  try {
    auto part = platform::another_part(part_);
    if (part) childs_ = CheckedFd(std::move(*part));
  } catch (const std::bad_alloc&) {  // the child adds itself later, and counts from then on
  }
}

void Name::after_fork_in_parent() noexcept {
  childs_.reset();
}

void Name::after_fork_in_child() noexcept {
  part_ = std::move(childs_);  // closes the copy of the parent's part, which would outlive it
  pid_ = part_.valid() ? platform::process_id() : 0;
}

Name::~Name() {
  leave();
}

namespace {

// Calls visit(folder, file name, name) for each file that can be that of a name, until a call returns an error.
template <class Visit>
Status for_each_file(const Visit& visit) {
  return for_each_name_folder([&visit](const NameFolder& folder) -> Status {
    const auto files = platform::list_directory(folder.directory.get());
    if (!files) return files.error();
    for (const std::string& file_name : *files) {
      const std::string name = name_of_file(file_name);
      if (!check_name(name) || file_of_name(name) != file_name) continue;
      if (Status visited = visit(folder, file_name, name); !visited) return visited;
    }
    return success();
  });
}

}  // namespace

Result<std::vector<NameInfo>> list_names() {
  std::vector<NameInfo> found;
  const Status listed =
      for_each_file([&found](const NameFolder& folder, const std::string& file_name, const std::string& name) {
        auto file = LockedFile::open(folder.directory.get(), file_name, kNameLockTimeoutNs);
        const std::string file_path = folder.path + "/" + file_name;
        if (!file && file.code() == Code::kTimeout) {  // a stopped process has its lock, and so is alive
          const auto seen = look_at_record(folder.directory.get(), file_name);
          if (!seen) return unless_exhausted(seen.error(), Unit{});
          found.push_back(NameInfo{name, file_path, static_cast<NamedKind>(seen->record.header.kind), {0}});
          return success();
        }
        if (!file) return unless_exhausted(file.error(), Unit{});
        auto record = read_record(*file);
        if (!record) return unless_exhausted(record.error(), Unit{});
        auto pids = living(*file, *record);
        if (!pids) return Status(std::move(pids).error());
        if (pids->empty()) file->remove().ok();  // the stale name is still listed by this call
        found.push_back(NameInfo{name, file_path, static_cast<NamedKind>(record->header.kind), *std::move(pids)});
        return success();
      });
  if (!listed) return listed.error();
  return found;
}

Result<std::vector<SeenName>> list_records() {
  std::vector<SeenName> seen;
  const Status looked =
      for_each_file([&seen](const NameFolder& folder, const std::string& file_name, const std::string& name) {
        const auto kept = look_at_record(folder.directory.get(), file_name);
        if (!kept) return unless_exhausted(kept.error(), Unit{});
        const NameHeader& header = kept->record.header;
        SeenName& found = seen.emplace_back();
        found.name = name;
        found.kind = static_cast<NamedKind>(header.kind);
        std::memcpy(found.uuid, header.uuid, sizeof found.uuid);
        found.block = header.block;
        found.has_parts = kept->is_kept;
        return success();
      });
  if (!looked) return looked.error();
  return seen;
}

Result<std::vector<std::string>> clean_names() {
  std::vector<std::string> removed;
  const Status cleaned =
      for_each_file([&removed](const NameFolder& folder, const std::string& file_name, const std::string& name) {
        const auto swept = sweep(folder, file_name);
        if (!swept) return Status(swept.error());
        if (*swept) removed.push_back(name);
        return success();
      });
  if (!cleaned) return cleaned.error();
  return removed;
}

}  // namespace shmtree::discovery
