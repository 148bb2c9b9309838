#include "platform/private_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "platform/clock.h"
#include "platform/machine.h"
#include "platform/retry.h"

namespace shmtree::platform {
namespace {

constexpr std::uint64_t kLockByte = 0;
constexpr std::uint64_t byte_of(PartKind kind) noexcept {
  return static_cast<std::uint64_t>(kind);
}

Error of_other_user(const std::string& what, uid_t owner) {
  return Error{Code::kOs,
               what + " belongs to user " + std::to_string(owner) + ", and this is user " + std::to_string(geteuid()),
               EPERM};
}

// Checks that the file belongs to our user, and that no other user has any access.
Status check_private(int fd, const std::string& what) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return os_error("fstat " + what, errno);
  if (status.st_uid != geteuid()) return of_other_user(what, status.st_uid);
  if ((status.st_mode & 077) == 0) return success();
  return Error{Code::kOs,
               what + " is not this user's alone: its mode is " + std::to_string((status.st_mode >> 6) & 7) +
                   std::to_string((status.st_mode >> 3) & 7) + std::to_string(status.st_mode & 7) + ", and must be " +
                   (S_ISDIR(status.st_mode) ? "700" : "600"),
               EPERM};
}

Status write_all(int fd, std::uint64_t offset, const void* data, std::uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  if (largest_file_bytes() < offset + bytes) {  // a longer one raises SIGXFSZ
    return os_error("a file of " + std::to_string(offset + bytes) + " bytes is over RLIMIT_FSIZE (ulimit -f)", EFBIG);
  }
  while (bytes != 0) {
    const ssize_t put = retry([&] { return pwrite(fd, from, bytes, static_cast<off_t>(offset)); });
    if (put < 0) return os_error("pwrite", errno);
    from += put;
    offset += static_cast<std::uint64_t>(put);
    bytes -= static_cast<std::uint64_t>(put);
  }
  return success();
}

UniqueFd open_in(int directory, const std::string& name) noexcept {
  return UniqueFd(retry([&] { return openat(directory, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
}

std::string random_name() {
  unsigned char bytes[12];
  random_bytes(bytes, sizeof bytes);
  std::string name = ".new-";
  for (const unsigned char byte : bytes) name += "0123456789abcdef"[byte & 15];
  return name;
}

Result<std::vector<std::byte>> read_all(int fd) {
  auto size = file_size(fd);
  if (!size) return std::move(size).error();
  std::vector<std::byte> bytes(std::min<std::uint64_t>(*size, 1u << 20));
  if (!read_at(fd, 0, bytes.data(), bytes.size())) return os_error("pread", errno);
  return bytes;
}

}  // namespace

std::vector<std::string> private_directories(const std::string& name) {
  const std::string user = std::to_string(geteuid());
  std::vector<std::string> found{"/dev/shm/" + name + "-" + user, "/run/user/" + user + "/" + name,
                                 "/tmp/" + name + "-" + user};
  std::string runtime = environment_variable("XDG_RUNTIME_DIR");
  while (runtime.size() > 1 && runtime.back() == '/') runtime.pop_back();
  if (runtime.empty() || runtime[0] != '/') return found;
  runtime += "/" + name;
  if (std::find(found.begin(), found.end(), runtime) == found.end()) found.push_back(std::move(runtime));
  return found;
}

std::string environment_variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

Result<UniqueFd> open_private_directory(const std::string& path, IfMissing missing) {
  if (missing == IfMissing::kCreate && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return os_error("mkdir " + path, errno);
  UniqueFd fd(retry([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
  if (!fd.valid()) {
    Error error = open_error(path);
    struct stat status {};
    const bool is_there = error.code != Code::kNotFound && lstat(path.c_str(), &status) == 0;
    return is_there && status.st_uid != geteuid() ? of_other_user(path, status.st_uid) : std::move(error);
  }
  Status checked = check_private(fd.get(), path);
  if (!checked) return std::move(checked).error();
  return fd;
}

Result<UniqueFd> open_hidden_file(int directory, const char* name) {
  UniqueFd fd(
      retry([&] { return openat(directory, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600); }));
  if (!fd.valid()) return os_error(std::string("open ") + name, errno);
  Status checked = check_private(fd.get(), name);
  if (!checked) return std::move(checked).error();
  return fd;
}

namespace {

// False if the file was replaced, or removed, since it was opened.
bool is_still_called(int directory, const std::string& name, int fd) noexcept {
  struct stat mine {
  }, named{};
  return fstat(fd, &mine) == 0 && fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

}  // namespace

Result<DirectoryLock> DirectoryLock::take(int directory, std::uint32_t key, std::int64_t timeout_ns) {
  const std::string name = ".lock";
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  for (;;) {
    auto fd = open_hidden_file(directory, name.c_str());
    if (!fd) return std::move(fd).error();
    auto locked = try_lock_byte(fd->get(), key);
    if (!locked) return std::move(locked).error();
    if (*locked) {
      if (is_still_called(directory, name, fd->get())) return DirectoryLock(std::move(*fd), key);
      continue;
    }
    if (deadline.passed())
      return Error{Code::kTimeout, "another process has been making a name here for too long; try again"};
    pause_briefly();
  }
}

DirectoryLock::~DirectoryLock() {
  if (fd_.valid()) unlock_byte(fd_.get(), byte_).ok();
}

Result<LockedFile> LockedFile::open(int directory, const std::string& name, std::int64_t timeout_ns) {
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  for (;;) {
    UniqueFd fd = open_in(directory, name);
    if (!fd.valid()) return open_error(name);
    Status checked = check_private(fd.get(), name);
    if (!checked) return std::move(checked).error();
    auto locked = try_lock_byte(fd.get(), kLockByte);
    if (!locked) return std::move(locked).error();
    if (*locked) {
      if (is_still_called(directory, name, fd.get())) return LockedFile(directory, name, std::move(fd));
      continue;
    }
    if (deadline.passed())
      return Error{Code::kTimeout, "another process keeps the lock of the file of the name " + name};
    pause_briefly();
  }
}

LockedFile& LockedFile::operator=(LockedFile&& other) noexcept {
  std::swap(directory_, other.directory_);
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  return *this;
}

LockedFile::~LockedFile() {
  if (fd_.valid()) unlock_byte(fd_.get(), kLockByte).ok();
}

Result<std::vector<std::byte>> LockedFile::read() const {
  return read_all(fd_.get());
}

Status LockedFile::write(std::uint64_t offset, const void* data, std::uint64_t bytes) const {
  return write_all(fd_.get(), offset, data, bytes);
}

namespace {

Result<UniqueFd> part_in(int file, PartKind kind) {
  auto part = reopen(file);
  if (!part) return part;
  Status shared = share_byte_lock(part->get(), byte_of(kind));
  if (!shared) return std::move(shared).error();
  return part;
}

}  // namespace

Result<UniqueFd> another_part(const CheckedFd& part) {
  const auto file = part.get("cannot keep a name");
  if (!file) return file.error();
  return part_in(*file, PartKind::kOwn);
}

Result<UniqueFd> LockedFile::take_part(PartKind kind) const {
  return part_in(fd_.get(), kind);
}

namespace {

void unlock_part(int file) noexcept {
  for (const PartKind kind : {PartKind::kOwn, PartKind::kForOthers}) unlock_byte(file, byte_of(kind)).ok();
}

}  // namespace

void end_part(CheckedFd& part) noexcept {
  if (part.is_ours()) unlock_part(part.number());
  part.reset();
}

void end_part(UniqueFd part) noexcept {
  if (part.valid()) unlock_part(part.get());
}

bool LockedFile::has_parts(PartKind kind) const noexcept {
  return byte_is_locked(fd_.get(), byte_of(kind));
}

Result<std::vector<int>> LockedFile::part_holders() const {
  std::vector<int> pids;
  const auto id = file_id(fd_.get());
  if (!id) return id.error();
  const Status searched = find_files({path_in_proc(fd_.get())}, [&](const OpenFile& one) {
    if (one.id == *id && shares_a_lock(one)) pids.push_back(one.pid);
    return false;
  });
  if (!searched && is_exhausted(searched.error())) return searched.error();
  return pids;
}

Status LockedFile::remove() const {
  if (unlinkat(directory_, name_.c_str(), 0) != 0 && errno != ENOENT) return os_error("unlink " + name_, errno);
  if (ftruncate(fd_.get(), 0) != 0) return os_error("ftruncate " + name_, errno);
  return success();
}

namespace {

// Replaces `part`, which was taken through the descriptor that created the file, by one through a descriptor that was
// opened by name. /proc then shows the name to other processes. Returns `part` itself if the file was removed
// meanwhile, or if another step fails.
UniqueFd named_part(int directory, const std::string& name, UniqueFd part) {
  UniqueFd named = open_in(directory, name);
  if (!named.valid()) return part;
  const auto mine = file_id(part.get()), found = file_id(named.get());
  if (!mine || !found || *mine != *found) return part;
  if (!share_byte_lock(named.get(), byte_of(PartKind::kOwn))) return part;
  end_part(std::move(part));
  return named;
}

}  // namespace

Result<UniqueFd> create_private_file(int directory, const std::string& name, const void* data, std::uint64_t bytes) {
  std::string path;
  std::string temporary;
  UniqueFd fd(retry([&] { return openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); }));
  if (fd.valid()) {
    path = "/proc/self/fd/" + std::to_string(fd.get());
  } else {  // a file system without O_TMPFILE
    temporary = random_name();
    fd = UniqueFd(
        retry([&] { return openat(directory, temporary.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600); }));
    if (!fd.valid()) return os_error("open " + temporary, errno);
  }
  Status written = write_all(fd.get(), 0, data, bytes);
  if (written) written = share_byte_lock(fd.get(), byte_of(PartKind::kOwn));
  int failure = 0;
  if (written.ok()) {
    const int linked = path.empty() ? linkat(directory, temporary.c_str(), directory, name.c_str(), 0)
                                    : linkat(AT_FDCWD, path.c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW);
    failure = linked == 0 ? 0 : errno;
  }
  if (!temporary.empty()) unlinkat(directory, temporary.c_str(), 0);
  if (!written) return std::move(written).error();
  if (failure == 0) return named_part(directory, name, std::move(fd));
  Error error = path.empty() ? os_error("link " + name, failure) : proc_error("link " + path + " as " + name, failure);
  if (failure == EEXIST) error.code = Code::kExists;
  return error;
}

namespace {

Result<PrivateFile> look_at(const UniqueFd& fd, const std::string& what) {
  Status checked = check_private(fd.get(), what);
  if (!checked) return std::move(checked).error();
  auto bytes = read_all(fd.get());
  if (!bytes) return std::move(bytes).error();
  return PrivateFile{*std::move(bytes), byte_is_locked(fd.get(), byte_of(PartKind::kOwn)),
                     byte_is_locked(fd.get(), byte_of(PartKind::kForOthers))};
}

}  // namespace

Result<PrivateFile> stat_private_file(int directory, const std::string& name) {
  const UniqueFd fd = open_in(directory, name);
  if (!fd.valid()) return open_error(name);
  return look_at(fd, name);
}

// Opens an O_PATH descriptor first, which does not open the file itself. The other process may have another file there
// by now, and opening it could have effects.
Result<PrivateFile> stat_private_file(const OpenFile& file) {
  const UniqueFd place(retry([&] { return open(file.path.c_str(), O_PATH | O_CLOEXEC); }));
  if (!place.valid()) return open_error(file.path);
  const auto id = file_id(place.get());
  if (!id) return id.error();
  if (*id != file.id) return Error{Code::kNotFound, file.path + " leads to another file by now"};
  auto opened = reopen(place.get());
  if (!opened) return std::move(opened).error();
  return look_at(*opened, file.path);
}

Result<bool> has_parts(int directory, const std::string& name, PartKind kind) {
  const UniqueFd fd = open_in(directory, name);
  if (!fd.valid()) return open_error(name);
  return byte_is_locked(fd.get(), byte_of(kind));
}

Result<std::vector<std::string>> list_directory(int directory, std::size_t most) {
  std::vector<std::string> names;
  UniqueFd fd(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fd.valid() ? fdopendir(fd.get()) : nullptr, &closedir);
  if (entries == nullptr) return os_error("opendir", errno);
  fd.release();
  while (names.size() < most) {
    const dirent* entry = readdir(entries.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace shmtree::platform
