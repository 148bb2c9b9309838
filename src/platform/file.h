// Descriptors, sealed memory files and their mappings: every system call on files is wrapped once, here.
//
// Contract of all of them: a failure is an Error of Code::kOs whose message names the operation and errno (interrupted
// calls are repeated), and leaves everything as it was.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "shmtree/result.h"

namespace shmtree::platform {

Error os_error(const std::string& operation, int error_number);
// Of an open() of `path` that has just failed: Code::kNotFound where nothing is there.
Error open_error(const std::string& path);
// Whether it came from want of descriptors or of the kernel's memory: it says nothing of what was asked for then.
bool is_exhausted(const Error& error) noexcept;

// Owns a descriptor; closes it when it goes.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// What RLIMIT_FSIZE allows; past it a write is a SIGXFSZ.
std::uint64_t largest_file_bytes() noexcept;

// A new memory file of `bytes`, sparse, sealed against any change of size (and against further seals). Code::kOs with
// EFBIG where RLIMIT_FSIZE is below `bytes`: asking the kernel instead would raise SIGXFSZ.
Result<UniqueFd> create_memory_file(const std::string& name, std::uint64_t bytes);

// Returns the error of a call with a path in /proc/self/fd. The text says if /proc is not mounted.
Error proc_error(const std::string& what, int number);
// A new open file description of the same file: locks taken through it are not shared with `fd`.
Result<UniqueFd> reopen(int fd);

Result<std::uint64_t> file_size(int fd);
// An error unless it is bytes on a disk or in memory, and no folder, device, pipe or socket.
Status check_regular_file(int fd, const std::string& path);
// Of a file that is there, whatever it is; waits for nobody. Code::kNotFound where nothing is.
Result<UniqueFd> open_for_reading(const std::string& path);
// Tells files apart, whatever the descriptors.
struct FileId {
  std::uint64_t device = 0, inode = 0;
  auto operator<=>(const FileId&) const noexcept = default;
};
Result<FileId> file_id(int fd);
// The device of the file at `path`, or of its parent folder if there is none; nothing without either.
std::optional<std::uint64_t> device_at(const std::string& path);
// Fills `out` from `offset` on. False if the file cannot be read (sets errno) or ends too early (errno is 0).
bool read_at(int fd, std::uint64_t offset, void* out, std::uint64_t bytes) noexcept;
// Whether an exec leaves the descriptor open.
void set_close_on_exec(int fd) noexcept;
bool size_is_sealed(int fd) noexcept;

// Allocates the pages of [offset, offset + bytes), in pieces, so that a store to them cannot fail later.
Status commit_pages(int fd, std::uint64_t offset, std::uint64_t bytes);
// The same where nothing may be thrown: 0, or errno.
int try_commit_pages(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
// Gives the pages back; they read as zero afterwards. False when the system refuses: they stay.
bool release_pages(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;

// Bytes from `offset` on that have pages without a gap, at most `most`. Moves the descriptor's file position.
std::uint64_t pages_from(int fd, std::uint64_t offset, std::uint64_t most) noexcept;

// Maps [offset, offset + bytes) for reading and writing, left out of core dumps: dumping would commit every hole.
Result<std::byte*> map_shared(int fd, std::uint64_t offset, std::uint64_t bytes);
// The same where nothing may be thrown, and so no error be worded: null, and errno.
std::byte* try_map_shared(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
// Maps the first bytes of a file for reading alone. Where it is cut off later, a read past its end is a SIGBUS.
Result<const std::byte*> map_for_reading(int fd, std::uint64_t bytes);
void unmap(const std::byte* address, std::uint64_t bytes) noexcept;
// Fills this process's page tables for committed pages, faster than faulting them one by one. A hint.
void populate(std::byte* address, std::uint64_t bytes) noexcept;
// Asks for the huge pages of 2 MiB that lie within private or shared memory. A hint.
void advise_huge(std::byte* address, std::uint64_t bytes) noexcept;

// Non-blocking exclusive lock on one byte of the file, owned by the open file description of `fd`: it goes when the
// last descriptor of that description is closed, which a killed process's are at once, reaped or not.
Result<bool> try_lock_byte(int fd, std::uint64_t offset);
Status unlock_byte(int fd, std::uint64_t offset);
// The same lock, shared with whoever takes it so too.
Status share_byte_lock(int fd, std::uint64_t offset);
// Hands the lock from the description of `from` to that of `to`, two of the same file, without a moment in which nobody
// holds it.
Status move_byte_lock(int from, int to, std::uint64_t offset);
// Whether another open file description holds that lock. 0.6 us.
bool byte_is_locked(int fd, std::uint64_t offset) noexcept;

std::uint64_t page_size() noexcept;

}  // namespace shmtree::platform
