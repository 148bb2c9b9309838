// Maps a shared list and finds its frames.
//
// Whatever the file contains, the reader accesses only the mapped bytes, and other processes may write into a file on
// disk meanwhile. If such a file is truncated, an access after the new end raises SIGBUS.
//
// Thread safety: a ListReader is immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "shmtree/base/result.h"

namespace shmtree::shared_list {

struct ListHeader;

class ListReader {
 public:
  // Maps a file. Fails with kNotFound, with kCorrupt if the file is not a list or is truncated, and with kIncompatible
  // for another version.
  static Result<std::shared_ptr<const ListReader>> open(const std::string& path);
  // Maps an open regular file. The caller may close `fd` afterwards. Errors begin with `what`, such as a quoted path.
  // `offset` is the position of the list in a file of several lists, or 0 if the list is the whole file.
  static Result<std::shared_ptr<const ListReader>> map(int fd, const std::string& what, std::uint64_t offset = 0);

  ~ListReader();
  ListReader(const ListReader&) = delete;
  ListReader& operator=(const ListReader&) = delete;

  std::uint64_t size() const noexcept { return count_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  const std::array<std::byte, 16>& identity() const noexcept { return identity_; }
  // Returns " in " and the quoted path, or nothing if the list has no path.
  const std::string& where() const noexcept { return where_; }
  // Names the list in errors: "SharedList of 3 items in 'list.smt'".
  std::string description() const;
  // Returns the frame of an item below size(). Fails with kCorrupt if its offsets are invalid.
  Result<std::span<const std::byte>> frame(std::uint64_t number) const;

 private:
  explicit ListReader(const ListHeader& header) noexcept;
  std::uint64_t entry(std::uint64_t number) const noexcept;

  std::string where_{};
  std::array<std::byte, 16> identity_{};
  std::span<const std::byte> bytes_{};
  std::uint64_t count_ = 0, index_offset_ = 0;
};

}  // namespace shmtree::shared_list
