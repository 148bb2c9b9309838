// A recording, mapped and read. The file may have been cut off anywhere, and is read up to there; what is not as it was
// written is Code::kCorrupt, with the place.
//
// Whatever the bytes are, nothing outside the mapped ones is read. Somebody may write into the file meanwhile: then
// other messages may be found than at the first reading, but as many, or an error. Where it is cut off meanwhile,
// whoever reads what it had behind the cut gets SIGBUS, as of every mapped file.
//
// Thread safety: a Reader never changes; a Cursor is for one thread at a time.
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
#include "shmtree/result.h"

namespace shmtree::recording {

// So many messages of a channel.
struct Count {
  std::string channel{};
  std::uint64_t messages = 0;
};

// A message, and where its frame lies in the mapped file.
struct Entry {
  std::size_t channel = 0;     // its place in Reader::channels()
  std::uint64_t time_ns = 0;   // since the epoch
  std::uint32_t sequence = 0;  // the low 32 bits of its ticket
  std::span<const std::byte> frame{};
};

class Reader {
 public:
  // kNotFound; kCorrupt for what is no recording of ours. What was whole at this moment is there.
  static Result<std::shared_ptr<const Reader>> open(const std::string& path);
  // Of a file that is open, and need not stay so; `path` is what it is called in errors.
  static Result<std::shared_ptr<const Reader>> map(int fd, std::string path);

  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  // In the order in which they came.
  const std::vector<Count>& channels() const noexcept { return channels_; }
  // What was put and is not here. Known of a recording that was ended in order.
  const std::vector<Count>& missed() const noexcept { return missed_; }
  // It was ended in order, and has not been cut off since.
  bool is_whole() const noexcept { return is_whole_; }
  std::uint64_t size() const noexcept { return size_; }

 private:
  friend class Cursor;
  explicit Reader(std::string path) noexcept : path_(std::move(path)) {}
  Status read_all();
  std::size_t add_channel(std::string name);
  Status note_missed(std::span<const std::byte> metadata, std::uint64_t at);
  Error corrupt(std::uint64_t at, const std::string& what) const;

  std::string path_;
  std::span<const std::byte> bytes_{};
  std::vector<Count> channels_{}, missed_{};
  std::map<std::string, std::size_t, std::less<>> places_{};  // in channels_
  bool is_whole_ = false;
  std::uint64_t size_ = 0;
};

// Goes over the messages, in the order in which they were written. The Reader has to stay.
class Cursor {
 public:
  explicit Cursor(const Reader& reader) noexcept : reader_(reader) {}

  // False at the end. After an error there is no next one.
  Result<bool> next(Entry& entry);

 private:
  friend class Reader;
  struct Record {
    Opcode opcode{};
    std::uint64_t at = 0;
    std::span<const std::byte> content{};
  };

  // The first reading, which notes what there is.
  explicit Cursor(Reader& reader) noexcept : reader_(reader), noting_(&reader) {}
  std::optional<Record> next_record() noexcept;
  Status read_message(const Record& record, Entry& entry) const;
  Status pass(const Record& record);
  Status note_channel(const Record& record);

  const Reader& reader_;
  Reader* noting_ = nullptr;
  std::uint64_t at_ = kMagic.size(), read_ = 0;                // bytes, messages
  std::unordered_map<std::uint16_t, std::size_t> channels_{};  // places in Reader::channels(), by number
};

}  // namespace shmtree::recording
