// Other processes of this user as /proc shows them: whether they live, and the memory files that they have open.
//
// A process whose first thread has ended looks dead to everyone who asks for it by its number. It is asked by way of
// its other threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "platform/file.h"

namespace shmtree::platform {

enum class Access { kRead, kReadAndWrite };

// The memory file that process `pid` has at descriptor `fd`, as a descriptor of our own. Code::kUnavailable where the
// kernel does not let us, and Code::kNotFound where there is no such process or memory file.
Result<UniqueFd> open_from_process(int pid, int fd, Access access = Access::kReadAndWrite);

// What a process is called, and does.
struct ProcessStatus {
  int pid_inside = 0;  // its number in its own PID namespace, which is the one here where that is ours, too
  bool is_stopped = false;
};
// Code::kNotFound when it has ended.
Result<ProcessStatus> status_of(int pid);

// Whether there is a process of this number, and it belongs to this user.
bool is_own_process(int pid) noexcept;

// Whether it was stopped (SIGSTOP, a debugger), or is not to be seen. One that merely does not get a processor is not
// stopped.
bool is_stopped(int pid) noexcept;

// A descriptor of a process.
struct OpenFile {
  int pid = 0, fd = -1;
  FileId id{};
  bool is_read_only = false;
  std::string path{};  // of the descriptor, in /proc
  std::string link{};  // where that leads, as /proc shows it
  bool is_removed = false;
};

// Calls `visit` for each descriptor of this user's processes that leads to one of `links`, as /proc shows them, until
// it returns true. Reads every descriptor's link, of all of those processes. Errors as of find_memory_file().
Status find_files(const std::vector<std::string>& links, const std::function<bool(const OpenFile&)>& visit);

// Calls `visit` for the memory files called `name` that processes of this user have open, until it returns true. Looks
// at every descriptor of all of them: for when nothing better is known. Keeps none open meanwhile. An error when this
// process has no descriptor left to look with; processes that are not to be looked into are passed over.
Status find_memory_file(const std::string& name, const std::function<bool(const OpenFile&)>& visit);
// The descriptor through which that process may write to that memory file, if it has one.
Result<std::optional<OpenFile>> find_memory_file_of(int pid, const std::string& name, FileId id);

// The path of an open file of this process, as /proc shows it: that of a removed file ends with " (deleted)".
std::string path_in_proc(int fd);
// True if the descriptor itself holds a shared lock on its file (share_byte_lock(), not another descriptor's).
bool shares_a_lock(const OpenFile& file);
// True if a process of this user is exiting. Its descriptors cannot be seen any more, but until it is a zombie, or
// gone, it may hold the locks of their files.
bool any_process_is_exiting();

}  // namespace shmtree::platform
