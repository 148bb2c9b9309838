// Other processes of this user as /proc shows them: whether they live, and the memory files that they have open.
//
// A process whose first thread has ended looks dead to everyone who asks for it by its number. It is asked by way of
// its other threads.
#pragma once

#include <functional>
#include <string>

#include "platform/file.h"

namespace shmtree::platform {

enum class Access { kRead, kReadAndWrite };

// The memory file that process `pid` has at descriptor `fd`, as a descriptor of our own. Code::kUnavailable where the
// kernel does not let us, and Code::kNotFound where there is no such process or memory file.
Result<UniqueFd> open_from_process(int pid, int fd, Access access = Access::kReadAndWrite);

// The number that process `pid` has in its own PID namespace, which is `pid` where that is ours, too. 0 where that
// cannot be seen.
int pid_in_its_namespace(int pid);

// Whether there is a process of this number, and it belongs to this user.
bool is_own_process(int pid) noexcept;

// Whether it was stopped (SIGSTOP, a debugger), or nothing can be seen of it. One that merely does not get a processor
// is not stopped.
bool is_stopped(int pid) noexcept;

// Calls `visit` with process and descriptor for the memory files called `name` that processes of this user have open,
// until it returns true. Looks at every descriptor of all of them: for when nothing better is known. `unseen` is told
// of a process, or with 0 of all, whose descriptors cannot be listed since this one has no more of its own, or no
// memory.
void find_memory_file(const std::string& name, const std::function<bool(int pid, int fd)>& visit,
                      const std::function<void(int pid, const Error& why)>& unseen = {});

}  // namespace shmtree::platform
