// Descriptors that the library keeps open for longer than one call.
//
// A program may close descriptors that it does not know: a daemon closes all of them. The next files that it opens get
// the same numbers, so a kept descriptor may lead to a file of the program. Two measures keep that file safe:
//
//   - A CheckedFd remembers device and inode of its file. It is compared just before each use, and before it is closed.
//   - Its number is a high one, which a program does not get again soon.
//
// The check costs 0.2 us, so it belongs where a system call is made, and not on the path of every message. It cannot
// see a file that gets the number between the check and the use.
#pragma once

#include <vector>

#include "platform/file.h"

namespace shmtree::platform {

// The range of numbers for a kept descriptor. A program watches some of them with select(), which takes numbers below
// 1,024.
enum class FdRange { kHigh, kSelectable };

// Moves a descriptor into that range. It keeps its number if none is free there, or RLIMIT_NOFILE is too low.
UniqueFd move_up(UniqueFd fd, FdRange range) noexcept;

// What to report about a kept descriptor that the program has closed: Code::kOs with EBADF. `what` names its use.
Error closed_by_program(int number, const std::string& what);

// Owns a descriptor of a file, socket or folder that no other part of the program has. Move-only.
//
// Thread safety: as of an int. The const functions may be called at the same time.
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
  // The number, unchecked: to compare it, to tell others of it, or after is_ours().
  int number() const noexcept { return number_; }
  const FileId& id() const noexcept { return id_; }
  // Closes the descriptor, unless the program has done so.
  void reset() noexcept;
  // Forgets the descriptor and leaves it open: it turned out to be another file's.
  void abandon() noexcept;

 private:
  int number_ = -1;
  FileId id_;
};

// The numbers of all CheckedFds of this process, sorted. Throws std::bad_alloc.
std::vector<int> kept_descriptors();

}  // namespace shmtree::platform
