#include "observe/openers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shmtree::observer {

namespace {

ObservedOpener opener_of(const platform::OpenFile& file) {
  return {.pid = file.pid, .fd = file.fd, .read_only = file.is_read_only};
}

class Search {
 public:
  // Fails if this process has no free descriptor with which to read the status of the other process.
  Status add(const platform::OpenFile& file) {
    OpenArena& arena = found_.try_emplace(file.id, OpenArena{.id = file.id}).first->second;
    auto& openers = file.is_read_only ? arena.observers : arena.users;
    if (!openers.empty() && openers.back().pid == file.pid) return success();
    openers.push_back(opener_of(file));
    return file.is_read_only ? success() : add_process(file.pid, arena.processes);
  }

  std::vector<OpenArena> found() && {
    std::vector<OpenArena> arenas;
    for (auto& [id, one] : found_) arenas.push_back(std::move(one));
    return arenas;
  }

 private:
  // A process that has exited meanwhile, or is hidden, gets an empty status without a pid in its own namespace.
  Status add_process(int pid, std::vector<Process>& to) {
    if (last_.pid != pid) {
      const auto status = platform::status_of(pid);
      if (!status && platform::is_exhausted(status.error())) return status.error();
      last_ = {pid, status ? *status : platform::ProcessStatus{}};
    }
    to.push_back(last_);
    return success();
  }

  std::map<platform::FileId, OpenArena> found_{};
  Process last_{};  // the search returns the descriptors of one process after another
};

}  // namespace

Result<std::vector<OpenArena>> find_open_arenas() {
  Search search;
  Status added = success();
  const Status searched = platform::find_memory_file(memory::kFileName, [&](const platform::OpenFile& file) {
    added = search.add(file);
    return !added.ok();
  });
  if (!searched) return searched.error();
  if (!added) return added.error();
  return std::move(search).found();
}

Result<bool> add_newcomer(OpenArena& arena, int pid) {
  const auto is_it = [pid](const Process& one) { return one.pid == pid || one.status.pid_inside == pid; };
  if (std::any_of(arena.processes.begin(), arena.processes.end(), is_it)) return false;
  const auto file = platform::find_memory_file_of(pid, memory::kFileName, arena.id);
  if (!file) return file.error();
  if (!*file) return false;
  const auto status = platform::status_of(pid);
  if (!status && platform::is_exhausted(status.error())) return status.error();
  if (!status || status->pid_inside != pid) return false;
  arena.users.push_back(opener_of(**file));
  arena.processes.push_back({pid, *status});
  return true;
}

namespace {

// Opens the file with this identity that the process has at this descriptor. kNotFound if that descriptor is not open,
// or refers to another file.
Result<platform::UniqueFd> open_same_file(int pid, int fd, platform::FileId id) {
  auto opened = platform::open_from_process(pid, fd, platform::Access::kRead);
  if (!opened) return opened;
  const auto found = platform::file_id(opened->get());
  if (found && *found == id) return opened;
  return Error{Code::kNotFound, "process " + std::to_string(pid) + " now has another file at that descriptor"};
}

// Like open_same_file(), but falls back to any descriptor of the process. A process that forks opens descriptors for
// its child, and closes them after the fork.
Result<platform::UniqueFd> open_file_of(const ObservedOpener& one, platform::FileId id) {
  auto opened = open_same_file(one.pid, one.fd, id);
  if (opened || opened.code() != Code::kNotFound || one.read_only) return opened;
  const auto other = platform::find_memory_file_of(one.pid, memory::kFileName, id);
  if (!other) return other.error();
  return *other ? open_same_file(one.pid, (*other)->fd, id) : std::move(opened);
}

}  // namespace

Result<platform::UniqueFd> open_arena(const OpenArena& arena) {
  Error error{.code = Code::kNotFound, .message = "every process that was attached to it has ended"};
  for (const auto* openers : {&arena.users, &arena.observers}) {
    for (const ObservedOpener& one : *openers) {
      auto opened = open_file_of(one, arena.id);
      if (opened) return opened;
      if (opened.code() != Code::kNotFound) error = opened.error();
    }
  }
  return error;
}

}  // namespace shmtree::observer
