#include "platform/other_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

namespace shmtree::platform {
namespace {

constexpr std::string_view kMemoryFile = "/memfd:";

// Nothing, and errno, where it cannot be read.
std::vector<int> numbers_in(const std::string& directory) {
  std::vector<int> numbers;
  errno = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory.c_str()), &closedir);
  if (entries == nullptr) return numbers;
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

// Of each thread, the first one first.
std::vector<std::string> thread_folders(int pid) {
  std::vector<std::string> folders{process_folder(pid)};
  for (const int thread : numbers_in(folders[0] + "/task")) {
    if (thread != pid) folders.push_back(folders[0] + "/task/" + std::to_string(thread));
  }
  return folders;
}

// Where a descriptor leads; empty, and errno, where that cannot be seen.
std::string link_of(const std::string& path) {
  char text[300];
  const ssize_t length = readlink(path.c_str(), text, sizeof text);
  return length < 0 ? std::string() : std::string(text, static_cast<std::size_t>(length));
}

// The letter for what a thread does, from its `stat`; 0 where that cannot be seen. Needs no memory.
char state_in(const char* stat_path) noexcept {
  char text[512];
  const UniqueFd file(open(stat_path, O_RDONLY | O_CLOEXEC));
  const ssize_t length = file.valid() ? read(file.get(), text, sizeof text - 1) : -1;
  if (length < 0) return 0;
  text[length] = '\0';
  const char* state = strrchr(text, ')');  // its name may have brackets too
  return state == nullptr || strlen(state) < 3 ? '\0' : state[2];
}

// A thread that has ended and not been reaped.
bool is_zombie(const std::string& folder) {
  const char state = state_in((folder + "/stat").c_str());
  return state == 0 || state == 'Z' || state == 'X';
}

}  // namespace

Result<UniqueFd> open_from_process(int pid, int fd, Access access) {
  Error refused;
  for (const std::string& folder : thread_folders(pid)) {
    const std::string path = folder + "/fd/" + std::to_string(fd);
    // Whatever else it is by now must not be opened: that can have effects.
    const std::string link = link_of(path);
    if (!link.empty() && link.compare(0, kMemoryFile.size(), kMemoryFile) != 0) break;
    if (!link.empty()) {
      UniqueFd opened(open(path.c_str(), (access == Access::kRead ? O_RDONLY : O_RDWR) | O_CLOEXEC));
      if (opened.valid()) return opened;
    }
    // The kernel refuses also what an ended thread no longer has.
    const int failure = errno;
    if (failure != ENOENT && failure != ESRCH && !is_zombie(folder)) refused = os_error("open " + path, failure);
  }
  if (refused.os_errno == EACCES || refused.os_errno == EPERM) {
    refused.code = Code::kUnavailable;
    refused.message += "; the process belongs to another user or is not dumpable";
  }
  if (refused.os_errno != 0) return refused;
  return Error{Code::kNotFound,
               "process " + std::to_string(pid) + " has ended, let go of it, or is in another PID namespace", ENOENT};
}

int pid_in_its_namespace(int pid) {
  std::ifstream status(process_folder(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, 6, "NSpid:") != 0) continue;
    std::istringstream numbers(line.substr(6));
    int number = 0;
    while (numbers >> number) {
    }
    return number;
  }
  return 0;
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
  return state == 0 || state == 'T' || state == 't';
}

void find_memory_file(const std::string& name, const std::function<bool(int pid, int fd)>& visit,
                      const std::function<void(int pid, const Error& why)>& unseen) {
  const std::string link = std::string(kMemoryFile) + name + " (deleted)";
  const auto list = [&unseen](int pid, const std::string& folder) {
    std::vector<int> numbers = numbers_in(folder);
    const int failure = errno;
    const bool is_ours = failure == EMFILE || failure == ENFILE || failure == ENOMEM;
    if (numbers.empty() && is_ours && unseen) unseen(pid, os_error("opendir " + folder, failure));
    return numbers;
  };
  for (const int pid : list(0, "/proc")) {
    if (!is_own_process(pid)) continue;
    for (const std::string& folder : thread_folders(pid)) {
      const std::vector<int> descriptors = list(pid, folder + "/fd");
      for (const int fd : descriptors) {
        if (link_of(folder + "/fd/" + std::to_string(fd)) == link && visit(pid, fd)) return;
      }
      if (!descriptors.empty()) break;  // all threads have the same
    }
  }
}

}  // namespace shmtree::platform
