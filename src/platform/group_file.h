// A memory file that holds several contents, so that they need one descriptor together. The contract of file.h applies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "platform/checked_fd.h"

namespace shmtree::platform {

// Only add() writes to the file, through a mapping of this process. The seals of the file forbid every process to make
// another mapping for writing, to write to the file, and to change its size. A forked child must destroy its copy.
//
// Thread safety: one thread at a time.
class GroupFile {
 public:
  // Makes a sparse file of `bytes`. Fails before Linux 5.1.
  static Result<GroupFile> make(const std::string& name, std::uint64_t bytes);
  GroupFile(GroupFile&& other) noexcept;
  GroupFile& operator=(GroupFile&&) = delete;
  ~GroupFile();

  // Copies the first `bytes` of another file to the next free page. Returns its offset, which is not 0, or nothing if
  // there is no space.
  Result<std::optional<std::uint64_t>> add(int fd, std::uint64_t bytes);
  // Opens the file read-only.
  Result<UniqueFd> open() const;

 private:
  GroupFile(CheckedFd fd, std::byte* mapped, std::uint64_t bytes) noexcept
      : fd_(std::move(fd)), mapped_(mapped), bytes_(bytes), next_(page_size()) {}

  CheckedFd fd_;
  std::byte* mapped_;
  std::uint64_t bytes_, next_;
};

}  // namespace shmtree::platform
