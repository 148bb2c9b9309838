// Files of a folder that have to be whole after the machine's next crash. What file.h says of its calls is true of
// these.
#pragma once

#include <string>
#include <vector>

#include "platform/checked_fd.h"

namespace shmtree::platform {

class Folder {
 public:
  // Opens the folder, and makes it where there is none (its parents have to be there).
  static Result<Folder> make(const std::string& path);
  static Result<Folder> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }

  // For as long as the folder is open; false when another has it. Any number may share a lock.
  Result<bool> lock(bool shared);

  // A file that is not there yet, to be written; and one that is, to be read: kNotFound when it is not.
  Result<UniqueFd> create(const std::string& name) const;
  Result<UniqueFd> open_file(const std::string& name) const;
  // Takes the place of another one at once.
  Status rename(const std::string& from, const std::string& to) const;
  // Names stay, and those that were renamed, when the machine crashes from now on.
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

// Code::kOs with ENOSPC or EFBIG where there is no room; `what` is named.
Status write_at(int fd, std::uint64_t offset, const void* data, std::uint64_t bytes, const std::string& what);
// What was written goes on its way to the disk. A hint.
void begin_sync(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
// The file ends there.
Status cut_file(int fd, std::uint64_t bytes, const std::string& what);
// It is on the disk.
Status sync_file(int fd, const std::string& what);

}  // namespace shmtree::platform
