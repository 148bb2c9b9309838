/// @file
/// Recordings of channels, as `python -m shmtree record` makes them: mapped and read.
///
///     shmtree::Recording recording = shmtree::Recording::open("run.mcap").value();
///     for (const shmtree::RecordedMessage& message : recording) {
///       const shmtree::Item item = message.load().value();
///       use(message.channel, item["obs"].view());      // where it lies in the file
///     }
///
/// The same as shmtree.recording.Recording of Python. A recording is an MCAP file (docs/observe.md); it may be one that
/// is still written, or that was cut off: there is what was whole when it was opened.
///
/// Ownership: the file stays mapped as long as a Recording, an iterator, a RecordedMessage, or an Item of one lives;
/// taking its name away, or putting another file in its place, changes nothing of that. Where the file itself is cut
/// off meanwhile, whoever reads what was behind the cut gets SIGBUS, as of every mapped file. Thread safety: a
/// Recording is a handle of what never changes, and any thread may use it; an iterator is for one thread at a time.
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

#include "shmtree/item.h"
#include "shmtree/result.h"

namespace shmtree {

namespace recording {
class Cursor;
class Reader;
}  // namespace recording

/// A channel of a recording.
struct RecordedChannel {
  std::string name{};          ///< by which it was recorded
  std::uint64_t messages = 0;  ///< how many of its messages are there, or were missed
};

/// A message of a recording. Copies name the same one.
struct RecordedMessage {
  std::string_view channel{};          ///< the name of the channel that it was put into; lives as long as `file`
  std::uint64_t time_ns = 0;           ///< when it was put: nanoseconds since the epoch
  std::uint32_t sequence = 0;          ///< the low 32 bits of its ticket, which counts the puts of its channel
  std::span<const std::byte> frame{};  ///< the message as unpack() and put_frame() take it; lives as long as `file`
  std::shared_ptr<const void> file{};  ///< keeps the file mapped

  /// The value. Its arrays are read-only views of the file, which stays mapped for them. kCorrupt, kIncompatible.
  Result<Item> load() const;
};

/// A recording of any number of channels. Copies name the same one. A moved-from recording has no path, no messages
/// and is not whole; its other calls throw BadResult (kClosed). You may assign another one to it. Keep a recording
/// while you iterate: `for (... : Recording::open(path).value())` destroys it before the first message.
class Recording {
 public:
  /// Goes over the messages.
  class Iterator;

  /// The recording in that file. kNotFound when there is none, kOs when it cannot be read or mapped, as what is no
  /// regular file; kCorrupt, which names the place, when it is no recording of ours, or was altered.
  static Result<Recording> open(const std::string& path);

  /// Of the file, as it was given.
  const std::string& path() const noexcept;
  /// Those that are there, in the order in which they came.
  std::vector<RecordedChannel> channels() const;
  /// How many messages were put and are not here, of the channels of which there are any. Known of a recording that was
  /// ended in order.
  std::vector<RecordedChannel> missed() const;
  /// Whether it was ended in order, and has not been cut off since.
  bool whole() const noexcept;
  /// How many messages there are.
  std::uint64_t size() const noexcept;

  /// Over the messages, in the order in which they were written. begin() and `++` throw BadResult (kCorrupt) when
  /// somebody has altered the file since it was opened, and std::bad_alloc.
  Iterator begin() const;
  /// The end of these.
  Iterator end() const noexcept;

 private:
  explicit Recording(std::shared_ptr<const recording::Reader> reader) noexcept : reader_(std::move(reader)) {}
  std::shared_ptr<const recording::Reader> reader_;
};

/// An input iterator: copies of one go on together.
class Recording::Iterator {
 public:
  using value_type = RecordedMessage;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const RecordedMessage*;
  using reference = const RecordedMessage&;

  /// The end of every recording.
  Iterator() noexcept = default;
  reference operator*() const noexcept { return message_; }
  pointer operator->() const noexcept { return &message_; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(const Iterator& other) const noexcept { return cursor_ == other.cursor_; }

 private:
  friend class Recording;
  explicit Iterator(std::shared_ptr<const recording::Reader> reader);

  std::shared_ptr<const recording::Reader> reader_;
  std::shared_ptr<recording::Cursor> cursor_;  // null at the end
  RecordedMessage message_{};
};

}  // namespace shmtree
