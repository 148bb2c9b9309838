// A frame that no sender wrote is refused with a reason. It never causes a crash, a hang or large allocations.
#include <functional>
#include <random>

#include "format/frame_reader.h"
#include "support/catch2.h"
#include "support/frame_walk.h"
#include "support/frames.h"
#include "support/versions.h"

using namespace shmtree;
using format::FrameBuilder;
using format::FrameReader;
using test::Bytes;

namespace {

Bytes small_dict() {
  FrameBuilder builder;
  test::add_small_dict(builder);
  return test::bytes_of(builder);
}

Bytes one_array() {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const std::int64_t shape[] = {2, 3};
  FrameBuilder builder;
  test::add_array_node(builder, {.data = values, .shape = shape, .ndim = 2, .dtype = DType::kFloat32});
  return test::bytes_of(builder);
}

std::string reason_of(const Bytes& frame) {
  auto walk = test::walk_frame(frame);
  return walk.ok() ? "accepted" : walk.error().message;
}

bool refused(const Bytes& frame, std::string_view reason) {
  auto walk = test::walk_frame(frame);
  INFO(reason_of(frame));
  CHECK_FALSE(walk.ok());
  CHECK(reason_of(frame).find(reason) != std::string::npos);
  return !walk.ok() && walk.error().code == Code::kCorrupt;
}

template <class T>
void poke(Bytes& frame, std::size_t offset, T value) {
  std::memcpy(frame.data() + offset, &value, sizeof(value));
}

template <class T>
T peek(const Bytes& frame, std::size_t offset) {
  T value;
  std::memcpy(&value, frame.data() + offset, sizeof(value));
  return value;
}

// Returns a frame of columns that need not be consistent.
Bytes written(const std::function<void(FrameBuilder&)>& add) {
  FrameBuilder builder;
  add(builder);
  return test::bytes_of(builder);
}

}  // namespace

TEST_CASE("a frame that is cut off anywhere is refused") {
  for (const Bytes& whole : {small_dict(), one_array(), test::everything()}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      auto walk = test::walk_frame(std::span(whole).first(size));
      REQUIRE_FALSE(walk.ok());
      REQUIRE(walk.error().code == Code::kCorrupt);
    }
  }
}

TEST_CASE("a truncated frame with a matching size field is refused") {
  for (const Bytes& whole : {small_dict(), one_array()}) {
    for (std::size_t size = 16; size < whole.size(); ++size) {
      Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      poke(cut, 8, peek<std::uint64_t>(cut, 8) >> 48 << 48 | size);
      REQUIRE_FALSE(test::walk_frame(cut).ok());
    }
  }
}

// guarantee: damaged-frame
TEST_CASE("no change of a single word makes a reader misbehave") {
  // Changes every word to values that are likely to break a reader. An accepted frame must have been read within its
  // bounds, which the sanitizers check.
  std::mt19937_64 random(20261121);
  std::uint64_t accepted = 0;
  for (const Bytes& whole : {small_dict(), one_array(), test::everything()}) {
    const std::size_t checked = 16 + peek<std::uint32_t>(whole, 4);
    // The copy has the exact size, so that sanitizers detect a read beyond it.
    for (std::size_t offset = 0; offset + 8 <= checked; offset += 8) {
      const auto before = peek<std::uint64_t>(whole, offset);
      std::vector<std::uint64_t> values = {0,           UINT64_MAX, before + 1,
                                           before - 1,  ~before,    before << 8,
                                           before >> 8, INT64_MAX,  std::uint64_t{1} << 63,
                                           random(),    random()};
      for (int bit = 0; bit < 64; ++bit) values.push_back(before ^ std::uint64_t{1} << bit);
      for (const std::uint64_t value : values) {
        Bytes frame = whole;
        poke(frame, offset, value);
        auto walk = test::walk_frame(frame);
        accepted += walk.ok();
        if (!walk.ok()) REQUIRE((walk.error().code == Code::kCorrupt || walk.error().code == Code::kIncompatible));
      }
    }
  }
  // Changes of ints, floats and text may go undetected. Changes of the structure may not.
  CHECK(accepted > 0);
}

TEST_CASE("random words after a valid header are refused or read") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    Bytes frame = small_dict();
    for (std::size_t offset = 16; offset < frame.size(); offset += 8) {
      if (random() % 4 == 0) poke(frame, offset, random() >> random() % 64);
    }
    auto walk = test::walk_frame(frame);
    if (!walk.ok()) REQUIRE(walk.error().code == Code::kCorrupt);
  }
}

TEST_CASE("the error describes a bad header field") {
  const Bytes good = small_dict();
  Bytes frame = good;
  poke<std::uint32_t>(frame, 0, 0x46445025);
  CHECK(refused(frame, "does not begin with SHMT"));
  frame = good;
  poke<std::uint8_t>(frame, 15, 2);
  CHECK(refused(frame, "unknown flags 2"));
  frame = good;
  poke<std::uint32_t>(frame, 4, 12);
  CHECK(refused(frame, "metadata cannot have 12 bytes"));
  frame = good;
  poke<std::uint32_t>(frame, 4, 1 << 20);
  CHECK(refused(frame, "metadata cannot have 1048576 bytes"));
  frame = good;
  poke<std::uint32_t>(frame, 8, static_cast<std::uint32_t>(good.size() + 1));
  CHECK(refused(frame, "the buffer has " + std::to_string(good.size())));
  for (std::uint8_t total = 0; total < 16; ++total) {  // a total size that is smaller than the header
    frame = good;
    poke<std::uint32_t>(frame, 4, 0x4000'0000);
    poke<std::uint64_t>(frame, 8, std::uint64_t{format::kFrameVersion} << 48 | total);
    CHECK(refused(frame, "metadata cannot have 1073741824 bytes of " + std::to_string(total)));
  }
  frame = good;
  poke<std::uint64_t>(frame, 16, 0);
  CHECK(refused(frame, "has no node"));
}

// guarantee: version-mismatch
TEST_CASE("a version mismatch error names both frame versions") {
  Bytes frame = small_dict();
  poke<std::uint8_t>(frame, 14, 3);
  auto walk = test::walk_frame(frame);
  REQUIRE_FALSE(walk.ok());
  CHECK(test::names_versions(walk.error(), 3, 2));
}

TEST_CASE("a frame can be followed by other bytes") {
  Bytes frame = small_dict();
  frame.resize(frame.size() + 1000);
  CHECK(test::walk_frame(frame).ok());
}

TEST_CASE("a container cannot claim more items than there are nodes") {
  CHECK(refused(written([](FrameBuilder& builder) {
                  builder.add_kind(Kind::kList);
                  builder.add_length(std::uint64_t{1} << 40);
                  builder.add_none_node();
                }),
                "more items than there are nodes"));
  CHECK(refused(written([](FrameBuilder& builder) {
                  builder.add_kind(Kind::kDict);
                  builder.add_length(1);
                  builder.add_none_node();
                }),
                "more items than there are nodes"));
}

TEST_CASE("columns that end too early are named") {
  const auto only = [](Kind kind) { return written([kind](FrameBuilder& builder) { builder.add_kind(kind); }); };
  CHECK(refused(only(Kind::kInt), "an int is missing"));
  CHECK(refused(only(Kind::kFloat), "a float is missing"));
  CHECK(refused(only(Kind::kStr), "a length is missing"));
  CHECK(refused(only(Kind::kUuid), "text is missing"));
  CHECK(refused(only(Kind::kArray), "an array descriptor is missing"));
  CHECK(refused(only(Kind::kMemoryView), "a node is missing"));
  CHECK(refused(only(Kind{100}), "unknown or not expected here"));
  CHECK(refused(only(Kind{17 | format::kMarked}), "unknown or not expected here"));
}

TEST_CASE("values left over after the last node are an error") {
  CHECK(refused(written([](FrameBuilder& builder) {
                  builder.add_none_node();
                  builder.add_int(1);
                }),
                "left over"));
}

TEST_CASE("invalid names are refused") {
  const auto named = [](std::uint64_t reference) {
    return written([reference](FrameBuilder& builder) {
      builder.add_kind(Kind::kGlobal);
      builder.add_length(reference);
    });
  };
  CHECK(refused(named(1), "a name refers to a name that does not precede it"));
  CHECK(refused(written([](FrameBuilder& builder) {
                  builder.add_kind(Kind::kGlobal);
                  builder.add_name(std::string(kMaxNameBytes + 1, 'n'));
                }),
                "longer than 4096"));
}

TEST_CASE("invalid arrays are refused") {
  const float values[8] = {};
  const auto array = [&values](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides, DType dtype,
                               std::uint64_t range_bytes, std::int64_t offset) {
    return written([&](FrameBuilder& builder) {
      const auto range = builder.add_external({.reference = 0, .offset = 0, .bytes = range_bytes});
      test::add_array_node(builder, {.data = values,
                                     .shape = shape.data(),
                                     .strides = strides.data(),
                                     .ndim = static_cast<std::uint8_t>(shape.size()),
                                     .order = strides.empty() ? format::Order::kC : format::Order::kStrided,
                                     .dtype = dtype,
                                     .external = range,
                                     .external_offset = offset});
    });
  };
  constexpr std::int64_t kHuge = INT64_C(1) << 40;
  CHECK(test::walk_frame(array({2}, {4}, DType::kFloat32, 8, 0)).ok());
  CHECK(refused(array({2}, {}, DType::kFloat32, 7, 0), "goes beyond its buffer"));
  CHECK(refused(array({2}, {}, DType::kFloat32, 8, 1), "goes beyond its buffer"));
  CHECK(refused(array({2}, {}, DType::kFloat32, 8, -4), "goes beyond its buffer"));
  CHECK(refused(array({2}, {-4}, DType::kFloat32, 8, 0), "goes beyond its buffer"));
  CHECK(refused(array({2}, {8}, DType::kFloat32, 8, 0), "goes beyond its buffer"));
  CHECK(refused(array({2}, {INT64_MAX}, DType::kFloat32, 8, 0), "goes beyond its buffer"));
  CHECK(refused(array({3, 2}, {INT64_MAX, INT64_MIN}, DType::kFloat32, 24, 0), "goes beyond its buffer"));
  // Zero strides would make a huge array from a few bytes.
  CHECK(refused(array({kHuge}, {0}, DType::kUInt8, 8, 0), "goes beyond its buffer"));
  CHECK(refused(array({kHuge, kHuge}, {}, DType::kUInt8, 8, 0), "the shape of an array overflows"));
  CHECK(refused(array({0, kHuge, kHuge}, {}, DType::kUInt8, 8, 0), "the shape of an array overflows"));
  CHECK(refused(array(std::vector<std::int64_t>(65, 1), {}, DType::kUInt8, 8, 0), "more than 64 dimensions"));
}

TEST_CASE("invalid array descriptors are refused") {
  const Bytes good = one_array();
  REQUIRE(test::walk_frame(good).ok());
  // The descriptor is the only word that has float32, no flags and two dimensions.
  std::size_t at = 16;
  while (peek<std::uint64_t>(good, at) != (static_cast<std::uint64_t>(DType::kFloat32) | 2 << 16)) at += 8;
  Bytes frame = good;
  poke<std::uint8_t>(frame, at, kMaxDType + 1);
  CHECK(refused(frame, "unknown element type"));
  frame = good;
  poke<std::uint8_t>(frame, at + 1, 64);
  CHECK(refused(frame, "unknown flags"));
  frame = good;
  poke<std::uint32_t>(frame, at + 4, 1);
  CHECK(refused(frame, "a buffer that does not exist"));
  frame = good;
  poke<std::uint8_t>(frame, at + 1, format::kExternal);
  CHECK(refused(frame, "external range that does not exist"));
  frame = good;
  poke<std::uint8_t>(frame, at + 1, format::kNoBuffer);
  CHECK(refused(frame, "array with elements has no buffer"));
  frame = good;
  poke<std::uint8_t>(frame, at + 1, format::kStrided);
  CHECK(refused(frame, "an offset or stride is missing"));
}

// guarantee: changing-frame
TEST_CASE("a frame changed after open cannot move reads out of bounds") {
  const test::Sample sample;
  FrameBuilder builder;
  test::add_everything(builder, sample);
  Bytes frame = test::bytes_of(builder);
  FrameReader reader = FrameReader::open(frame).value();
  std::memset(frame.data(), 0xff, 16 + builder.metadata_bytes());
  test::Walk walk;
  walk.node(reader);
  CHECK(reader.finish().ok());
  CHECK(walk.nodes == builder.kinds());
}

TEST_CASE("a failed reader returns nothing and keeps the first error") {
  const Bytes frame = small_dict();
  FrameReader reader = FrameReader::open(frame).value();
  reader.next_kind();
  reader.fail("the test says so");
  reader.fail("later");
  CHECK(reader.failed());
  CHECK(reader.next_kind() == Kind::kInvalid);
  CHECK(reader.next_int() == 0);
  CHECK(reader.next_count() == 0);
  CHECK(reader.next_string().empty());
  CHECK(reader.next_name().text.empty());
  format::ArrayInfo info;
  CHECK_FALSE(reader.next_array(info));
  CHECK(reader.error().message.find("the test says so") != std::string::npos);
  CHECK(reader.error().message.find("node 1 of 8") != std::string::npos);
}

TEST_CASE("a message of more than 256 TiB is refused before copying") {
  FrameBuilder builder;
  builder.add_none_node();
  const std::int64_t shape[] = {INT64_C(1) << 40};
  for (int i = 0; i < 256; ++i) {
    test::add_array_node(builder,
                         {.data = reinterpret_cast<const std::byte*>(std::uintptr_t{1} + std::uintptr_t(i) * 64),
                          .shape = shape,
                          .ndim = 1,
                          .dtype = DType::kUInt8});
  }
  Status status = builder.finish();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == Code::kMessageTooLarge);
}

namespace {

// Returns a Cap'n Proto message of segments with these descriptors.
Bytes capnp_of(const std::vector<format::ArraySource>& segments, std::size_t count) {
  return written([&](FrameBuilder& builder) {
    builder.add_kind(Kind::kCapnp);
    builder.add_int(7);
    builder.add_length(count);
    for (const auto& segment : segments) builder.add_array(segment);
  });
}

}  // namespace

// guarantee: capnp-item
TEST_CASE("invalid Cap'n Proto segments are refused") {
  alignas(8) static const std::byte words[64] = {};
  const std::int64_t shapes[] = {64, 20, 8, 8}, strides[] = {8};
  const format::ArraySource whole{.data = words, .shape = shapes, .ndim = 1, .dtype = DType::kUInt8};
  CHECK(test::walk_frame(capnp_of({whole}, 1)).ok());
  CHECK(refused(capnp_of({}, 0), "no segment, or more than 512"));
  CHECK(refused(capnp_of(std::vector(513, whole), 513), "no segment, or more than 512"));
  CHECK(refused(capnp_of({whole}, 2), "more segments than there are arrays"));
  CHECK(refused(capnp_of({whole, whole}, 1), "left over"));
  format::ArraySource other = whole;
  other.shape = shapes + 1;
  CHECK(refused(capnp_of({other}, 1), "not a contiguous array of whole words"));
  other = whole;
  other.shape = shapes + 2;
  other.dtype = DType::kUInt64;
  CHECK(refused(capnp_of({other}, 1), "not a contiguous array of whole words"));
  other = whole;
  other.shape = shapes + 2;
  other.ndim = 2;
  CHECK(refused(capnp_of({other}, 1), "not a contiguous array of whole words"));
  other = whole;
  other.shape = shapes + 2;
  other.strides = strides;
  other.order = format::Order::kStrided;
  other.may_share = true;
  CHECK(refused(capnp_of({whole, other}, 2), "not a contiguous array of whole words"));
  other = whole;
  other.external = 0;
  other.external_offset = 4;
  const auto in_block = [&](std::uint64_t offset, std::int64_t at) {
    return written([&](FrameBuilder& builder) {
      other.external = builder.add_external({.reference = 0, .offset = offset, .bytes = 4096});
      other.external_offset = at;
      builder.add_kind(Kind::kCapnp);
      builder.add_int(7);
      builder.add_length(1);
      builder.add_array(other);
    });
  };
  CHECK(refused(in_block(64, 4), "a multiple of 8 bytes"));
  CHECK(refused(in_block(60, 8), "a multiple of 8 bytes"));
  CHECK(test::walk_frame(in_block(60, 4)).ok());
}

TEST_CASE("shared segments stay aligned to 8 bytes") {
  alignas(8) static std::byte words[64];
  for (int i = 0; i < 64; ++i) words[i] = static_cast<std::byte>(i);
  const std::int64_t shapes[] = {61, 48};
  for (const bool first : {true, false}) {
    const Bytes frame = written([&](FrameBuilder& builder) {
      builder.begin_node(Kind::kList, 2);
      const auto add_bytes = [&] {
        test::add_array_node(
            builder, {.data = words + 3, .shape = shapes, .ndim = 1, .dtype = DType::kUInt8, .may_share = true});
      };
      if (first) add_bytes();
      test::add_capnp_node(builder, 7, {std::span<const std::byte>(words).subspan(8, 48)});
      if (!first) add_bytes();
    });
    auto reader = FrameReader::open(frame).value();
    reader.next_kind();
    reader.next_count();
    format::ArrayInfo bytes, segment;
    for (int i = 0; i < 2; ++i) {
      if (reader.next_kind() == Kind::kArray) {
        REQUIRE(reader.next_array(bytes));
      } else {
        reader.next_int();
        REQUIRE(reader.next_segment_count() == 1);
        REQUIRE(reader.next_segment(segment));
      }
    }
    CHECK(reader.buffer_sizes().size() == 1);
    CHECK(segment.offset % 8 == 0);
    CHECK(std::memcmp(segment.data, words + 8, 48) == 0);
    CHECK(std::memcmp(bytes.data, words + 3, 61) == 0);
  }
}
