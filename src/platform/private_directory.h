// Small files that only their user may access: a directory of mode 0700, and files of mode 0600 that appear complete.
//
// Trusts nothing that another user could have created: does not follow links, and checks owner and mode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "platform/checked_fd.h"
#include "platform/file.h"
#include "platform/other_process.h"

namespace shmtree::platform {

// Returns the paths where this user's directories called `name` may be: in /dev/shm, in /run/user/<uid>, in /tmp, and
// in $XDG_RUNTIME_DIR. The first three do not depend on the environment. /dev/shm comes first, because services with a
// private /tmp or without /run/user see it.
std::vector<std::string> private_directories(const std::string& name);
// Returns the value of an environment variable; empty if it is not set.
std::string environment_variable(const char* name);

enum class IfMissing { kFail, kCreate };
// Code::kNotFound if it is missing and `missing` is kFail; Code::kOs with EPERM if other users can access it.
Result<UniqueFd> open_private_directory(const std::string& path, IfMissing missing);
// Opens an empty file of a name that begins with a dot, for locks of its bytes. Creates it if it is missing.
Result<UniqueFd> open_hidden_file(int directory, const char* name);

// Excludes other processes that lock the same key in the same directory, by locking a byte of a hidden file in it. The
// lock ends with its holder.
class DirectoryLock {
 public:
  // Waits at most `timeout_ns` (Code::kTimeout). Another error if the directory cannot be written.
  static Result<DirectoryLock> take(int directory, std::uint32_t key, std::int64_t timeout_ns);
  // Unlocks explicitly, since a process forked meanwhile also has the descriptor.
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&&) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

 private:
  DirectoryLock(UniqueFd fd, std::uint64_t byte) noexcept : fd_(std::move(fd)), byte_(byte) {}
  UniqueFd fd_;
  std::uint64_t byte_;
};

// An open file of a directory, locked through its own file description.
//
// Independently of that lock, processes may keep *parts* in the file. A part is a descriptor with a shared lock on a
// byte of the file. It shows that its holder is alive, even to processes that cannot see the holder otherwise. There
// are two kinds.
enum class PartKind : std::uint64_t { kOwn = 1, kForOthers = 2 };  // the locked byte
class LockedFile {
 public:
  // Opens and locks the file. On return the file still has that name. Returns kTimeout if it cannot lock the file
  // within `timeout_ns`, and kNotFound if there is no such file.
  static Result<LockedFile> open(int directory, const std::string& name, std::int64_t timeout_ns);

  Result<std::vector<std::byte>> read() const;
  // Overwrites `bytes` at `offset`; the file grows as needed.
  Status write(std::uint64_t offset, const void* data, std::uint64_t bytes) const;
  Result<UniqueFd> take_part(PartKind kind = PartKind::kOwn) const;
  // True if any process has a part of that kind in the file.
  bool has_parts(PartKind kind = PartKind::kOwn) const noexcept;
  // Returns the pids of this user's processes that keep parts in the file, as far as /proc shows them.
  Result<std::vector<int>> part_holders() const;
  // Removes the file, then empties it. A process that still has it open sees that it is empty, so it knows that shmtree
  // removed it, and no other program did. The lock stays until this object is destroyed.
  Status remove() const;

  // Unlocks explicitly: a process forked meanwhile also has the descriptor, and would keep the lock if this one were
  // only closed.
  ~LockedFile();
  LockedFile(LockedFile&&) noexcept = default;
  LockedFile& operator=(LockedFile&& other) noexcept;

 private:
  LockedFile(int directory, std::string name, UniqueFd fd)
      : directory_(directory), name_(std::move(name)), fd_(std::move(fd)) {}
  int directory_;
  std::string name_;
  UniqueFd fd_;
};

// Takes a part for another process, such as a child, in the file of this one.
Result<UniqueFd> another_part(const CheckedFd& part);
// Ends a part of this process, also in the copies of its descriptor in processes that were forked meanwhile.
void end_part(CheckedFd& part) noexcept;
void end_part(UniqueFd part) noexcept;

// Creates a file with these bytes, which becomes visible only when complete. Returns a part in it. Code::kExists if
// there is one of that name.
Result<UniqueFd> create_private_file(int directory, const std::string& name, const void* data, std::uint64_t bytes);

// Contents of a file, and whether any process has parts in it, read without its lock: another process may write it
// meanwhile.
struct PrivateFile {
  std::vector<std::byte> bytes{};
  bool has_parts = false, has_parts_for_others = false;
};
Result<PrivateFile> stat_private_file(int directory, const std::string& name);
// Reads it by a descriptor of another process. Fails if the descriptor leads to another file by now.
Result<PrivateFile> stat_private_file(const OpenFile& file);

// True if any process has a part of that kind in that file. Waits for no lock.
Result<bool> has_parts(int directory, const std::string& name, PartKind kind = PartKind::kOwn);

// Returns the names of the directory's files, sorted; at most the first `most` that the system lists.
Result<std::vector<std::string>> list_directory(int directory, std::size_t most = SIZE_MAX);

}  // namespace shmtree::platform
