// Maps and reads a recording. A file that was cut off anywhere is read up to that point. Any other damage is reported
// as Code::kCorrupt, with its offset.
//
// Whatever the file contains, the reader accesses only the mapped bytes. If another process writes into the file
// meanwhile, a Cursor may find different messages than the first pass did, but the same number of them, or it fails. If
// the file is truncated meanwhile, an access after the new end raises SIGBUS, as in every mapped file.
//
// Thread safety: a Reader is immutable. A Cursor may be used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recording/layout.h"
#include "shmtree/base/result.h"

namespace shmtree::recording {

// A channel, and a number of its messages.
struct Count {
  std::string channel{};
  std::uint64_t messages = 0;
  std::string kind{};  // what was recorded, such as "queue"; empty in older files
};

// A message. `frame` points into the mapped file.
struct Entry {
  std::size_t channel = 0;     // index in Reader::channels()
  std::uint64_t time_ns = 0;   // since the epoch
  std::uint32_t sequence = 0;  // low 32 bits of the message's ticket
  std::span<const std::byte> frame{};
};

class Reader {
 public:
  // Opens a recording, with the messages that are complete at this moment. Fails with kNotFound, or with kCorrupt if
  // the file is not a recording of shmtree.
  static Result<std::shared_ptr<const Reader>> open(const std::string& path);
  // Maps an open file. The caller may close `fd` afterwards. Errors call the file `path`.
  static Result<std::shared_ptr<const Reader>> map(int fd, std::string path);

  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  // In the order of their records in the file.
  const std::vector<Count>& channels() const noexcept { return channels_; }
  // Messages that were put but not recorded, per channel. Known only if the recording was closed properly.
  const std::vector<Count>& missed() const noexcept { return missed_; }
  // True if the recording was closed properly and has not been cut off since.
  bool is_whole() const noexcept { return is_whole_; }
  std::uint64_t size() const noexcept { return size_; }

 private:
  friend class Cursor;
  explicit Reader(std::string path) noexcept : path_(std::move(path)) {}
  Status read_all();
  std::size_t add_channel(std::string name, std::string kind);
  Status note_missed(std::span<const std::byte> metadata, std::uint64_t at);
  Error corrupt(std::uint64_t at, const std::string& what) const;

  std::string path_;
  std::span<const std::byte> bytes_{};
  std::vector<Count> channels_{}, missed_{};
  std::map<std::string, std::size_t, std::less<>> places_{};  // indices into channels_, by name
  bool is_whole_ = false;
  std::uint64_t size_ = 0;
};

// Iterates over the messages in the order in which they were written. The Reader must outlive the Cursor.
class Cursor {
 public:
  explicit Cursor(const Reader& reader) noexcept : reader_(reader) {}

  // Returns false at the end. Do not call it again after an error.
  Result<bool> next(Entry& entry);

 private:
  friend class Reader;
  struct Record {
    Opcode opcode{};
    std::uint64_t at = 0;
    std::span<const std::byte> content{};
  };

  // For the first pass, which collects the channels and counts of `reader`.
  explicit Cursor(Reader& reader) noexcept : reader_(reader), noting_(&reader) {}
  std::optional<Record> next_record() noexcept;
  Status read_message(const Record& record, Entry& entry) const;
  Status pass(const Record& record);
  Status note_channel(const Record& record);

  const Reader& reader_;
  Reader* noting_ = nullptr;
  std::uint64_t at_ = kMagic.size(), read_ = 0;                // position in bytes; messages read
  std::unordered_map<std::uint16_t, std::size_t> channels_{};  // indices in Reader::channels(), by channel number
};

}  // namespace shmtree::recording
