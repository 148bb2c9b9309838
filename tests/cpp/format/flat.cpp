// Frames of a single byte range are recognised, and read like those that a builder makes.
#include "format/flat.h"

#include <algorithm>
#include <random>

#include "format/frame_reader.h"
#include "support/catch2.h"
#include "support/frames.h"

using namespace shmtree;
using namespace shmtree::format;

namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

// Byte ranges of the short form, and of the long form with its buffer.
test::Bytes short_frame(const std::vector<std::byte>& run) {
  test::Bytes frame(flat_short_bytes(run.size()), std::byte{0xaa});
  write_flat_short(frame.data(), run);
  return frame;
}
test::Bytes long_frame(const std::vector<std::byte>& run) {
  test::Bytes frame(flat_long_bytes(run.size()), std::byte{0xaa});
  write_flat_prefix(frame.data(), run.size());
  std::copy(run.begin(), run.end(), frame.begin() + kFlatBuffer);
  return frame;
}

bool is_run(const test::Bytes& frame, const std::vector<std::byte>& run) {
  const auto found = flat_run(frame);
  return found && std::ranges::equal(*found, run);
}

}  // namespace

// Returns the root's bytes as a reader of any frame finds them.
std::vector<std::byte> read_as_node(const test::Bytes& frame) {
  FrameReader reader = FrameReader::open(frame).value();
  const Kind kind = reader.next_kind();
  std::vector<std::byte> found;
  if (kind == Kind::kBytes) {
    const std::string_view text = reader.next_string();
    std::ranges::transform(text, std::back_inserter(found), [](char c) { return static_cast<std::byte>(c); });
  } else {
    REQUIRE(kind == Kind::kLongBytes);
    const auto blob = reader.next_blob();
    found.assign(blob.begin(), blob.end());
  }
  REQUIRE(reader.finish().ok());
  REQUIRE(reader.total_bytes() == frame.size());
  return found;
}

TEST_CASE("a byte range is found in its frame and read as bytes") {
  for (const std::size_t count : {0u, 1u, 7u, 8u, 100u, 254u, 255u, 256u, 1024u, 4096u, 1'000'000u}) {
    INFO(count << " bytes");
    const auto run = some_bytes(count);
    for (const test::Bytes& frame : {short_frame(run), long_frame(run)}) {
      CHECK(is_run(frame, run));
      CHECK(read_as_node(frame) == run);
    }
  }
}

TEST_CASE("flat_run finds nothing in other frames") {
  FrameBuilder builder;
  test::add_small_dict(builder);
  CHECK_FALSE(flat_run(test::bytes_of(builder)));
  builder.clear();
  builder.add_bytes_node("abc", 3);
  CHECK_FALSE(flat_run(test::bytes_of(builder)));
  CHECK_FALSE(flat_run({}));
  CHECK_FALSE(flat_run(some_bytes(111)));
}

// guarantee: cpp-loans
TEST_CASE("flat_run of a damaged frame stays within the frame") {
  const std::uint64_t words[] = {0, 1, 0xff, 1000, UINT64_MAX, std::uint64_t{1} << 47, kMaxFrameBytes, 1024 + 192};
  for (const bool is_short : {true, false}) {
    const auto run = some_bytes(1024);
    const test::Bytes whole = is_short ? short_frame(run) : long_frame(run);
    for (std::size_t at = 0; at + 8 <= kFlatBuffer; at += 4) {
      for (const std::uint64_t word : words) {
        test::Bytes frame = whole;
        std::memcpy(frame.data() + at, &word, 8);
        const auto found = flat_run(frame);
        if (!found) continue;
        REQUIRE(found->data() >= frame.data());
        REQUIRE(found->data() + found->size() <= frame.data() + frame.size());
        auto reader = FrameReader::open(frame);
        REQUIRE(reader.ok());  // a recognised frame is valid
      }
    }
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
      REQUIRE_FALSE(flat_run(std::span(whole).first(bytes)));
    }
  }
}
