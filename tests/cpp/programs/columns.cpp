// Prints the metadata of frames as shmtree's reader finds it, one line of JSON for each frame: for tests/capnp_readers.
//
//   columns < messages
//
// The input has, for each frame, the size of its metadata (8 bytes) and the metadata. A frame that the reader refuses
// gives a line with the reason.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "format/metadata_reader.h"

using namespace shmtree::format;

namespace {

template <class T>
void print_bytes(const char* name, std::span<const T> bytes) {
  std::printf("\"%s\": \"", name);
  for (const T byte : bytes) std::printf("%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  std::fputs("\", ", stdout);
}

template <class Items, class Print>
void print_list(const char* name, const Items& items, Print print, const char* end = ", ") {
  std::printf("\"%s\": [", name);
  const char* between = "";
  for (const auto& item : items) {
    std::fputs(between, stdout);
    print(item);
    between = ", ";
  }
  std::printf("]%s", end);
}

void print_signed(std::int64_t number) {
  std::printf("%" PRId64, number);
}

void print_unsigned(std::uint64_t number) {
  std::printf("%" PRIu64, number);
}

void print(const FrameColumns& columns) {
  std::putchar('{');
  print_bytes("kinds", columns.kinds);
  print_bytes("lengths", columns.lengths);
  print_bytes("text", columns.text);
  print_list("ints", columns.ints, print_signed);
  print_list("floats", columns.floats, [](const double& number) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    print_unsigned(bits);
  });
  print_list("arrays", columns.arrays, [](const ArrayDescriptor& array) {
    std::printf("[%d, %d, %d, %" PRIu32 "]", array.dtype, array.flags, array.ndim, array.buffer);
  });
  print_list("buffers", columns.buffers, print_unsigned);
  print_list("views", columns.views, print_signed);
  print_list(
      "externals", columns.externals,
      [](const External& one) {
        std::printf("[%" PRIu32 ", %" PRIu64 ", %" PRIu64 "]", one.reference, one.offset, one.bytes);
      },
      "");
  std::puts("}");
}

}  // namespace

int main() {
  std::vector<std::uint64_t> words;
  for (std::uint64_t bytes = 0; std::fread(&bytes, sizeof bytes, 1, stdin) == 1;) {
    words.resize(bytes / sizeof(std::uint64_t));
    if (std::fread(words.data(), sizeof(std::uint64_t), words.size(), stdin) != words.size()) return 1;
    FrameColumns columns;
    const auto read = read_metadata(words, columns);
    if (read.ok()) {
      print(columns);
    } else {
      std::printf("{\"refused\": \"%s\"}\n", read.error().message.c_str());
    }
  }
  return 0;
}
