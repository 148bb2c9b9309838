// Information from /proc about other processes of this user: if they are alive, and the memory files that they have
// open.
//
// A process looks dead when queried by pid once its first thread has ended. These functions query its other threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "platform/file.h"

namespace shmtree::platform {

enum class Access { kRead, kReadAndWrite };

// Opens the memory file that process `pid` has at descriptor `fd`. Code::kUnavailable if the kernel refuses;
// Code::kNotFound if there is no such process or memory file.
Result<UniqueFd> open_from_process(int pid, int fd, Access access = Access::kReadAndWrite);

// Pid and state of a process.
struct ProcessStatus {
  int pid_inside = 0;  // its pid in its own PID namespace, which may be ours
  bool is_stopped = false;
};
// Returns the status of a process. Code::kNotFound if it has ended.
Result<ProcessStatus> status_of(int pid);

// True if a process of this pid exists and belongs to this user.
bool is_own_process(int pid) noexcept;

// True if the process is stopped (SIGSTOP, a debugger) or cannot be seen. A process that merely waits for a core is not
// stopped.
bool is_stopped(int pid) noexcept;

// A descriptor of a process.
struct OpenFile {
  int pid = 0, fd = -1;
  FileId id{};
  bool is_read_only = false;
  std::string path{};  // of the descriptor in /proc
  std::string link{};  // its target, as /proc shows it
  bool is_removed = false;
};

// Calls `visit` for each descriptor of this user's processes that leads to one of `links`, as /proc shows them, until
// it returns true. Reads the link of every descriptor of those processes. Errors as of find_memory_file().
Status find_files(const std::vector<std::string>& links, const std::function<bool(const OpenFile&)>& visit);

// Calls `visit` for the memory files called `name` that processes of this user have open, until it returns true. Scans
// every descriptor of all of them, so it is a last resort. Keeps no descriptor open meanwhile. Fails if this process
// has no free descriptor; skips processes that it may not inspect.
Status find_memory_file(const std::string& name, const std::function<bool(const OpenFile&)>& visit);
// Returns the descriptor through which that process may write to that memory file, if it has one.
Result<std::optional<OpenFile>> find_memory_file_of(int pid, const std::string& name, FileId id);

// Returns the path of an open file of this process, as /proc shows it. That of a removed file ends with " (deleted)".
std::string path_in_proc(int fd);
// True if the descriptor itself holds a shared lock on its file (share_byte_lock(), not another descriptor's).
bool shares_a_lock(const OpenFile& file);
// True if a process of this user is exiting. Its descriptors are no longer visible, but it may hold locks of their
// files until it is a zombie or is reaped.
bool any_process_is_exiting();

}  // namespace shmtree::platform
