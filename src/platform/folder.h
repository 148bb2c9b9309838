// Files of a folder that must be complete after a crash of the machine. The contract of file.h applies.
#pragma once

#include <string>
#include <vector>

#include "platform/checked_fd.h"

namespace shmtree::platform {

class Folder {
 public:
  // Opens the folder; make() creates it if there is none. Its parent must exist.
  static Result<Folder> make(const std::string& path);
  static Result<Folder> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }

  // Locks the folder while it is open. False if another process has locked it. Any number of processes may have shared
  // locks.
  Result<bool> lock(bool shared);

  // Makes a new file for writing, which must not exist. It gets the mode of the file `like`, and its owner if the
  // process may set it. Without such a file, only this user has access.
  Result<UniqueFd> create(const std::string& name, const std::string& like) const;
  // Opens an existing file for reading, or returns kNotFound.
  Result<UniqueFd> open_file(const std::string& name) const;
  // Renames a file; it replaces an existing `to` atomically.
  Status rename(const std::string& from, const std::string& to) const;
  // Makes created and renamed names survive a crash of the machine from now on.
  Status sync() const;
  void remove(const std::string& name) const noexcept;
  Result<std::vector<std::string>> names() const;

 private:
  Folder(std::string path, UniqueFd fd) noexcept : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  Result<int> checked_fd() const;

  std::string path_;
  CheckedFd fd_;
};

// Writes all bytes. Code::kOs with ENOSPC or EFBIG if there is no space; the error names `what`.
Status write_at(int fd, std::uint64_t offset, const void* data, std::uint64_t bytes, const std::string& what);
// Starts to write the range to the disk. A hint.
void begin_sync(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
// Truncates the file.
Status cut_file(int fd, std::uint64_t bytes, const std::string& what);
// Blocks until the file is on the disk.
Status sync_file(int fd, const std::string& what);

}  // namespace shmtree::platform
