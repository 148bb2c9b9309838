// A frame returns exactly the values that were written, column by column.
#include <cmath>
#include <limits>
#include <string>

#include "format/frame_reader.h"
#include "support/catch2.h"
#include "support/frame_walk.h"
#include "support/frames.h"

using namespace shmtree;
using format::FrameBuilder;
using format::FrameReader;
using test::Bytes;

TEST_CASE("a dict of scalars survives encoding") {
  FrameBuilder builder;
  test::add_small_dict(builder);
  const Bytes frame = test::bytes_of(builder);

  FrameReader reader = FrameReader::open(frame).value();
  REQUIRE(reader.next_kind() == Kind::kStrDict);
  REQUIRE(reader.next_count() == 5);
  CHECK(reader.next_name().text == "reward");
  CHECK(reader.next_kind() == Kind::kFloat);
  CHECK(reader.next_float() == 1.5);
  CHECK(reader.next_name().text == "done");
  CHECK(reader.next_kind() == Kind::kFalse);
  CHECK(reader.next_name().text == "step");
  CHECK(reader.next_kind() == Kind::kInt);
  CHECK(reader.next_int() == 17);
  CHECK(reader.next_name().text == "id");
  CHECK(reader.next_kind() == Kind::kStr);
  CHECK(reader.next_string() == "ep-12");
  CHECK(reader.next_name().text == "big");
  CHECK(reader.next_kind() == Kind::kList);
  REQUIRE(reader.next_count() == 2);
  CHECK(reader.next_kind() == Kind::kInt);
  CHECK(reader.next_int() == 1000);
  CHECK(reader.next_kind() == Kind::kNone);
  CHECK(reader.finish().ok());
}

TEST_CASE("a dict of five scalars fits a ring slot several times over") {
  FrameBuilder builder;
  test::add_small_dict(builder);
  CHECK(test::bytes_of(builder).size() <= 224);
}

TEST_CASE("a transition with two small arrays fits a ring slot") {
  FrameBuilder builder;
  const float observation[2][4] = {};
  const std::int64_t shape[] = {4};
  builder.add_kind(Kind::kStrDict);
  builder.add_length(7);
  for (int i = 0; i < 2; ++i) {
    builder.add_name(i == 0 ? "observation" : "next_observation");
    test::add_array_node(builder, {.data = observation[i], .shape = shape, .ndim = 1, .dtype = DType::kFloat32});
  }
  builder.add_name("action");
  builder.add_int_node(1);
  builder.add_name("reward");
  builder.add_float_node(1.0);
  for (const char* key : {"terminated", "truncated"}) {
    builder.add_name(key);
    builder.add_bool_node(false);
  }
  builder.add_name("episode");
  builder.add_int_node(12);
  CHECK(test::bytes_of(builder).size() <= 448);
}

TEST_CASE("lengths of any size survive encoding") {
  const std::uint64_t lengths[] = {0, 1, 254, 255, 256, 65536, std::uint64_t{1} << 40, INT64_MAX};
  FrameBuilder builder;
  builder.add_none_node();
  for (const std::uint64_t length : lengths) builder.add_length(length);
  const Bytes frame = test::bytes_of(builder);
  FrameReader reader = FrameReader::open(frame).value();
  reader.next_kind();
  for (const std::uint64_t length : lengths) CHECK(reader.next_length() == length);
  CHECK(reader.finish().ok());
}

TEST_CASE("names and strings of every length survive encoding") {
  const std::string text = "abcdefghijklmnopqrstuvwxyz0123456789";
  FrameBuilder builder;
  builder.begin_node(Kind::kStrDict, text.size());
  for (std::size_t length = 0; length < text.size(); ++length) {
    builder.add_name(text.substr(0, length));
    builder.add_str_node(text.data(), length);
  }
  const Bytes frame = test::bytes_of(builder);
  FrameReader reader = FrameReader::open(frame).value();
  REQUIRE(reader.next_kind() == Kind::kStrDict);
  REQUIRE(reader.next_count() == text.size());
  for (std::size_t length = 0; length < text.size(); ++length) {
    CHECK(reader.next_name().text == text.substr(0, length));
    CHECK(reader.next_kind() == Kind::kStr);
    CHECK(reader.next_string() == text.substr(0, length));
  }
  CHECK(reader.finish().ok());
}

TEST_CASE("ints and floats keep every bit") {
  const std::int64_t ints[] = {0, -1, INT64_MIN, INT64_MAX};
  const double floats[] = {-0.0, std::numeric_limits<double>::denorm_min(), std::nan("7"), HUGE_VAL};
  FrameBuilder builder;
  builder.add_none_node();
  for (const std::int64_t value : ints) builder.add_int(value);
  for (const double value : floats) builder.add_float(value);
  const Bytes frame = test::bytes_of(builder);
  FrameReader reader = FrameReader::open(frame).value();
  for (const std::int64_t value : ints) CHECK(reader.next_int() == value);
  for (const double value : floats) {
    CHECK(std::bit_cast<std::uint64_t>(reader.next_float()) == std::bit_cast<std::uint64_t>(value));
  }
}

TEST_CASE("next_name_is matches only the next new name") {
  FrameBuilder builder;
  builder.add_none_node();
  for (const char* name : {"reward", "reward", "done"}) builder.add_name(name);
  const Bytes frame = test::bytes_of(builder);
  {
    FrameReader first = FrameReader::open(frame).value();  // leaves capacity for that many names to its thread
    for (int i = 0; i < 3; ++i) first.next_name();
  }
  FrameReader reader = FrameReader::open(frame).value();
  reader.next_kind();
  for (const char* other : {"done", "rewar", "reward_", ""}) REQUIRE_FALSE(reader.next_name_is(other));
  REQUIRE(reader.names() == 0);
  REQUIRE(reader.next_name_is("reward"));
  REQUIRE(reader.names() == 1);
  REQUIRE_FALSE(reader.next_name_is("reward"));  // a name that repeats the first one
  REQUIRE(reader.next_name().index == 0);
  REQUIRE(reader.next_name_is("done"));
  REQUIRE_FALSE(reader.next_name_is(""));
  REQUIRE(reader.finish().ok());
}

TEST_CASE("a repeated name is stored once and keeps its first index") {
  FrameBuilder builder;
  builder.add_none_node();
  for (const char* name : {"reward", "observation", "reward", "", "r", "observation", ""}) builder.add_name(name);
  const Bytes frame = test::bytes_of(builder);
  FrameReader reader = FrameReader::open(frame).value();
  const auto next_is = [&reader](std::uint32_t index, bool fresh, std::string_view text) {
    const format::Name name = reader.next_name();
    return name.index == index && name.fresh == fresh && name.text == text;
  };
  reader.next_kind();
  CHECK(next_is(0, true, "reward"));
  CHECK(next_is(1, true, "observation"));
  CHECK(next_is(0, false, "reward"));
  CHECK(next_is(2, true, ""));
  CHECK(next_is(3, true, "r"));
  CHECK(next_is(1, false, "observation"));
  CHECK(next_is(2, false, ""));
  CHECK(reader.finish().ok());
}

TEST_CASE("a thousand repeated names survive encoding") {
  FrameBuilder builder;
  for (int round = 0; round < 3; ++round) {
    builder.clear();
    builder.add_none_node();
    for (int i = 0; i < 2000; ++i) builder.add_name("key_" + std::to_string((i + round) % 1000));
    const Bytes frame = test::bytes_of(builder);
    FrameReader reader = FrameReader::open(frame).value();
    reader.next_kind();
    for (int i = 0; i < 2000; ++i) REQUIRE(reader.next_name().text == "key_" + std::to_string((i + round) % 1000));
    CHECK(reader.finish().ok());
  }
}

TEST_CASE("long strings are raw buffers and short ones are not") {
  const std::string at_limit(kMaxInlineText, 's');
  const std::string over_limit(kMaxInlineText + 1, 'l');
  FrameBuilder builder;
  builder.add_str_node(at_limit.data(), at_limit.size());
  builder.add_str_node(over_limit.data(), over_limit.size());
  const Bytes frame = test::bytes_of(builder);
  FrameReader reader = FrameReader::open(frame).value();
  CHECK(reader.next_kind() == Kind::kStr);
  CHECK(reader.next_string() == at_limit);
  CHECK(reader.next_kind() == Kind::kLongStr);
  const auto blob = reader.next_blob();
  CHECK(std::string_view(reinterpret_cast<const char*>(blob.data()), blob.size()) == over_limit);
  CHECK(reader.finish().ok());
}

TEST_CASE("one node of every kind survives encoding") {
  const test::Sample sample;
  FrameBuilder builder;
  test::add_everything(builder, sample);
  const Bytes frame = test::bytes_of(builder);
  auto walk = test::walk_frame(frame);
  INFO((walk.ok() ? std::string() : walk.error().message));
  REQUIRE(walk.ok());
  CHECK(walk->nodes == builder.kinds());
  CHECK(walk->touched > sample.long_text.size() + sizeof(sample.matrix) + sizeof(sample.pixels));
}

TEST_CASE("exactly the known kinds have a grammar and a name") {
  std::size_t known = 0;
  for (int number = 0; number < 256; ++number) {
    const auto kind = static_cast<Kind>(number);
    CHECK((format::grammar_of(kind) != nullptr) == (name_of(kind) != "unknown"));
    known += format::grammar_of(kind) != nullptr ? 1u : 0u;
  }
  CHECK(known == std::size(format::kKinds));
}

TEST_CASE("a builder used again writes the same bytes") {
  const test::Sample sample;
  FrameBuilder builder;
  test::add_everything(builder, sample);
  const Bytes first = test::bytes_of(builder);
  builder.clear();
  test::add_small_dict(builder);
  test::bytes_of(builder);
  builder.clear();
  test::add_everything(builder, sample);
  CHECK(test::bytes_of(builder) == first);
}

TEST_CASE("rewind drops everything added since the mark") {
  const test::Sample sample;
  FrameBuilder plain;
  test::add_small_dict(plain);
  const Bytes expected = test::bytes_of(plain);

  FrameBuilder builder;
  const auto mark = builder.mark();
  test::add_everything(builder, sample);
  builder.rewind(mark);
  test::add_small_dict(builder);
  CHECK(test::bytes_of(builder) == expected);
}

TEST_CASE("after a rewind earlier arrays and names are still shared") {
  const test::Sample sample;
  const std::int64_t shape[] = {5};
  const format::ArraySource lonely{.data = sample.lonely, .shape = shape, .ndim = 1, .dtype = DType::kFloat64};
  FrameBuilder builder;
  builder.add_kind(Kind::kTuple);
  builder.add_length(2);
  test::add_array_node(builder, lonely);
  const auto mark = builder.mark();
  test::add_everything(builder, sample);
  builder.rewind(mark);
  test::add_array_node(builder, lonely);
  REQUIRE(builder.finish().ok());
  CHECK(builder.buffer_count() == 1);
  CHECK(test::walk_frame(test::bytes_of(builder)).ok());
}

TEST_CASE("a frame of None is one node without a buffer") {
  FrameBuilder builder;
  builder.add_none_node();
  const Bytes frame = test::bytes_of(builder);
  CHECK(frame.size() == 16 + 8 + 6 * 8 + 8);
  CHECK(builder.buffer_bytes() == 0);
}

TEST_CASE("trees deeper than 1000 are refused by builder and reader") {
  FrameBuilder builder;
  for (std::size_t i = 0; i < kMaxDepth; ++i) {
    builder.add_kind(Kind::kList);
    builder.add_length(1);
    REQUIRE(builder.enter());
  }
  CHECK_FALSE(builder.enter());
  const auto mark = builder.mark();
  builder.add_none_node();
  CHECK(test::walk_frame(test::bytes_of(builder)).ok());

  builder.rewind(mark);
  builder.add_kind(Kind::kList);
  builder.add_length(1);
  builder.add_none_node();
  auto walk = test::walk_frame(test::bytes_of(builder));
  REQUIRE_FALSE(walk.ok());
  CHECK(walk.error().message.find("too deep") != std::string::npos);
}

TEST_CASE("a reader can be used in the middle of another one") {
  FrameBuilder builder;
  test::add_small_dict(builder);
  const Bytes outer = test::bytes_of(builder);
  builder.clear();
  builder.add_str_node("inner", 5);
  const Bytes inner = test::bytes_of(builder);

  FrameReader reader = FrameReader::open(outer).value();
  reader.next_kind();
  reader.next_count();
  {
    FrameReader nested = FrameReader::open(inner).value();
    CHECK(nested.next_kind() == Kind::kStr);
    CHECK(nested.next_string() == "inner");
  }
  CHECK(reader.next_name().text == "reward");
}
