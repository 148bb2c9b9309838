#include "platform/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "platform/atomics.h"
#include "platform/never_destroyed.h"
#include "platform/retry.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL, which is as good as no hint
#endif

namespace shmtree::platform {
namespace {

constexpr std::uint64_t kCommitPiece = 16u << 20;  // per fallocate: short interruptions and early failure
constexpr std::uint64_t kMinPiece = 64u << 10;

struct flock byte_lock(short type, std::uint64_t offset) noexcept {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  return lock;
}

bool try_set_byte_lock(int fd, short type, std::uint64_t offset) noexcept {
  struct flock lock = byte_lock(type, offset);
  return retry([&] { return fcntl(fd, F_OFD_SETLK, &lock); }) == 0;
}

Status set_byte_lock(int fd, short type, std::uint64_t offset) {
  if (try_set_byte_lock(fd, type, offset)) return success();
  return os_error("fcntl(F_OFD_SETLK)", errno);
}

}  // namespace

Error os_error(const std::string& operation, int error_number) {
  char text[128];
  const char* reason = strerror_r(error_number, text, sizeof text);
  return Error{Code::kOs, operation + ": " + reason + " (errno " + std::to_string(error_number) + ")", error_number};
}

Error open_error(const std::string& path) {
  Error error = os_error("open " + path, errno);
  if (error.os_errno == ENOENT) error.code = Code::kNotFound;
  return error;
}

bool is_exhausted(const Error& error) noexcept {
  return error.os_errno == EMFILE || error.os_errno == ENFILE || error.os_errno == ENOMEM;
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}
int UniqueFd::release() noexcept {
  return std::exchange(fd_, -1);
}
void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::uint64_t largest_file_bytes() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

Result<UniqueFd> create_memory_file(const std::string& name, std::uint64_t bytes) {
  if (const std::uint64_t most = largest_file_bytes(); bytes > most) {
    return os_error("an arena's sparse file of " + std::to_string(bytes) + " bytes is over RLIMIT_FSIZE, " +
                        std::to_string(most) + " bytes (ulimit -f); a smaller max_bytes needs less",
                    EFBIG);
  }
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return os_error("memfd_create", errno);
  if (retry([&] { return ftruncate(fd.get(), static_cast<off_t>(bytes)); }) != 0) return os_error("ftruncate", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return os_error("fcntl(F_ADD_SEALS)", errno);
  }
  return fd;
}

Error proc_error(const std::string& what, int number) {
  const bool is_mounted = access("/proc/self/fd", F_OK) == 0;
  return os_error(is_mounted ? what : what + ": /proc is not mounted, and shmtree needs it", number);
}

Result<UniqueFd> reopen(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd opened(retry([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC); }));
  if (!opened.valid()) return proc_error("open " + path, errno);
  return opened;
}

Result<UniqueFd> open_for_reading(const std::string& path) {
  UniqueFd opened(retry([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!opened.valid()) return open_error(path);
  return opened;
}

Status check_regular_file(int fd, const std::string& path) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return os_error("fstat " + path, errno);
  if (S_ISREG(status.st_mode)) return success();
  return Error{Code::kOs, "'" + path + "' is no regular file", ENODEV};
}

Result<std::uint64_t> file_size(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return os_error("fstat", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

Result<FileId> file_id(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return os_error("fstat", errno);
  return FileId{status.st_dev, status.st_ino};
}

std::optional<std::uint64_t> device_at(const std::string& path) {
  struct stat status {};
  const std::string parent = path.substr(0, path.rfind('/') + 1);
  if (stat(path.c_str(), &status) != 0 && stat(parent.c_str(), &status) != 0) return std::nullopt;
  return status.st_dev;
}

bool read_at(int fd, std::uint64_t offset, void* out, std::uint64_t bytes) noexcept {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const ssize_t got = retry([&] { return pread(fd, to, bytes, static_cast<off_t>(offset)); });
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return true;
}

void set_close_on_exec(int fd) noexcept {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
}

bool size_is_sealed(int fd) noexcept {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0;
}

int try_commit_pages(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  crash_point();
  std::uint64_t most = kCommitPiece;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t piece = std::min(most, bytes - done);
    if (fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno == EINTR) {
      // A signal interrupted the call, and the kernel released the pages of this piece. If a profiler's timer sends
      // signals all the time, a large piece would never succeed, so the next one is smaller.
      most = std::max(most / 2, kMinPiece);
    } else {
      return errno;
    }
  }
  return 0;
}

Status commit_pages(int fd, std::uint64_t offset, std::uint64_t bytes) {
  const int failure = try_commit_pages(fd, offset, bytes);
  if (failure != 0) return os_error("fallocate of " + std::to_string(bytes) + " bytes", failure);
  return success();
}

bool release_pages(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (bytes == 0) return true;
  crash_point();
  const int result = retry([&] {
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes));
  });
  return result == 0;
}

std::uint64_t pages_from(int fd, std::uint64_t offset, std::uint64_t most) noexcept {
  const off_t hole = lseek(fd, static_cast<off_t>(offset), SEEK_HOLE);
  const std::uint64_t end = hole < 0 ? offset + most : static_cast<std::uint64_t>(hole);
  return end <= offset ? 0 : std::min(end - offset, most);
}

std::byte* try_map_shared(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) return nullptr;
  madvise(address, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(address);
}

Result<std::byte*> map_shared(int fd, std::uint64_t offset, std::uint64_t bytes) {
  std::byte* address = try_map_shared(fd, offset, bytes);
  if (address == nullptr) return os_error("mmap of " + std::to_string(bytes) + " bytes", errno);
  return address;
}

Result<const std::byte*> map_for_reading(int fd, std::uint64_t bytes, std::uint64_t offset) {
  void* const address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) return os_error("mmap of " + std::to_string(bytes) + " bytes", errno);
  madvise(address, bytes, MADV_DONTDUMP);
  return static_cast<const std::byte*>(address);
}

void unmap(const std::byte* address, std::uint64_t bytes) noexcept {
  munmap(const_cast<std::byte*>(address), bytes);
}

void populate(std::byte* address, std::uint64_t bytes) noexcept {
  const int saved = errno;
  madvise(address, bytes, MADV_POPULATE_WRITE);
  errno = saved;
}

void advise_huge(std::byte* address, std::uint64_t bytes) noexcept {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(address) + kHugePage - 1) & ~(kHugePage - 1);
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(address) + bytes) & ~(kHugePage - 1);
  if (begin >= end) return;
  const int saved = errno;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  errno = saved;
}

Result<bool> try_lock_byte(int fd, std::uint64_t offset) {
  if (try_set_byte_lock(fd, F_WRLCK, offset)) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return os_error("fcntl(F_OFD_SETLK)", errno);
}

Status unlock_byte(int fd, std::uint64_t offset) {
  return set_byte_lock(fd, F_UNLCK, offset);
}

Status share_byte_lock(int fd, std::uint64_t offset) {
  return set_byte_lock(fd, F_RDLCK, offset);
}

Status move_byte_lock(int from, int to, std::uint64_t offset) {
  // A write lock becomes a read lock atomically, and two descriptions can share a read lock.
  Status moved = set_byte_lock(from, F_RDLCK, offset);
  if (moved) moved = set_byte_lock(to, F_RDLCK, offset);
  if (moved) moved = set_byte_lock(from, F_UNLCK, offset);
  if (moved) try_set_byte_lock(to, F_WRLCK, offset);  // byte_is_locked() also detects read locks
  return moved;
}

bool byte_is_locked(int fd, std::uint64_t offset) noexcept {
  struct flock lock = byte_lock(F_WRLCK, offset);
  // A failed query counts as locked, since treating a live process as dead cannot be undone.
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

std::uint64_t page_size() noexcept {
  return computed_once<[] { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }>();
}

}  // namespace shmtree::platform
