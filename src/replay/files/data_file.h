// A file of rows and states. It is written and read sequentially, with a checksum over all of it.
#pragma once

#include <string>
#include <vector>

#include "platform/checked_fd.h"
#include "platform/folder.h"
#include "platform/machine.h"
#include "replay/files/layout.h"
#include "replay/files/progress.h"

namespace shmtree::replay {

class DataFile {
 public:
  // A position in the file. After go_back(), appended bytes overwrite those after the position.
  struct Mark {
    std::uint64_t bytes = 0;
    std::uint32_t checksum = 0;
  };

  // Creates the file with this number. The destructor removes it unless keep() was called or this is a forked
  // child. `progress` counts the appended bytes, and must outlive the file.
  static Result<DataFile> begin(const platform::Folder& folder, std::uint64_t number, const unsigned char uuid[16],
                                ProgressMeter& progress);
  DataFile(DataFile&&) noexcept = default;
  ~DataFile();

  std::uint64_t number() const noexcept { return number_; }
  Mark mark() const noexcept { return at_; }
  void go_back(const Mark& mark) noexcept { at_ = mark; }
  // Appends bytes. Another process may change them meanwhile; the caller checks for that, and calls go_back() if so.
  Status append(const void* data, std::uint64_t bytes);
  // Completes the file and syncs it to the disk.
  Result<SavedFile> end();
  // Keeps the file, since a manifest on the disk names it.
  void keep() noexcept { is_kept_ = true; }

 private:
  DataFile(const platform::Folder& folder, std::uint64_t number, platform::CheckedFd fd,
           ProgressMeter& progress) noexcept
      : folder_(&folder), number_(number), fd_(std::move(fd)), progress_(&progress), process_(platform::process_id()) {}
  std::string what() const { return folder_->path() + "/" + name_of_file(); }
  std::string name_of_file() const;
  Result<int> checked_fd() const;

  const platform::Folder* folder_;
  std::uint64_t number_;
  platform::CheckedFd fd_;
  ProgressMeter* progress_;
  int process_;
  Mark at_;
  std::uint64_t begun_ = 0;  // bytes for which write-back was started
  bool is_kept_ = false;
};

// Reads a file. `file` and `folder` must outlive it.
class DataReader {
 public:
  // Opens the file. Returns Code::kCorrupt if it does not exist, or has another size. `progress` may be null; it counts
  // the bytes that are read, and must outlive the reader.
  static Result<DataReader> begin(const platform::Folder& folder, const SavedFile& file,
                                  ProgressMeter* progress = nullptr);

  std::uint64_t at() const noexcept { return at_; }
  Status read_header();
  Status read(void* out, std::uint64_t bytes);
  Status skip(std::uint64_t bytes);
  // Reads at an offset, without moving the position and without updating the checksum.
  Status peek(std::uint64_t offset, std::vector<std::byte>& out) const;
  // Reads the rest, and compares the checksum. Returns kCorrupt if any byte was altered.
  Status end();
  // Returns kCorrupt with the file's path and `what`.
  Error error(const std::string& what) const;

 private:
  DataReader(const platform::Folder& folder, const SavedFile& file, platform::CheckedFd fd, ProgressMeter* progress);
  // Returns the error of a failed read: that of the system, or kCorrupt if `error_number` is 0, since the file ended.
  Error unreadable(std::uint64_t offset, int error_number) const;

  const platform::Folder* folder_;
  const SavedFile* file_;
  platform::CheckedFd fd_;
  ProgressMeter* progress_;
  std::vector<std::byte> scratch_;
  std::uint64_t at_ = 0;
  std::uint32_t checksum_ = 0;
};

// Merges adjacent memory ranges, and passes each merged range to `use`.
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
