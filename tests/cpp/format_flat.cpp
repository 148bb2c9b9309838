// Frames of nothing but bytes are those that a builder makes, and are recognised as what they are.
#include <algorithm>
#include <random>

#include "format/flat.h"
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

test::Bytes built(Kind kind, const std::vector<std::byte>& run) {
  FrameBuilder builder;
  builder.add_kind(kind);
  if (kind == Kind::kBytes) {
    builder.add_string(run.data(), run.size());
  } else {
    builder.add_blob(run.data(), run.size());
  }
  return test::bytes_of(builder);
}

test::Bytes in_text(const std::vector<std::byte>& run) {
  test::Bytes frame(flat_text_bytes(run.size()), std::byte{0xaa});
  write_flat_text(frame.data(), run);
  return frame;
}
test::Bytes in_buffer(const std::vector<std::byte>& run) {
  test::Bytes frame(flat_buffer_bytes(run.size()), std::byte{0xaa});
  write_flat_prefix(frame.data(), run.size());
  std::copy(run.begin(), run.end(), frame.begin() + kFlatBuffer);
  return frame;
}

bool is_run(const test::Bytes& frame, const std::vector<std::byte>& run) {
  const auto found = flat_run(frame);
  return found && std::ranges::equal(*found, run);
}

}  // namespace

TEST_CASE("a run of bytes is the frame that a builder makes of it, and is found in it") {
  for (const std::size_t count : {0u, 1u, 7u, 8u, 100u, 254u, 255u, 256u, 1024u, 4096u}) {
    INFO(count << " bytes");
    const auto run = some_bytes(count);
    CHECK(in_text(run) == built(Kind::kBytes, run));
    CHECK(is_run(in_text(run), run));
    if (count == 0) continue;
    CHECK(in_buffer(run) == built(Kind::kLongBytes, run));
    CHECK(is_run(in_buffer(run), run));
  }
  const auto large = some_bytes(1'000'000);
  CHECK(in_buffer(large) == built(Kind::kLongBytes, large));
  CHECK(is_run(in_buffer(large), large));
}

TEST_CASE("a frame of anything else is no run of bytes") {
  FrameBuilder builder;
  test::add_small_dict(builder);
  CHECK_FALSE(flat_run(test::bytes_of(builder)));
  CHECK_FALSE(flat_run(built(Kind::kLongByteArray, some_bytes(9))));
  builder.clear();
  builder.add_kind(Kind::kList);
  builder.add_length(1);
  builder.add_bytes_node("abc", 3);
  CHECK_FALSE(flat_run(test::bytes_of(builder)));
  CHECK_FALSE(flat_run({}));
  CHECK_FALSE(flat_run(some_bytes(111)));
}

TEST_CASE("no change of a word, and no cut, lets a run of bytes reach beyond its frame") {
  const std::uint64_t words[] = {0, 1, 0xff, 1000, UINT64_MAX, std::uint64_t{1} << 47, kMaxFrameBytes, 1024 + 192};
  for (const bool text : {true, false}) {
    const auto run = some_bytes(1024);
    const test::Bytes whole = text ? in_text(run) : in_buffer(run);
    for (std::size_t at = 0; at + 8 <= kFlatBuffer; at += 4) {
      for (const std::uint64_t word : words) {
        test::Bytes frame = whole;
        std::memcpy(frame.data() + at, &word, 8);
        const auto found = flat_run(frame);
        if (!found) continue;
        REQUIRE(found->data() >= frame.data());
        REQUIRE(found->data() + found->size() <= frame.data() + frame.size());
        auto reader = FrameReader::open(frame);
        REQUIRE(reader.ok());  // what is recognised is a frame
      }
    }
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
      REQUIRE_FALSE(flat_run(std::span(whole).first(bytes)));
    }
  }
}
