// Small files that only their user may see: a directory of mode 0700, files of mode 0600, each created whole.
//
// Nothing is trusted that another user could have put there: links are not followed, and owner and mode are checked.
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

// Where this user's directories called `name` may be: in /dev/shm, in /run/user/<uid>, in /tmp, and in
// $XDG_RUNTIME_DIR. The first three do not depend on the environment. /dev/shm is the first because services see it
// that have a /tmp of their own, or no /run/user.
std::vector<std::string> private_directories(const std::string& name);
// The value of an environment variable; empty without one.
std::string environment_variable(const char* name);

enum class IfMissing { kFail, kCreate };
// Code::kNotFound if it is missing and `missing` is kFail; Code::kOs with EPERM if other users can access it.
Result<UniqueFd> open_private_directory(const std::string& path, IfMissing missing);

// Excludes other processes that lock the same key in the same directory, by a byte of a hidden file in it. The lock
// goes with its holder.
class DirectoryLock {
 public:
  // Waits at most `timeout_ns` (Code::kTimeout). Another error if the directory cannot be written.
  static Result<DirectoryLock> take(int directory, std::uint32_t key, std::int64_t timeout_ns);
  // Unlocks: a process forked meanwhile has the descriptor too.
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&&) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

 private:
  DirectoryLock(UniqueFd fd, std::uint64_t byte) noexcept : fd_(std::move(fd)), byte_(byte) {}
  UniqueFd fd_;
  std::uint64_t byte_;
};

// An open file of a directory, with its lock taken through a description of its own. Apart from that lock, processes
// may keep parts in a file, of either kind: descriptors that tell others that they live, whatever they can see of each
// other otherwise.
enum class PartKind : std::uint64_t { kOwn = 1, kForOthers = 2 };  // the byte that is locked
class LockedFile {
 public:
  // Waits for the lock at most `timeout_ns` (Code::kTimeout). The file is still the one called `name` when it returns.
  // Code::kNotFound when there is none.
  static Result<LockedFile> open(int directory, const std::string& name, std::int64_t timeout_ns);

  Result<std::vector<std::byte>> read() const;
  // Replaces `bytes` from `offset` on; the file grows as needed.
  Status write(std::uint64_t offset, const void* data, std::uint64_t bytes) const;
  Result<UniqueFd> take_part(PartKind kind = PartKind::kOwn) const;
  // Whether anybody has a part of that kind in it.
  bool has_parts(PartKind kind = PartKind::kOwn) const noexcept;
  // Of the processes of this user that keep parts in it, as far as /proc shows them.
  Result<std::vector<int>> part_holders() const;
  // Removes the file, and then what it has: descriptors of it show that it was not removed from outside. The lock stays
  // until this object goes.
  Status remove() const;

  // Unlocks: a process forked meanwhile has the descriptor too, and closing ours would leave it locked.
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

// A part for somebody else, such as a child, in the file of this one.
Result<UniqueFd> another_part(const CheckedFd& part);
// Ends a part of this process, in the copies of its descriptor that processes forked meanwhile have as well.
void end_part(CheckedFd& part) noexcept;
void end_part(UniqueFd part) noexcept;

// A new file with these bytes, visible only when it is whole. Code::kExists when there is one of that name. Returns a
// part in it.
Result<UniqueFd> create_private_file(int directory, const std::string& name, const void* data, std::uint64_t bytes);

// What is in that file, and whether anybody has parts in it, without its lock: it may be written meanwhile.
struct PrivateFile {
  std::vector<std::byte> bytes{};
  bool has_parts = false, has_parts_for_others = false;
};
Result<PrivateFile> look_at_private_file(int directory, const std::string& name);
// The same by a descriptor of another process. An error if that leads to another file by now.
Result<PrivateFile> look_at_private_file(const OpenFile& file);

// Whether anybody has a part of that kind in that file. Waits for no lock.
Result<bool> has_parts(int directory, const std::string& name, PartKind kind = PartKind::kOwn);

// The names of its files, sorted; of the first `most` that the system gives, where there are more.
Result<std::vector<std::string>> list_directory(int directory, std::size_t most = SIZE_MAX);

}  // namespace shmtree::platform
