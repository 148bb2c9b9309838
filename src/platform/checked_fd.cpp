#include "platform/checked_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

namespace shmtree::platform {
namespace {

constexpr int kSelectEnd = 1024;  // FD_SETSIZE

// One bit for each number. Pages that no number needs are never touched.
constexpr int kListedNumbers = 1 << 20;  // the default of fs.nr_open
constinit std::atomic<std::uint64_t> g_kept[kListedNumbers / 64]{};

// Returns the first number to try. With a low limit, the program keeps the lower half.
int first_number(FdRange range) noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t wanted = range == FdRange::kHigh ? kSelectEnd : kSelectEnd / 2;
  return static_cast<int>(std::min<rlim_t>(wanted, limit.rlim_cur / 2));
}

int duplicate_from(int fd, int first) noexcept {
  return fcntl(fd, F_DUPFD_CLOEXEC, first);
}

bool identify(int number, FileId& id) noexcept {
  struct stat status {};
  if (fstat(number, &status) != 0) return false;
  id = {status.st_dev, status.st_ino};
  return true;
}

void note_kept(int number) noexcept {
  if (number < kListedNumbers) g_kept[number / 64].fetch_or(std::uint64_t{1} << number % 64);
}

void note_closed(int number) noexcept {
  if (number < kListedNumbers) g_kept[number / 64].fetch_and(~(std::uint64_t{1} << number % 64));
}

}  // namespace

UniqueFd move_up(UniqueFd fd, FdRange range) noexcept {
  if (!fd.valid()) return fd;
  const int saved = errno;
  const int first = first_number(range);
  const bool must_move = fd.get() < first || (range == FdRange::kSelectable && fd.get() >= kSelectEnd);
  UniqueFd moved(must_move ? duplicate_from(fd.get(), first) : -1);
  if (range == FdRange::kSelectable && moved.get() >= kSelectEnd) {  // the numbers from `first` on are taken
    constexpr int kAfterStandard = 3;
    moved = UniqueFd(fd.get() < kSelectEnd ? -1 : duplicate_from(fd.get(), kAfterStandard));
  }
  errno = saved;
  return moved.valid() ? std::move(moved) : std::move(fd);
}

Error closed_by_program(int number, const std::string& what) {
  return Error{
      Code::kOs,
      what + ": this program has closed descriptor " + std::to_string(number) +
          ", which shmtree needs, so this process can no longer use the object. If you close all descriptors, as "
          "a daemon does, do it before you make or open shmtree objects, or keep those in "
          "shmtree.descriptors() (in C++ shmtree::descriptors())",
      EBADF};
}

CheckedFd::CheckedFd(UniqueFd fd, FdRange range) noexcept {
  fd = move_up(std::move(fd), range);
  if (!fd.valid() || !identify(fd.get(), id_)) return;
  number_ = fd.release();
  note_kept(number_);
}

CheckedFd::CheckedFd(CheckedFd&& other) noexcept : number_(std::exchange(other.number_, -1)), id_(other.id_) {}

CheckedFd& CheckedFd::operator=(CheckedFd&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = std::exchange(other.number_, -1);
    id_ = other.id_;
  }
  return *this;
}

bool CheckedFd::is_ours() const noexcept {
  const int saved = errno;
  FileId now;
  const bool same = number_ >= 0 && identify(number_, now) && now == id_;
  errno = saved;
  return same;
}

Result<int> CheckedFd::get(const char* what) const {
  if (is_ours()) return number_;
  return closed_by_program(number_, what);
}

void CheckedFd::reset() noexcept {
  const bool ours = is_ours();
  const UniqueFd closed(ours ? number_ : -1);
  abandon();
}

void CheckedFd::abandon() noexcept {
  if (number_ >= 0) note_closed(std::exchange(number_, -1));
}

std::vector<int> kept_descriptors() {
  std::vector<int> numbers;
  for (int first = 0; first < kListedNumbers; first += 64) {
    std::uint64_t bits = g_kept[first / 64].load(std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      const int number = first + std::countr_zero(bits);
      if (fcntl(number, F_GETFD) >= 0) numbers.push_back(number);
    }
  }
  return numbers;
}

}  // namespace shmtree::platform
