/// @file
/// Reads recordings of channels, which `python -m shmtree record` makes, from the mapped file.
///
///     shmtree::Recording recording = shmtree::Recording::open("run.mcap").value();
///     for (const shmtree::RecordedMessage& message : recording) {
///       const shmtree::Item item = message.load().value();
///       use(message.channel, item["obs"].view());      // in place, in the mapped file
///     }
///
/// Reads the same files as shmtree.recording.Recording of Python. A recording is an MCAP file (docs/observe.md). You
/// may open it while it is written, or after it was cut off: it then has the messages that were complete at that time.
///
/// Ownership: the file stays mapped while a Recording, an iterator, a RecordedMessage, or an Item of one exists.
/// Removing its name or replacing the file does not affect the mapping. If another process truncates the file itself,
/// reading beyond its new end raises SIGBUS, as with every mapped file.
///
/// Thread safety: a Recording is a handle of immutable data, and any thread may use it. An iterator is for one thread
/// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shmtree/base/result.h"
#include "shmtree/item.h"

namespace shmtree {

namespace recording {
class Cursor;
class Reader;
}  // namespace recording

/// A channel of a recording.
struct RecordedChannel {
  std::string name{};          ///< Name under which it was recorded.
  std::uint64_t messages = 0;  ///< Number of its messages in the recording; in missed(), of the messages that it lacks.
};

/// A message of a recording. Copies refer to the same message.
struct RecordedMessage {
  std::string_view channel{};  ///< Name of its channel. Valid while `file` exists.
  /// Time of the put, in nanoseconds since the epoch. For a Broadcast or Latest, the time at which the recorder read
  /// the message.
  std::uint64_t time_ns = 0;
  std::uint32_t sequence = 0;          ///< Low 32 bits of the message's ticket; for a Latest, of its version.
  std::span<const std::byte> frame{};  ///< The message, for unpack() and put_frame(). Valid while `file` exists.
  std::shared_ptr<const void> file{};  ///< Keeps the file mapped.

  /// Decodes the message. Its arrays are read-only views that keep the file mapped. Returns
  /// kCorrupt if the message is invalid, and kIncompatible if another version of the format wrote it.
  Result<Item> load() const;
};

/// A recording of any number of channels. Copies refer to the same recording. A moved-from recording has no path and no
/// messages, and is not whole; its other calls throw BadResult (kClosed). You may assign another one to it.
class Recording {
 public:
  /// Iterates over the messages.
  class Iterator;

  /// Opens a recording.
  /// - kNotFound: there is no such file.
  /// - kOs: the file cannot be read or mapped, for instance because it is not a regular file.
  /// - kCorrupt: the file is not a recording of shmtree, or was altered. The error has the position.
  static Result<Recording> open(const std::string& path);

  /// Returns the path that was passed to open().
  const std::string& path() const& noexcept;
  /// Returns a copy, since the recording is a temporary.
  std::string path() && { return path(); }
  /// Returns the channels of which the recording has messages, in the order of their first message.
  std::vector<RecordedChannel> channels() const;
  /// Returns the number of messages that were put but not recorded, for each channel that lost any. Known only for a
  /// recording that was closed properly.
  std::vector<RecordedChannel> missed() const;
  /// True if the recording was closed properly, and has not been cut off since.
  bool whole() const noexcept;
  /// Returns the number of messages.
  std::uint64_t size() const noexcept;

  /// Iterates over the messages in the order in which they were written. begin() and `++` throw BadResult (kCorrupt) if
  /// the file was altered after it was opened, and std::bad_alloc.
  Iterator begin() const;
  /// Returns the end of the iteration.
  Iterator end() const noexcept;

 private:
  explicit Recording(std::shared_ptr<const recording::Reader> reader) noexcept : reader_(std::move(reader)) {}
  std::shared_ptr<const recording::Reader> reader_;
};

/// An input iterator. Copies share one position.
class Recording::Iterator {
 public:
  using value_type = RecordedMessage;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const RecordedMessage*;
  using reference = const RecordedMessage&;

  /// The end of every recording.
  Iterator() noexcept = default;
  reference operator*() const& noexcept { return message_; }
  RecordedMessage operator*() && noexcept { return std::move(message_); }
  pointer operator->() const& noexcept { return &message_; }
  pointer operator->() const&& = delete;
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(const Iterator& other) const noexcept { return cursor_ == other.cursor_; }

 private:
  friend class Recording;
  explicit Iterator(std::shared_ptr<const recording::Reader> reader);

  std::shared_ptr<const recording::Reader> reader_;
  std::shared_ptr<recording::Cursor> cursor_;  // Null at the end.
  RecordedMessage message_{};
};

}  // namespace shmtree
