#include "platform/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "platform/atomics.h"
#include "platform/retry.h"

namespace shmtree::platform {

namespace {

constexpr std::uint64_t kMaxAtOnce = std::uint64_t{1} << 30;  // the kernel writes at most 2 GiB per call

void take_rights(int fd, const struct stat& from) noexcept {
  mode_t mode = from.st_mode & 07777;
  const auto keep = static_cast<uid_t>(-1);
  if (fchown(fd, from.st_uid, from.st_gid) != 0 && fchown(fd, keep, from.st_gid) != 0) {
    mode &= 0707u;  // its rights were those of another group
  }
  fchmod(fd, mode);
}

}  // namespace

Result<Folder> Folder::make(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return os_error("mkdir " + path, errno);
  return open(path);
}

Result<Folder> Folder::open(const std::string& path) {
  UniqueFd fd(retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return open_error(path);
  return Folder(path, std::move(fd));
}

Result<int> Folder::checked_fd() const {
  if (fd_.is_ours()) return fd_.number();
  return closed_by_program(fd_.number(), "cannot use " + path_);
}

Result<bool> Folder::lock(bool shared) {
  const auto folder = checked_fd();
  if (!folder) return folder.error();
  if (retry([&] { return flock(*folder, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return os_error("flock " + path_, errno);
}

Result<UniqueFd> Folder::create(const std::string& name, const std::string& like) const {
  crash_point();
  const auto folder = checked_fd();
  if (!folder) return folder.error();
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  UniqueFd fd(retry([&] { return openat(*folder, name.c_str(), kFlags, 0600); }));
  if (!fd.valid()) return os_error("create " + at(name), errno);
  struct stat old {};
  if (fstatat(*folder, like.c_str(), &old, 0) == 0 && S_ISREG(old.st_mode)) take_rights(fd.get(), old);
  return fd;
}

Result<UniqueFd> Folder::open_file(const std::string& name) const {
  const auto folder = checked_fd();
  if (!folder) return folder.error();
  UniqueFd fd(retry([&] { return openat(*folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd.valid()) return open_error(at(name));
  return fd;
}

Status Folder::rename(const std::string& from, const std::string& to) const {
  crash_point();
  const auto folder = checked_fd();
  if (!folder) return folder.error();
  if (renameat(*folder, from.c_str(), *folder, to.c_str()) == 0) return success();
  return os_error("rename " + at(from) + " to " + to, errno);
}

Status Folder::sync() const {
  const auto folder = checked_fd();
  if (!folder) return folder.error();
  return sync_file(*folder, path_);
}

void Folder::remove(const std::string& name) const noexcept {
  crash_point();
  if (fd_.is_ours()) unlinkat(fd_.number(), name.c_str(), 0);
}

Result<std::vector<std::string>> Folder::names() const {
  const auto folder = checked_fd();
  if (!folder) return folder.error();
  UniqueFd fd(retry([&] { return openat(*folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return os_error("open " + path_, errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fd.get()), closedir);
  if (entries == nullptr) return os_error("fdopendir " + path_, errno);
  static_cast<void>(fd.release());
  std::vector<std::string> names;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

Status write_at(int fd, std::uint64_t offset, const void* data, std::uint64_t bytes, const std::string& what) {
  const auto* from = static_cast<const std::byte*>(data);
  if (bytes > largest_file_bytes() || offset > largest_file_bytes() - bytes) return os_error("write " + what, EFBIG);
  while (bytes != 0) {
    crash_point();
    const std::uint64_t part = std::min(bytes, kMaxAtOnce);
    const ssize_t done = retry([&] { return pwrite(fd, from, part, static_cast<off_t>(offset)); });
    if (done <= 0) return os_error("write " + what, done < 0 ? errno : ENOSPC);
    from += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::uint64_t>(done);
  }
  return success();
}

void begin_sync(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

Status cut_file(int fd, std::uint64_t bytes, const std::string& what) {
  if (retry([&] { return ftruncate(fd, static_cast<off_t>(bytes)); }) == 0) return success();
  return os_error("ftruncate " + what, errno);
}

Status sync_file(int fd, const std::string& what) {
  crash_point();
  if (retry([&] { return fsync(fd); }) == 0) return success();
  return os_error("fsync " + what, errno);
}

}  // namespace shmtree::platform
