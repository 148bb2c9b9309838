// The check costs 0.2 us, so it belongs next to a system call, not on the path of every message. It cannot detect a
// file that gets the number between the check and the use.
#pragma once

#include <vector>

#include "platform/file.h"

namespace shmtree::platform {

// Range of numbers for a kept descriptor. A program may pass some of them to select(), which accepts numbers below
// 1,024.
enum class FdRange { kHigh, kSelectable };

// Moves a descriptor into that range. It keeps its number if none is free there, or RLIMIT_NOFILE is too low.
UniqueFd move_up(UniqueFd fd, FdRange range) noexcept;

// Returns the error for a kept descriptor that the program has closed: Code::kOs with EBADF. `what` names its use.
Error closed_by_program(int number, const std::string& what);

// Owns a descriptor of a file, socket or folder that no other part of the program uses. Move-only.
//
// Thread safety: that of an int. Threads may call const functions concurrently.
class CheckedFd {
 public:
  CheckedFd() noexcept = default;
  // Not valid() if `fd` is not.
  explicit CheckedFd(UniqueFd fd, FdRange range = FdRange::kHigh) noexcept;
  CheckedFd(CheckedFd&& other) noexcept;
  CheckedFd& operator=(CheckedFd&& other) noexcept;
  ~CheckedFd() { reset(); }

  // True if it was opened and not reset. The program may have closed it since.
  bool valid() const noexcept { return number_ >= 0; }
  // True if the number still leads to the file that it was opened for. Keeps errno.
  bool is_ours() const noexcept;
  // The descriptor, for a use that follows at once: closed_by_program() otherwise.
  Result<int> get(const char* what) const;
  // Returns the number, unchecked: for comparisons, to pass it to other processes, or after is_ours().
  int number() const noexcept { return number_; }
  const FileId& id() const noexcept { return id_; }
  // Closes the descriptor, unless the program has done so.
  void reset() noexcept;
  // Forgets the descriptor and leaves it open, because it now belongs to another file.
  void abandon() noexcept;

 private:
  int number_ = -1;
  FileId id_;
};

// Returns the numbers of all CheckedFds of this process, sorted. Throws std::bad_alloc.
std::vector<int> kept_descriptors();

}  // namespace shmtree::platform
