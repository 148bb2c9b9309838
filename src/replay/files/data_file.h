// A file of rows and states: written, or read, from its beginning to its end, with a checksum over all of it.
#pragma once

#include <string>
#include <vector>

#include "platform/checked_fd.h"
#include "platform/folder.h"
#include "replay/files/layout.h"

namespace shmtree::replay {

class DataFile {
 public:
  // Where a file was: whoever is there again writes over what came since.
  struct Mark {
    std::uint64_t bytes = 0;
    std::uint32_t checksum = 0;
  };

  // A new file of that number. It is removed when it goes without end().
  static Result<DataFile> begin(const platform::Folder& folder, std::uint64_t number, const unsigned char uuid[16]);
  DataFile(DataFile&&) noexcept = default;
  ~DataFile();

  std::uint64_t number() const noexcept { return number_; }
  Mark mark() const noexcept { return at_; }
  void go_back(const Mark& mark) noexcept { at_ = mark; }
  // The bytes may change meanwhile; then the caller goes back.
  Status append(const void* data, std::uint64_t bytes);
  // What was written stays, whatever happens to the machine.
  Result<SavedFile> end();

 private:
  DataFile(const platform::Folder& folder, std::uint64_t number, platform::CheckedFd fd) noexcept
      : folder_(&folder), number_(number), fd_(std::move(fd)) {}
  std::string what() const { return folder_->path() + "/" + name_of_file(); }
  std::string name_of_file() const;
  Result<int> checked_fd() const;

  const platform::Folder* folder_;
  std::uint64_t number_;
  platform::CheckedFd fd_;
  Mark at_;
  std::uint64_t begun_ = 0;  // bytes that are on their way to the disk
  bool ended_ = false;
};

// `file` and `folder` have to stay.
class DataReader {
 public:
  // Code::kCorrupt when there is none, or not of that size.
  static Result<DataReader> begin(const platform::Folder& folder, const SavedFile& file);

  std::uint64_t at() const noexcept { return at_; }
  Status read_header();
  Status read(void* out, std::uint64_t bytes);
  Status skip(std::uint64_t bytes);
  // Without a move, and without a checksum.
  Status look(std::uint64_t offset, std::vector<std::byte>& out) const;
  // Reads the rest. kCorrupt when something is not as it was written.
  Status end();
  // Which file, and that.
  Error error(const std::string& what) const;

 private:
  DataReader(const platform::Folder& folder, const SavedFile& file, platform::CheckedFd fd);
  // Returns the error of a failed read: that of the system, or kCorrupt if `error_number` is 0, since the file ended.
  Error unreadable(std::uint64_t offset, int error_number) const;

  const platform::Folder* folder_;
  const SavedFile* file_;
  platform::CheckedFd fd_;
  std::vector<std::byte> scratch_;
  std::uint64_t at_ = 0;
  std::uint32_t checksum_ = 0;
};

// Hands on memory that lies next to each other at once.
template <class Use>
class Runs {
 public:
  explicit Runs(Use use) : use_(std::move(use)) {}
  Status add(std::byte* at, std::uint64_t bytes) {
    if (at == begin_ + bytes_ && bytes_ != 0) {
      bytes_ += bytes;
      return success();
    }
    Status done = flush();
    begin_ = at;
    bytes_ = bytes;
    return done;
  }
  Status flush() {
    if (bytes_ == 0) return success();
    const std::uint64_t bytes = bytes_;
    bytes_ = 0;
    return use_(begin_, bytes);
  }

 private:
  Use use_;
  std::byte* begin_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace shmtree::replay
