// Recordings are read as they were written, up to the place where they were cut off, and are safe to read with any
// bytes.
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <vector>

#include "recording/recording_reader.h"
#include "support/catch2.h"
#include "support/recordings.h"

using namespace shmtree;
using namespace shmtree::test;
using recording::Cursor;
using recording::Entry;
using recording::Reader;

namespace {

std::string small() {
  return small_recording("first", std::string(100, 'x'), "third");
}

Result<std::shared_ptr<const Reader>> open_bytes(std::string_view bytes) {
  return Reader::map(FileInMemory(bytes).fd(), "run.mcap");
}
std::string why_not(std::string_view bytes) {
  const auto opened = open_bytes(bytes);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.code() == Code::kCorrupt);
  return opened.error().message;
}
std::string text_of(const Entry& entry) {
  return {reinterpret_cast<const char*>(entry.frame.data()), entry.frame.size()};
}

// Reads every byte of every message that the reader can find.
std::uint64_t read_all(const Reader& reader) {
  Cursor cursor(reader);
  Entry entry;
  std::uint64_t sum = 0;
  for (;;) {
    const auto found = cursor.next(entry);
    if (!found.ok()) {
      CHECK(found.code() == Code::kCorrupt);
      CHECK(entry.channel < reader.channels().size() + 1);
      return sum;
    }
    if (!*found) return sum;
    CHECK(entry.channel < reader.channels().size());
    for (const std::byte each : entry.frame) sum += static_cast<std::uint64_t>(each);
  }
}

}  // namespace

TEST_CASE("messages are read in place in the order of writing") {
  const auto reader = open_bytes(small()).value();
  REQUIRE(reader->channels().size() == 2);
  CHECK(reader->channels()[0].channel == "obs");
  CHECK(reader->channels()[0].messages == 2);
  CHECK(reader->channels()[1].channel == "actions");
  CHECK(reader->channels()[1].messages == 1);
  CHECK(reader->size() == 3);
  REQUIRE(reader->missed().size() == 1);
  CHECK(reader->missed()[0].channel == "obs");
  CHECK(reader->missed()[0].messages == 12);
  CHECK(reader->is_whole());

  Cursor cursor(*reader);
  Entry entry;
  std::vector<std::string> frames;
  std::vector<std::uint64_t> times, sequences, channels;
  while (cursor.next(entry).value()) {
    CHECK(reinterpret_cast<std::uintptr_t>(entry.frame.data()) % recording::kFrameAlignment == 0);
    CHECK(entry.frame.data() > reader->bytes().data());
    CHECK(entry.frame.data() + entry.frame.size() < reader->bytes().data() + reader->bytes().size());
    frames.push_back(text_of(entry));
    times.push_back(entry.time_ns);
    sequences.push_back(entry.sequence);
    channels.push_back(entry.channel);
  }
  CHECK(frames == std::vector<std::string>{"first", std::string(100, 'x'), "third"});
  CHECK(times == std::vector<std::uint64_t>{1'000, 2'000, 3'000});
  CHECK(sequences == std::vector<std::uint64_t>{7, 0, 9});
  CHECK(channels == std::vector<std::uint64_t>{0, 1, 0});
  CHECK_FALSE(cursor.next(entry).value());
}

// guarantee: recordings
TEST_CASE("a truncated recording keeps its whole messages") {
  const std::string bytes = small();
  std::uint64_t before = 0;
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const auto opened = open_bytes(std::string_view(bytes).substr(0, size));
    if (size < kMagic.size()) {
      CHECK(opened.code() == Code::kCorrupt);
      continue;
    }
    CHECK(opened.value()->size() >= before);
    before = opened.value()->size();
    CHECK(opened.value()->is_whole() == (size == bytes.size()));
    read_all(**opened);
  }
  CHECK(before == 3);
}

// guarantee: recordings
TEST_CASE("a changed byte never causes a read outside the file") {
  const std::string bytes = small();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x05, 0x7f, 0x80, 0xff, bytes[at] ^ 0x01}) {
      std::string other = bytes;
      other[at] = static_cast<char>(value);
      const auto opened = open_bytes(other);
      if (opened.ok()) {
        read_all(**opened);
      } else {
        CHECK(opened.code() == Code::kCorrupt);
        CHECK(opened.error().message.starts_with("'run.mcap'"));
      }
    }
  }
}

// guarantee: recordings
TEST_CASE("bytes changed after open are read safely or are an error") {
  const std::string bytes = small();
  const FileInMemory file(bytes);
  const auto reader = Reader::map(file.fd(), "run.mcap").value();
  const std::uint64_t sum = read_all(*reader);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int value : {0x00, 0x05, 0xff}) {
      file.write(at, std::string(1, static_cast<char>(value)));
      read_all(*reader);
    }
    file.write(at, bytes.substr(at, 1));
  }
  CHECK(read_all(*reader) == sum);
}

// guarantee: recordings
TEST_CASE("lost messages are an error and later ones are not read") {
  RecordingBytes made;
  made.channel(0, "obs");
  made.message(0, 0, 1, "first");
  const std::size_t after_first = made.bytes.size();
  made.message(0, 1, 2, "second");
  const std::size_t whole = made.bytes.size();
  made.message(0, 2, 3, "third, which is still written");
  const FileInMemory file(std::string_view(made.bytes).substr(0, made.bytes.size() - 1));
  const auto reader = Reader::map(file.fd(), "run.mcap").value();
  CHECK(reader->size() == 2);

  file.write(whole, std::string_view(made.bytes).substr(whole));
  Cursor cursor(*reader);
  Entry entry;
  CHECK(cursor.next(entry).value());
  CHECK(cursor.next(entry).value());
  CHECK_FALSE(cursor.next(entry).value());

  file.write(after_first, "\x0f");
  Cursor again(*reader);
  CHECK(again.next(entry).value());
  const auto second = again.next(entry);
  REQUIRE_FALSE(second.ok());
  CHECK(second.code() == Code::kCorrupt);
  CHECK(second.error().message.find("only 1 of the 2 messages that it had") != std::string::npos);
}

TEST_CASE("errors of invalid recordings name the file and the offset") {
  CHECK(why_not("four") == "'run.mcap' has 4 bytes, too few for a recording");
  CHECK(why_not("something else entirely") == "'run.mcap' is not a recording: it has no MCAP header");
  RecordingBytes made;
  const std::string place = "'run.mcap', at byte " + std::to_string(made.bytes.size()) + ": ";
  const auto with = [&made](auto add) {
    RecordingBytes other = made;
    add(other);
    return why_not(other.bytes);
  };
  const auto wrong = [&with](Opcode opcode, const std::string& content) {
    return with([&](RecordingBytes& other) { other.raw(opcode, content); });
  };
  CHECK(wrong(Opcode::kNone, "") == place + "a record has the invalid kind 0");
  CHECK(wrong(Opcode::kMessage, "four") == place + "a message of 4 bytes is shorter than its header");
  CHECK(wrong(Opcode::kMessage, std::string(22, '\1')) ==
        place + "a message of channel 257, which has no channel record before it");
  CHECK(wrong(Opcode::kChannel, "four") == place + "a length in it exceeds the record");
  CHECK(wrong(Opcode::kMetadata, RecordingBytes::number(~std::uint32_t{0})) ==
        place + "a length in it exceeds the record");
  CHECK(wrong(Opcode::kMetadata, RecordingBytes::text("\xff")) == place + "a text is not UTF-8");
  CHECK(wrong(Opcode::kMetadata, RecordingBytes::text("\xed\xa0\x80")) == place + "a text is not UTF-8");
  CHECK(with([](RecordingBytes& other) { other.chunk(100, "lz4"); }) ==
        place + "a compressed chunk: another tool has rewritten the recording, so it cannot be mapped");
  CHECK(with([](RecordingBytes& other) { other.channel(0, "obs", "json"); }) ==
        place + "the messages of 'obs' are 'json' and not 'shmtree'");
  for (const std::string_view count : {"", "-1", "x", "1x", "99999999999999999999"}) {
    CHECK(with([&](RecordingBytes& other) { other.missed("obs", count); }) ==
          place + "'" + std::string(count) + "' messages of 'obs' were missed");
  }
}

// guarantee: recordings
TEST_CASE("a chunk is read up to a cut whatever its size says") {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1'000}, ~std::uint64_t{0} >> 1}) {
    RecordingBytes made;
    made.channel(0, "obs");
    made.chunk(size);
    made.message(0, 0, 1, "first");
    made.message(0, 1, 2, "second");
    const std::size_t whole = made.bytes.size();
    made.message(0, 2, 3, "third");
    CHECK(open_bytes(made.bytes).value()->size() == 3);
    CHECK(open_bytes(std::string_view(made.bytes).substr(0, made.bytes.size() - 1)).value()->size() == 2);
    CHECK(open_bytes(std::string_view(made.bytes).substr(0, whole - 1)).value()->size() == 1);
  }
}

TEST_CASE("foreign records are skipped and repeated entries merged") {
  RecordingBytes made;
  made.raw(static_cast<Opcode>(0x90), "of another tool");
  made.raw(Opcode::kMetadata, RecordingBytes::text("of another tool") + RecordingBytes::text("not a map"));
  made.channel(3, "obs");
  made.channel(4, "obs");
  made.message(3, 0, 1, "a");
  made.message(4, 1, 2, "b");
  made.missed("obs", "1");
  made.missed("obs", "2");
  made.end();
  made.message(9, 0, 0, "behind the end");
  const auto reader = open_bytes(made.bytes).value();
  REQUIRE(reader->channels().size() == 1);
  CHECK(reader->channels()[0].messages == 2);
  REQUIRE(reader->missed().size() == 1);
  CHECK(reader->missed()[0].messages == 2);
}

// guarantee: recordings
TEST_CASE("a missing or irregular file is refused with its path") {
  CHECK(Reader::open("/proc/self/nothing.mcap").code() == Code::kNotFound);
  const std::string pipe = "/tmp/shmtree-test-pipe-" + std::to_string(getpid());
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path :
       {std::string("/"), std::string("/dev/zero"), pipe}) {  // open() must not block on the pipe
    const auto opened = Reader::open(path);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.code() == Code::kOs);
    CHECK(opened.error().message == "'" + path + "' is no regular file");
  }
  unlink(pipe.c_str());
}
