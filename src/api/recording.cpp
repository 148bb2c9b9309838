// Implements Recording of the public API.
#include "shmtree/recording.h"

#include "platform/never_destroyed.h"
#include "recording/recording_reader.h"
#include "shmtree/frame.h"

namespace shmtree {

using recording::Count;
using recording::Cursor;
using recording::Reader;

namespace {

std::vector<RecordedChannel> to_channels(const std::vector<Count>& counts) {
  std::vector<RecordedChannel> channels;
  channels.reserve(counts.size());
  for (const Count& one : counts) channels.push_back({one.channel, one.messages});
  return channels;
}

// Throws if the recording was moved from.
const Reader& open_reader(const std::shared_ptr<const Reader>& reader) {
  if (reader == nullptr) throw BadResult(Error{Code::kClosed, "this Recording was moved from"});
  return *reader;
}

}  // namespace

Result<Item> RecordedMessage::load() const {
  return unpack(frame, file);
}

Result<Recording> Recording::open(const std::string& path) {
  return or_out_of_memory([&]() -> Result<Recording> {
    auto reader = Reader::open(path);
    if (!reader) return std::move(reader).error();
    return Recording(std::move(*reader));
  });
}

const std::string& Recording::path() const& noexcept {
  return reader_ == nullptr ? platform::never_destroyed<std::string>() : reader_->path();
}
std::vector<RecordedChannel> Recording::channels() const {
  return to_channels(open_reader(reader_).channels());
}
std::vector<RecordedChannel> Recording::missed() const {
  return to_channels(open_reader(reader_).missed());
}
bool Recording::whole() const noexcept {
  return reader_ != nullptr && reader_->is_whole();
}
std::uint64_t Recording::size() const noexcept {
  return reader_ == nullptr ? 0 : reader_->size();
}

Recording::Iterator Recording::begin() const {
  open_reader(reader_);
  return Iterator(reader_);
}
Recording::Iterator Recording::end() const noexcept {
  return {};
}

Recording::Iterator::Iterator(std::shared_ptr<const Reader> reader)
    : reader_(std::move(reader)), cursor_(std::make_shared<Cursor>(*reader_)) {
  ++*this;
}

Recording::Iterator& Recording::Iterator::operator++() {
  recording::Entry entry;
  if (!cursor_->next(entry).value()) {
    *this = Iterator();
  } else {
    message_ = {reader_->channels()[entry.channel].channel, entry.time_ns, entry.sequence, entry.frame, reader_};
  }
  return *this;
}

}  // namespace shmtree
