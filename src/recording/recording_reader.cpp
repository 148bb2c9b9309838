#include "recording/recording_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "platform/file.h"
#include "recording/fields.h"

namespace shmtree::recording {

namespace {

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}

Error corrupt_file(const std::string& path, const std::string& what) {
  return Error{.code = Code::kCorrupt, .message = quoted(path) + what};
}

// Returns nullopt if `text` is not a number or does not fit in 64 bits.
std::optional<std::uint64_t> number_in(const std::string& text) noexcept {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end ? std::optional(number) : std::nullopt;
}

}  // namespace

Result<std::shared_ptr<const Reader>> Reader::open(const std::string& path) {
  auto fd = platform::open_for_reading(path);
  if (!fd) return std::move(fd).error();
  return map(fd->get(), path);
}

Result<std::shared_ptr<const Reader>> Reader::map(int fd, std::string path) {
  if (Status is_file = platform::check_regular_file(fd, path); !is_file) return std::move(is_file).error();
  const auto size = platform::file_size(fd);
  if (!size) return size.error();
  if (*size < kMagic.size()) {
    return corrupt_file(path, " has " + std::to_string(*size) + " bytes, too few for a recording");
  }
  const std::shared_ptr<Reader> reader(new Reader(std::move(path)));
  const auto mapped = platform::map_for_reading(fd, *size);
  if (!mapped) {
    Error error = mapped.error();
    error.message = quoted(reader->path_) + ": " + error.message;
    return error;
  }
  reader->bytes_ = {*mapped, static_cast<std::size_t>(*size)};
  if (std::memcmp(*mapped, kMagic.data(), kMagic.size()) != 0) {
    return corrupt_file(reader->path_, " is not a recording: it has no MCAP header");
  }
  if (Status read = reader->read_all(); !read) return std::move(read).error();
  return std::shared_ptr<const Reader>(reader);
}

Reader::~Reader() {
  if (!bytes_.empty()) platform::unmap(bytes_.data(), bytes_.size());
}

Error Reader::corrupt(std::uint64_t at, const std::string& what) const {
  return corrupt_file(path_, ", at byte " + std::to_string(at) + ": " + what);
}

Status Reader::read_all() {
  Cursor cursor(*this);
  Entry entry;
  for (;;) {
    const auto found = cursor.next(entry);
    if (!found) return found.error();
    if (!*found) break;
    ++channels_[entry.channel].messages;
    ++size_;
  }
  // Records after the end of the data serve other tools only. The magic at the end of the file shows whether they were
  // cut off.
  const auto end = bytes_.last(kMagic.size());
  is_whole_ = is_whole_ && std::memcmp(end.data(), kMagic.data(), kMagic.size()) == 0;
  return success();
}

std::size_t Reader::add_channel(std::string name, std::string kind) {
  const auto [place, is_new] = places_.try_emplace(std::move(name), channels_.size());
  if (is_new) channels_.push_back({.channel = place->first, .kind = std::move(kind)});
  return place->second;
}

Status Reader::note_missed(std::span<const std::byte> metadata, std::uint64_t at) {
  Fields fields(metadata);
  if (fields.text() != kMissed) return fields.wrong() == nullptr ? success() : corrupt(at, fields.wrong());
  Fields counts = fields.map();
  while (fields.wrong() == nullptr && !counts.at_end()) {
    std::string channel = counts.text();
    const std::string text = counts.text();
    if (counts.wrong() != nullptr) return corrupt(at, counts.wrong());
    const std::optional<std::uint64_t> count = number_in(text);
    if (!count) return corrupt(at, quoted(text) + " messages of " + quoted(channel) + " were missed");
    const auto is_it = [&](const Count& one) { return one.channel == channel; };
    if (const auto found = std::find_if(missed_.begin(), missed_.end(), is_it); found != missed_.end()) {
      found->messages = *count;
    } else {
      missed_.push_back({std::move(channel), *count});
    }
  }
  return fields.wrong() == nullptr ? success() : corrupt(at, fields.wrong());
}

std::optional<Cursor::Record> Cursor::next_record() noexcept {
  const std::span<const std::byte> bytes = reader_.bytes_;
  if (bytes.size() - at_ < kPrefixBytes) return std::nullopt;
  Fields prefix(bytes.subspan(at_, kPrefixBytes));
  Record record{.opcode = static_cast<Opcode>(prefix.number<std::uint8_t>()), .at = at_};
  const auto size = prefix.number<std::uint64_t>();
  const std::uint64_t begin = at_ + kPrefixBytes;
  if (record.opcode == Opcode::kNone) return record;
  if (record.opcode == Opcode::kChunk) {  // the next record is the first one in the chunk
    if (bytes.size() - begin < kChunkBytes) return std::nullopt;
    record.content = bytes.subspan(begin, kChunkBytes);
    at_ = begin + kChunkBytes;
    return record;
  }
  if (size > bytes.size() - begin) return std::nullopt;
  record.content = bytes.subspan(begin, size);
  at_ = record.opcode == Opcode::kDataEnd ? bytes.size() : begin + size;
  return record;
}

Result<bool> Cursor::next(Entry& entry) {
  if (noting_ == nullptr && read_ == reader_.size())
    return false;  // messages appended since then are not part of this recording
  while (const std::optional<Record> record = next_record()) {
    const bool is_message = record->opcode == Opcode::kMessage;
    if (const Status read = is_message ? read_message(*record, entry) : pass(*record); !read) return read.error();
    if (!is_message) continue;
    ++read_;
    return true;
  }
  if (noting_ != nullptr) return false;
  return reader_.corrupt(at_, "only " + std::to_string(read_) + " of the " + std::to_string(reader_.size()) +
                                  " messages that it had when it was opened are left");
}

Status Cursor::read_message(const Record& record, Entry& entry) const {
  if (record.content.size() < kMessageBytes) {
    return reader_.corrupt(
        record.at, "a message of " + std::to_string(record.content.size()) + " bytes is shorter than its header");
  }
  Fields header(record.content.first(kMessageBytes));
  const auto number = header.number<std::uint16_t>();
  const auto channel = channels_.find(number);
  if (channel == channels_.end()) {
    return reader_.corrupt(
        record.at, "a message of channel " + std::to_string(number) + ", which has no channel record before it");
  }
  entry.channel = channel->second;
  entry.sequence = header.number<std::uint32_t>();
  entry.time_ns = header.number<std::uint64_t>();
  entry.frame = record.content.subspan(kMessageBytes);
  return success();
}

Status Cursor::pass(const Record& record) {
  switch (record.opcode) {
    case Opcode::kNone: return reader_.corrupt(record.at, "a record has the invalid kind 0");
    case Opcode::kChannel: return note_channel(record);
    case Opcode::kChunk:
      if (Fields(record.content.subspan(kCompressionOffset)).number<std::uint32_t>() == 0) return success();
      return reader_.corrupt(record.at,
                             "a compressed chunk: another tool has rewritten the recording, so it cannot be mapped");
    case Opcode::kMetadata: return noting_ == nullptr ? success() : noting_->note_missed(record.content, record.at);
    case Opcode::kDataEnd:
      if (noting_ != nullptr) noting_->is_whole_ = true;
      return success();
    default: return success();
  }
}

Status Cursor::note_channel(const Record& record) {
  Fields fields(record.content);
  const auto number = fields.number<std::uint16_t>();
  fields.number<std::uint16_t>();  // the schema number, which is not used
  std::string topic = fields.text();
  const std::string encoding = fields.text();
  std::string kind;
  for (Fields metadata = fields.map(); !metadata.at_end();) {
    const std::string key = metadata.text();
    std::string value = metadata.text();
    if (key == kKind) kind = std::move(value);
  }
  if (fields.wrong() != nullptr) return reader_.corrupt(record.at, fields.wrong());
  if (encoding != kEncoding) {
    return reader_.corrupt(record.at, "the messages of " + quoted(topic) + " are " + quoted(encoding) + " and not " +
                                          quoted(std::string(kEncoding)));
  }
  if (noting_ != nullptr) {
    channels_[number] = noting_->add_channel(std::move(topic), std::move(kind));
    return success();
  }
  const auto place = reader_.places_.find(topic);
  if (place == reader_.places_.end()) {
    return reader_.corrupt(record.at, "channel " + quoted(topic) + " did not exist when the recording was opened");
  }
  channels_[number] = place->second;
  return success();
}

}  // namespace shmtree::recording
