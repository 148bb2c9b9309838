// Descriptors, sealed memory files and their mappings. Every system call on files is wrapped once, here.
//
// Contract of all functions: interrupted calls are repeated. A failure is an Error of Code::kOs with the operation and
// errno in its message, and leaves everything as it was.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "shmtree/base/result.h"

namespace shmtree::platform {

Error os_error(const std::string& operation, int error_number);
// Returns the error of an open() of `path` that has just failed: Code::kNotFound if there is no such file.
Error open_error(const std::string& path);
// True if the process or the kernel was out of descriptors or memory. Such an error says nothing about the file.
bool is_exhausted(const Error& error) noexcept;

// Owns a descriptor, and closes it when destroyed.
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

// Returns the limit of RLIMIT_FSIZE. A write beyond it raises SIGXFSZ.
std::uint64_t largest_file_bytes() noexcept;

// Creates a sparse memory file of `bytes`, sealed against any change of size and against further seals. Returns
// Code::kOs with EFBIG if RLIMIT_FSIZE is below `bytes`, since the kernel would raise SIGXFSZ.
Result<UniqueFd> create_memory_file(const std::string& name, std::uint64_t bytes);

// Returns the error of a call with a path in /proc/self/fd. The text says if /proc is not mounted.
Error proc_error(const std::string& what, int number);
// Opens a new file description of the same file: locks taken through it are not shared with `fd`.
Result<UniqueFd> reopen(int fd);

Result<std::uint64_t> file_size(int fd);
// Returns an error unless the file is a regular one on a disk or in memory: no folder, device, pipe or socket.
Status check_regular_file(int fd, const std::string& path);
// Opens an existing file of any type, without blocking. Code::kNotFound if there is none.
Result<UniqueFd> open_for_reading(const std::string& path);
// Identifies a file, independently of its descriptors.
struct FileId {
  std::uint64_t device = 0, inode = 0;
  auto operator<=>(const FileId&) const noexcept = default;
};
Result<FileId> file_id(int fd);
// Returns the device of the file at `path`, or of its parent folder if there is no file; nothing without either.
std::optional<std::uint64_t> device_at(const std::string& path);
// Fills `out` from `offset` on. False if the file cannot be read (sets errno) or ends too early (errno is 0).
bool read_at(int fd, std::uint64_t offset, void* out, std::uint64_t bytes) noexcept;
// Makes an exec close the descriptor.
void set_close_on_exec(int fd) noexcept;
bool size_is_sealed(int fd) noexcept;

// Allocates the pages of [offset, offset + bytes), in pieces, so that a store to them cannot fail later.
Status commit_pages(int fd, std::uint64_t offset, std::uint64_t bytes);
// Does the same in code that may not throw. Returns 0 or errno.
int try_commit_pages(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
// Returns the pages to the system; they read as zero afterwards. False if the system refuses and the pages stay.
bool release_pages(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;

// Returns the number of bytes from `offset` on that have pages without a gap, at most `most`. Moves the descriptor's
// file position.
std::uint64_t pages_from(int fd, std::uint64_t offset, std::uint64_t most) noexcept;

// Maps [offset, offset + bytes) for reading and writing. Excluded from core dumps, since a dump would commit every
// hole.
Result<std::byte*> map_shared(int fd, std::uint64_t offset, std::uint64_t bytes);
// Does the same in code that may not throw. Returns null and sets errno.
std::byte* try_map_shared(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
// Maps [offset, offset + bytes) of a file read-only. No core dump has them. `offset` is a multiple of the page size. If
// the file is truncated, reading raises SIGBUS.
Result<const std::byte*> map_for_reading(int fd, std::uint64_t bytes, std::uint64_t offset = 0);
void unmap(const std::byte* address, std::uint64_t bytes) noexcept;
// Fills this process's page tables for committed pages, faster than faulting them one by one. A hint.
void populate(std::byte* address, std::uint64_t bytes) noexcept;
// Requests huge pages for the aligned 2 MiB ranges inside private or shared memory. A hint.
void advise_huge(std::byte* address, std::uint64_t bytes) noexcept;

// Tries to lock one byte of the file exclusively, without blocking. The lock belongs to the open file description of
// `fd`, and ends when the last descriptor of that description is closed. The kernel closes those of a killed process at
// once, reaped or not.
Result<bool> try_lock_byte(int fd, std::uint64_t offset);
Status unlock_byte(int fd, std::uint64_t offset);
// Takes the same lock in shared mode.
Status share_byte_lock(int fd, std::uint64_t offset);
// Moves the lock from the description of `from` to that of `to`, two descriptions of the same file. The byte is locked
// at every moment.
Status move_byte_lock(int from, int to, std::uint64_t offset);
// True if another open file description holds that lock. 0.6 us.
bool byte_is_locked(int fd, std::uint64_t offset) noexcept;

std::uint64_t page_size() noexcept;

}  // namespace shmtree::platform
