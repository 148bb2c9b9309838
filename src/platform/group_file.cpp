#include "platform/group_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "platform/retry.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace shmtree::platform {

Result<GroupFile> GroupFile::make(const std::string& name, std::uint64_t bytes) {
  if (bytes > largest_file_bytes()) return os_error("a memory file of " + std::to_string(bytes) + " bytes", EFBIG);
  CheckedFd fd(UniqueFd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd.valid()) return os_error("memfd_create", errno);
  if (ftruncate(fd.number(), static_cast<off_t>(bytes)) != 0) return os_error("ftruncate", errno);
  const auto mapped = map_shared(fd.number(), 0, bytes);
  if (!mapped) return mapped.error();
  GroupFile file(std::move(fd), *mapped, bytes);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(file.fd_.number(), F_ADD_SEALS, kSeals) != 0) return os_error("fcntl(F_ADD_SEALS)", errno);
  return file;
}

GroupFile::GroupFile(GroupFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      bytes_(other.bytes_),
      next_(other.next_) {}

GroupFile::~GroupFile() {
  if (mapped_ != nullptr) unmap(mapped_, bytes_);
}

Result<std::optional<std::uint64_t>> GroupFile::add(int fd, std::uint64_t bytes) {
  const std::uint64_t offset = next_;
  if (bytes > bytes_ - offset) return std::optional<std::uint64_t>();
  const auto own = fd_.get("a file of shared lists");
  if (!own) return own.error();
  if (Status done = commit_pages(*own, offset, bytes); !done) return std::move(done).error();
  if (!read_at(fd, 0, mapped_ + offset, bytes)) return os_error("read " + std::to_string(bytes) + " bytes", errno);
  next_ = offset + (bytes + page_size() - 1) / page_size() * page_size();
  return std::optional(offset);
}

Result<UniqueFd> GroupFile::open() const {
  const auto own = fd_.get("a file of shared lists");
  if (!own) return own.error();
  return open_for_reading("/proc/self/fd/" + std::to_string(*own));
}

}  // namespace shmtree::platform
