#include "platform/other_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace shmtree::platform {
namespace {

constexpr std::string_view kMemoryFile = "/memfd:";

Result<std::vector<int>> numbers_in(const std::string& directory) {
  std::vector<int> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory.c_str()), &closedir);
  if (entries == nullptr) return os_error("opendir " + directory, errno);
  while (const dirent* entry = readdir(entries.get())) {
    const char* end = entry->d_name + strlen(entry->d_name);
    int number = 0;
    const auto parsed = std::from_chars(entry->d_name, end, number);
    if (parsed.ec == std::errc{} && parsed.ptr == end) numbers.push_back(number);
  }
  return numbers;
}

std::string process_folder(int pid) {
  return "/proc/" + std::to_string(pid);
}

// Returns the /proc folders of the process's threads, the first thread first; only that one if the others are not
// visible.
Result<std::vector<std::string>> thread_folders(int pid) {
  std::vector<std::string> folders{process_folder(pid)};
  const auto threads = numbers_in(folders[0] + "/task");
  if (!threads && is_exhausted(threads.error())) return threads.error();
  for (const int thread : threads ? *threads : std::vector<int>{}) {
    if (thread != pid) folders.push_back(folders[0] + "/task/" + std::to_string(thread));
  }
  return folders;
}

// Returns the target of a descriptor's link. Empty, with errno set, if it cannot be read.
std::string link_of(const std::string& path) {
  char text[300];
  const ssize_t length = readlink(path.c_str(), text, sizeof text);
  return length < 0 ? std::string() : std::string(text, static_cast<std::size_t>(length));
}

// Returns nothing if the descriptor was closed meanwhile.
std::optional<OpenFile> look_at_descriptor(const std::string& path, int pid, int fd) {
  struct stat file {
  }, link{};
  // proc_pid_fd(5): the permissions of the link are those with which the file was opened.
  if (lstat(path.c_str(), &link) != 0 || stat(path.c_str(), &file) != 0) return std::nullopt;
  return OpenFile{
      pid, fd, {file.st_dev, file.st_ino}, (link.st_mode & S_IWUSR) == 0, path, link_of(path), file.st_nlink == 0};
}

struct ThreadState {
  char letter = 0;  // state of the thread; 0, with errno set, if it cannot be read
  unsigned flags = 0;
};

// Reads the `stat` of a thread. Needs no memory.
ThreadState thread_state(const char* stat_path) noexcept {
  char text[512];
  const UniqueFd file(open(stat_path, O_RDONLY | O_CLOEXEC));
  const ssize_t length = file.valid() ? read(file.get(), text, sizeof text - 1) : -1;
  if (length < 0) return {};
  text[length] = '\0';
  const char* state = strrchr(text, ')');  // the name may contain brackets
  if (state != nullptr && strlen(state) >= 3) {
    unsigned flags = 0;
    sscanf(state + 3, "%*d %*d %*d %*d %*d %u", &flags);
    return {state[2], flags};
  }
  errno = ESRCH;
  return {};
}

// Returns only the letter.
char state_in(const char* stat_path) noexcept {
  return thread_state(stat_path).letter;
}

// Reads all of a file of unknown size. Code::kNotFound if its process has ended.
Result<std::string> contents_of(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return open_error(path);
  std::string text;
  for (;;) {
    constexpr std::size_t kPiece = 4096;
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    const ssize_t length = read(file.get(), text.data() + before, kPiece);
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    if (length == 0) return text;
    if (length > 0) continue;
    Error error = os_error("read " + path, errno);
    if (error.os_errno == ESRCH) error.code = Code::kNotFound;
    return error;
  }
}

// Returns the rest of the line that begins with `key`, without the white space between them.
std::string field_of(const std::string& text, const std::string& key) {
  const std::size_t found = text.find("\n" + key);
  if (found == std::string::npos) return {};
  const std::size_t begin = text.find_first_not_of(" \t", found + 1 + key.size());
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find('\n', begin) - begin);
}

constexpr bool is_stop(char state) noexcept {
  return state == 'T' || state == 't';
}
constexpr bool is_end(char state) noexcept {
  return state == 'Z' || state == 'X';
}
constexpr bool has_gone(int failure) noexcept {
  return failure == ENOENT || failure == ESRCH;
}

constexpr unsigned kExiting = 4;  // PF_EXITING of the kernel

// Returns true if the thread does not exist any more, is a zombie, or is exiting. From then on only root may open its
// descriptors.
bool has_ended(const std::string& folder) {
  const ThreadState state = thread_state((folder + "/stat").c_str());
  return is_end(state.letter) || (state.flags & kExiting) != 0 || (state.letter == 0 && has_gone(errno));
}

// For a process with a first thread that has ended: returns true if another thread is stopped.
Result<bool> others_are_stopped(int pid) {
  const auto folders = thread_folders(pid);
  if (!folders) return folders.error();
  return std::any_of(folders->begin() + 1, folders->end(),
                     [](const std::string& folder) { return is_stop(state_in((folder + "/stat").c_str())); });
}

}  // namespace

Result<UniqueFd> open_from_process(int pid, int fd, Access access) {
  Error refused;
  const auto folders = thread_folders(pid);
  if (!folders) return folders.error();
  for (const std::string& folder : *folders) {
    const std::string path = folder + "/fd/" + std::to_string(fd);
    // If the descriptor refers to another file by now, do not open that file, because an open can have side effects.
    const std::string link = link_of(path);
    if (!link.empty() && link.compare(0, kMemoryFile.size(), kMemoryFile) != 0) break;
    if (!link.empty()) {
      UniqueFd opened(open(path.c_str(), (access == Access::kRead ? O_RDONLY : O_RDWR) | O_CLOEXEC));
      if (opened.valid()) return opened;
    }
    const int failure = errno;
    if (has_gone(failure)) continue;
    Error error = os_error("open " + path, failure);
    // The kernel also refuses descriptors of a thread that has ended.
    if (is_exhausted(error) || !has_ended(folder)) refused = std::move(error);
  }
  if (refused.os_errno == EACCES || refused.os_errno == EPERM) {
    refused.code = Code::kUnavailable;
    refused.message = "process " + std::to_string(pid) + " cannot be reached: " + refused.message +
                      "; it belongs to another user, or is not dumpable (because of setuid, file capabilities, or "
                      "prctl PR_SET_DUMPABLE)";
  }
  if (refused.os_errno != 0) return refused;
  return Error{Code::kNotFound,
               "process " + std::to_string(pid) + " has ended, has closed it, or is in another PID namespace", ENOENT};
}

Result<ProcessStatus> status_of(int pid) {
  const auto text = contents_of(process_folder(pid) + "/status");
  if (!text) return text.error();
  const std::string state = field_of(*text, "State:"), numbers = field_of(*text, "NSpid:");
  ProcessStatus status;
  status.is_stopped = !state.empty() && is_stop(state[0]);
  const std::size_t last = numbers.find_last_of(" \t") + 1;
  std::from_chars(numbers.data() + last, numbers.data() + numbers.size(), status.pid_inside);
  if (state.empty() || !is_end(state[0])) return status;
  const auto stopped = others_are_stopped(pid);
  if (!stopped) return stopped.error();
  status.is_stopped = *stopped;
  return status;
}

bool is_own_process(int pid) noexcept {
  struct stat status {};
  const std::string path = process_folder(pid);
  return stat(path.c_str(), &status) == 0 && status.st_uid == geteuid();
}

bool is_stopped(int pid) noexcept {
  char path[40];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const char state = state_in(path);
  return is_stop(state) || (state == 0 && has_gone(errno));
}

namespace {

std::string link_of_memory(const std::string& name) {
  return std::string(kMemoryFile) + name + " (deleted)";
}

// Visits the descriptors of one process that lead to `links`. Returns true if `visit` has returned true.
Result<bool> visit_files(int pid, const std::vector<std::string>& links,
                         const std::function<bool(const OpenFile&)>& visit) {
  if (!is_own_process(pid)) return false;
  const auto folders = thread_folders(pid);
  if (!folders) return folders.error();
  for (const std::string& folder : *folders) {
    const auto descriptors = numbers_in(folder + "/fd");
    if (!descriptors && is_exhausted(descriptors.error())) return descriptors.error();
    if (!descriptors || descriptors->empty()) continue;
    for (const int fd : *descriptors) {
      const std::string path = folder + "/fd/" + std::to_string(fd);
      const std::string link = link_of(path);
      if (std::find(links.begin(), links.end(), link) == links.end()) continue;
      const auto file = look_at_descriptor(path, pid, fd);
      const bool is_still_it = link_of(path) == link;  // the number was not reused
      if (file && is_still_it && visit(*file)) return true;
    }
    return false;  // all threads share the descriptors
  }
  return false;
}

}  // namespace

Status find_files(const std::vector<std::string>& links, const std::function<bool(const OpenFile&)>& visit) {
  const auto pids = numbers_in("/proc");
  if (!pids) return pids.error();
  for (const int pid : *pids) {
    const auto is_enough = visit_files(pid, links, visit);
    if (!is_enough) return is_enough.error();
    if (*is_enough) break;
  }
  return success();
}

Status find_memory_file(const std::string& name, const std::function<bool(const OpenFile&)>& visit) {
  return find_files({link_of_memory(name)}, visit);
}

std::string path_in_proc(int fd) {
  return link_of("/proc/self/fd/" + std::to_string(fd));
}

bool shares_a_lock(const OpenFile& file) {
  const std::size_t last = file.path.rfind("/fd/");
  if (last == std::string::npos) return false;
  const auto text = contents_of(file.path.substr(0, last) + "/fdinfo/" + std::to_string(file.fd));
  const std::string lock = text ? field_of(*text, "lock:") : std::string();
  return lock.find(" READ ") != std::string::npos;
}

bool any_process_is_exiting() {
  const auto is_exiting = [](const std::string& folder) {
    const ThreadState state = thread_state((folder + "/stat").c_str());
    return (state.flags & kExiting) != 0 && !is_end(state.letter);
  };
  const auto pids = numbers_in("/proc");
  for (const int pid : pids ? *pids : std::vector<int>{}) {
    if (!is_own_process(pid)) continue;
    const ThreadState first = thread_state((process_folder(pid) + "/stat").c_str());
    if ((first.flags & kExiting) == 0) continue;  // other threads keep the descriptors open
    const auto folders = thread_folders(pid);
    if (folders && std::any_of(folders->begin(), folders->end(), is_exiting)) return true;
  }
  return false;
}

Result<std::optional<OpenFile>> find_memory_file_of(int pid, const std::string& name, FileId id) {
  std::optional<OpenFile> found;
  const auto searched = visit_files(pid, {link_of_memory(name)}, [&](const OpenFile& one) {
    if (one.id == id && !one.is_read_only) found = one;
    return found.has_value();
  });
  if (!searched) return searched.error();
  return found;
}

}  // namespace shmtree::platform
