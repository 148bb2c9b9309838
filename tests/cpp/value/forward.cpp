// Received items are put into other messages unchanged.
#include <algorithm>
#include <optional>

#include "shmtree/containers.h"
#include "support/catch2.h"
#include "support/frames.h"
#include "value/encoder.h"

using namespace shmtree;
using format::FrameBuilder;

namespace {

test::Bytes frame_of(const Value& value) {
  FrameBuilder builder;
  value::encode(value, builder).value();
  test::Bytes frame(builder.total_bytes());
  builder.write(frame.data());
  return frame;
}

Item item_in(const test::Bytes& frame, std::span<const std::span<const std::byte>> blocks = {}) {
  return value::decode(frame, nullptr, blocks).value();
}

void check_same(const Item& a, const Item& b) {
  REQUIRE(a.kind() == b.kind());
  REQUIRE(a.size() == b.size());
  CHECK(a.class_name() == b.class_name());
  CHECK(std::ranges::equal(a.ints(), b.ints()));
  CHECK(std::ranges::equal(a.floats(), b.floats()));
  if (const auto text = a.try_as<std::string_view>(); text.ok()) CHECK(*text == b.as<std::string_view>());
  if (const auto bytes = a.try_as<std::span<const std::byte>>(); bytes.ok()) {
    CHECK(std::ranges::equal(*bytes, b.as<std::span<const std::byte>>()));
  }
  if (a.is_array()) {
    const ArrayView x = a.view(), y = b.view();
    CHECK(x.dtype == y.dtype);
    CHECK(x.description == y.description);
    CHECK(x.read_only == y.read_only);
    REQUIRE(std::ranges::equal(x.shape, y.shape));
    test::Bytes from(x.elements * x.item_bytes), to(from.size());
    x.copy_to(from.data());
    y.copy_to(to.data());
    CHECK(from == to);
  }
  if (a.kind() == Kind::kCapnp) {
    const CapnpRef x = a.capnp_segments().value(), y = b.capnp_segments().value();
    CHECK(x.schema_id == y.schema_id);
    CHECK(std::ranges::equal(x.segments, y.segments, [](auto s, auto t) { return std::ranges::equal(s, t); }));
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a.at(i).key() == b.at(i).key());
    check_same(a.at(i), b.at(i));
  }
}

// Lends nothing. Records which received arrays the encoder asked about.
struct Asked {
  struct Question {
    value::Origin origin;
    std::uint64_t bytes;
    bool writable;
  };
  std::vector<Question> asked{};

  std::optional<value::LentRange> lend(const value::ArrayMemory& array) {
    if (array.origin != nullptr) asked.push_back({*array.origin, array.bytes, array.writable});
    return std::nullopt;
  }
  static bool is_given(const value::Origin&) { return false; }
  static value::EncodeOptions options() { return {}; }
};

void encode_asking(const Value& value, Asked& asked) {
  FrameBuilder builder;
  value::encode(value, builder, asked).value();
}

Item received(bool read_only, const void* home) {
  static const std::vector<double> numbers(100, 1.5);
  ArrayRef one = array_ref(numbers.data(), {10});
  one.read_only = read_only;
  const test::Bytes frame = frame_of(Dict{{"a", one}, {"b", 1}});
  return value::decode(frame, nullptr, {}, home).value();
}

}  // namespace

TEST_CASE("nodes of every kind are forwarded as they are") {
  const test::Sample sample;
  FrameBuilder builder;
  test::add_everything(builder, sample);
  const std::vector<std::byte> block(8192, std::byte{3});
  const std::span<const std::byte> blocks[] = {{}, {}, block};
  const Item item = item_in(test::bytes_of(builder), blocks);
  const test::Bytes once = frame_of(item);
  const Item forwarded = item_in(once);
  check_same(item, forwarded);
  CHECK(frame_of(forwarded) == once);
}

TEST_CASE("parts of a received item can be used in other values") {
  const Item item = item_in(frame_of(Dict{{"a", List{1, "two", 3.5}}, {"b", Bytes{std::string(5'000, '\xff')}}}));
  const Item got =
      item_in(frame_of(Dict{{"first", item["a"]}, {"all", item}, {"one", item["a"][1]}, {"none", Item()}}));
  check_same(got["first"], item["a"]);
  CHECK(got["all"]["b"].as<Bytes>().data == std::string(5'000, '\xff'));
  CHECK(got["one"].as<std::string>() == "two");
  CHECK(got["none"].is_none());
}

TEST_CASE("forwarded arrays still share memory") {
  std::vector<float> numbers(20'000, 2.0F);
  ArrayRef half = array_ref(numbers.data() + 100, {10'000});
  const Item item = item_in(frame_of(Dict{{"all", numbers}, {"half", half}}));
  const Item got = item_in(frame_of(item));
  CHECK(got["half"].view().data - got["all"].view().data == 400);
}

TEST_CASE("an item of the maximum depth is forwarded but no deeper") {
  Value value = List{};
  for (std::size_t i = 1; i < kMaxDepth; ++i) value = List{std::move(value)};
  const Item item = item_in(frame_of(value));
  std::size_t levels = 1;
  for (Item at = item_in(frame_of(item)); at.size() == 1; at = at[0]) ++levels;
  CHECK(levels == kMaxDepth);
  FrameBuilder builder;
  const Status refused = value::encode(List{List{item}}, builder);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.code() == Code::kInvalid);
}

TEST_CASE("arrays can be moved with the last item of their message") {
  const int home = 0;
  Asked asked;
  Item item = received(false, &home);
  encode_asking(item, asked);
  encode_asking(Dict{{"a", item["a"]}}, asked);
  CHECK(asked.asked.empty());
  const Item other = item;
  encode_asking(std::move(item), asked);
  CHECK(asked.asked.empty());
  Item part = received(false, &home)["a"];
  const Value value = Dict{{"a", std::move(part)}};
  const Value copy = value;  // NOLINT(performance-unnecessary-copy-initialization): of the value, not of the item
  encode_asking(value, asked);
  REQUIRE(asked.asked.size() == 1);
  CHECK(asked.asked[0].origin.home == &home);
  CHECK(asked.asked[0].origin.to_give);
  CHECK(asked.asked[0].bytes == 80);
  CHECK(asked.asked[0].writable);
}

TEST_CASE("arrays of a read-only message can be shared in place") {
  const int home = 0;
  Asked asked;
  const Item item = received(true, &home);
  encode_asking(Dict{{"a", item["a"]}}, asked);
  REQUIRE(asked.asked.size() == 1);
  CHECK(asked.asked[0].origin.to_show);
  CHECK_FALSE(asked.asked[0].origin.to_give);
  CHECK_FALSE(asked.asked[0].writable);
  encode_asking(received(true, nullptr), asked);
  CHECK(asked.asked.size() == 1);
}

// guarantee: refused-pickle
TEST_CASE("items that need pickle are refused without permission") {
  for (const Kind kind : {Kind::kPickle, Kind::kGlobal}) {
    FrameBuilder builder;
    builder.add_kind(Kind::kList);
    builder.add_length(1);
    builder.add_kind(kind);
    if (kind == Kind::kPickle) {
      builder.add_string("N.");
      builder.add_length(0);
    } else {
      builder.add_name("builtins:len");
    }
    const Item item = item_in(test::bytes_of(builder));
    check_same(item_in(frame_of(item)), item);
    const Status refused = value::encode(item, builder, {.allow_pickle = false});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.code() == Code::kPickleRefused);
    CHECK(refused.error().message.starts_with("[0]: "));
  }
}

TEST_CASE("items that are not portable are refused and named") {
  FrameBuilder builder;
  builder.begin_node(Kind::kList, 2);
  builder.add_int_node(1);
  const bool is_pickle = GENERATE(false, true);
  if (is_pickle) {
    builder.add_kind(Kind::kPickle);
    builder.add_string("x");
    builder.add_length(0);
  } else {
    builder.add_kind(Kind::kRegistered);
    builder.add_name("shmtree:Sender");
    builder.add_none_node();
  }
  const Item item = item_in(test::bytes_of(builder));
  const value::EncodeOptions portable{.portable = true};
  FrameBuilder forwarded;
  CHECK(value::encode(item, forwarded).ok());
  forwarded.clear();
  const Status refused = value::encode(item, forwarded, portable);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.starts_with("[1]: a "));
  forwarded.clear();
  CHECK(value::encode(item[0], forwarded, portable).ok());
}
