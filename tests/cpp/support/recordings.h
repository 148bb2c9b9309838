// Recordings made by hand, and memory files that contain them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shmtree::test {

// Opcodes of MCAP (https://mcap.dev/spec), independent of the reader.
enum class Opcode : std::uint8_t {
  kNone = 0x00,
  kHeader = 0x01,
  kFooter = 0x02,
  kChannel = 0x04,
  kMessage = 0x05,
  kChunk = 0x06,
  kMetadata = 0x0c,
  kDataEnd = 0x0f,
  kPadding = 0x80,
};
inline constexpr std::string_view kMagic("\x89MCAP0\r\n", 8);

// The bytes of a file, record by record.
class RecordingBytes {
 public:
  RecordingBytes() { raw(Opcode::kHeader, text("shmtree") + text("a test")); }

  static std::string text(std::string_view value) {
    return number(static_cast<std::uint32_t>(value.size())).append(value);
  }
  template <class T>
  static std::string number(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }

  void raw(Opcode opcode, std::string_view content) {
    bytes += static_cast<char>(opcode);
    bytes += number(static_cast<std::uint64_t>(content.size()));
    bytes += content;
  }
  void channel(std::uint16_t channel, std::string_view name, std::string_view encoding = "shmtree") {
    raw(Opcode::kChannel, number(channel) + number(std::uint16_t{0}) + text(name) + text(encoding) + text(""));
  }
  // Adds a message, after padding that aligns its frame to 64.
  void message(std::uint16_t channel, std::uint32_t sequence, std::uint64_t time_ns, std::string_view frame) {
    std::size_t missing = (kAlignment - (bytes.size() + kPrefix + kHeader) % kAlignment) % kAlignment;
    if (missing != 0 && missing < kPrefix) missing += kAlignment;
    if (missing != 0) raw(Opcode::kPadding, std::string(missing - kPrefix, '\0'));
    raw(Opcode::kMessage, number(channel) + number(sequence) + number(time_ns) + number(time_ns) + std::string(frame));
  }
  // Begins a chunk of that size, which messages follow.
  void chunk(std::uint64_t size, std::string_view compression = "") {
    const std::string fields = std::string(16, '\0') + number(size) + number(std::uint32_t{0}) + text(compression);
    bytes += static_cast<char>(Opcode::kChunk) + number(fields.size() + 8 + size) + fields + number(size);
  }
  void missed(std::string_view channel, std::string_view count) {
    raw(Opcode::kMetadata, text("shmtree.missed") + text(text(channel) + text(count)));
  }
  void end() {
    raw(Opcode::kDataEnd, number(std::uint32_t{0}));
    raw(Opcode::kFooter, std::string(20, '\0'));
    bytes += kMagic;
  }

  std::string bytes{kMagic};

 private:
  static constexpr std::size_t kAlignment = 64, kPrefix = 9, kHeader = 22;
};

// Returns a recording with two channels, three messages, the last of them in a chunk, and counts of missed messages.
inline std::string small_recording(std::string_view first, std::string_view second, std::string_view third) {
  RecordingBytes made;
  made.channel(0, "obs");
  made.message(0, 7, 1'000, first);
  made.channel(1, "actions");
  made.message(1, 0, 2'000, second);
  made.chunk(third.size() + 64);
  made.message(0, 9, 3'000, third);
  made.missed("obs", "12");
  made.end();
  return made.bytes;
}

// A memory file.
class FileInMemory {
 public:
  explicit FileInMemory(std::string_view bytes) : fd_(memfd_create("a recording", MFD_CLOEXEC)) { write(0, bytes); }
  ~FileInMemory() { close(fd_); }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;

  void write(std::size_t at, std::string_view bytes) const {
    const auto offset = static_cast<off_t>(at);
    if (pwrite(fd_, bytes.data(), bytes.size(), offset) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
  void cut(std::size_t size) const {
    if (ftruncate(fd_, static_cast<off_t>(size)) != 0) std::abort();
  }
  int fd() const noexcept { return fd_; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace shmtree::test
