// Values that C++ sends arrive in C++ as equal Items.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/catch2.h"
#include "value/codec.h"

using namespace shmtree;

namespace {

std::vector<std::byte> frame_of(const Value& value) {
  format::FrameBuilder builder;
  value::encode(value, builder).value();
  std::vector<std::byte> frame(builder.total_bytes());
  builder.write(frame.data());
  return frame;
}

Item trip(const Value& value) {
  return value::decode(frame_of(value), nullptr).value();
}

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const BadResult& bad) {
    return bad.error().code;
  }
  return Code::kOs;
}

}  // namespace

TEST_CASE("scalars arrive unchanged") {
  CHECK(trip(Value()).is_none());
  CHECK(trip(nullptr).is_none());
  CHECK(trip(true).as<bool>());
  CHECK_FALSE(trip(false).as<bool>());
  CHECK(trip(42).as<int>() == 42);
  CHECK(trip(std::int64_t{INT64_MIN}).as<std::int64_t>() == INT64_MIN);
  CHECK(trip(std::uint64_t{UINT64_MAX}).as<std::uint64_t>() == UINT64_MAX);
  CHECK(trip(std::uint64_t{UINT64_MAX}).kind() == Kind::kBigInt);
  CHECK(trip(1.5).as<double>() == 1.5);
  CHECK(trip(0.5f).as<float>() == 0.5f);
  CHECK(trip(std::complex<double>(1, -2)).as<std::complex<double>>() == std::complex<double>(1, -2));
  CHECK(trip("text").as<std::string_view>() == "text");
  CHECK(trip(std::string(10000, 'x')).as<std::string>() == std::string(10000, 'x'));
  CHECK(trip(std::string_view("a\0b", 3)).as<std::string>().size() == 3);
  CHECK(trip(Bytes{"raw"}).as<std::span<const std::byte>>().size() == 3);
  CHECK(trip(Bytes{std::string(5000, 'b')}).as<std::span<const std::byte>>().size() == 5000);
}

TEST_CASE("a pointer to characters is text and not a bool") {
  const char* text = "text";
  CHECK(trip(text).kind() == Kind::kStr);
}

TEST_CASE("a nested dict is found by its keys") {
  const Item item = trip(Dict{{"reward", 1.0},
                              {"info", Dict{{"episode", "ep-12"}, {"steps", List{1, 2.5, "three", nullptr}}}},
                              {"pair", Tuple{1, 2}}});
  CHECK(item.kind() == Kind::kStrDict);
  CHECK(item.size() == 3);
  CHECK(item.keys() == std::vector<std::string_view>{"reward", "info", "pair"});
  CHECK(item["info"]["episode"].as<std::string_view>() == "ep-12");
  CHECK(item["info"]["steps"][1].as<double>() == 2.5);
  CHECK(item["info"]["steps"].at(3).is_none());
  CHECK(item["pair"].kind() == Kind::kTuple);
  CHECK(item["pair"].is_sequence());
  CHECK(item.contains("pair"));
  CHECK_FALSE(item.contains("pai"));
  CHECK(item["info"].key() == "info");
}

TEST_CASE("iteration gives the items in order with their keys") {
  const Item item = trip(Dict{{"a", 1}, {"b", 2}, {"c", 3}});
  std::string keys;
  int sum = 0;
  for (const Item& value : item) {
    keys += value.key();
    sum += value.as<int>();
  }
  CHECK(keys == "abc");
  CHECK(sum == 6);
  int count = 0;
  for (const Item& value : trip(List{10, 20})) count += value.as<int>();
  CHECK(count == 30);
}

TEST_CASE("containers of one element keep their nesting") {
  const Item item = trip(List{List{List{7}}});
  REQUIRE(item.size() == 1);
  REQUIRE(item[0].size() == 1);
  CHECK(item[0][0][0].as<int>() == 7);
  CHECK(trip(List{}).size() == 0);
  CHECK(trip(Dict{}).kind() == Kind::kStrDict);
}

TEST_CASE("a repeated key keeps its position and its last value") {
  Dict dict{{"a", 1}, {"b", 2}, {"a", 3}};
  dict.set("b", 4);
  const Item item = trip(dict);
  CHECK(item.size() == 2);
  CHECK(item["a"].as<int>() == 3);
  CHECK(item.at(1).as<int>() == 4);
}

TEST_CASE("a key too long for a name is still found") {
  const std::string key(kMaxNameBytes + 1, 'k');
  Dict dict;
  dict.set(key, 1);
  dict.set("short", 2);
  const Item item = trip(dict);
  CHECK(item.kind() == Kind::kDict);
  CHECK(item[key].as<int>() == 1);
  CHECK(item["short"].as<int>() == 2);
  CHECK(item.keys()[0] == key);
  CHECK(item.key_at(1).as<std::string_view>() == "short");
}

TEST_CASE("a mismatched access is an error with the expected type") {
  const Item item = trip(Dict{{"text", "x"}, {"big", 300}, {"minus", -1}, {"half", 0.5}});
  CHECK(code_of([&] { (void)item["nothing"]; }) == Code::kNotFound);
  CHECK(code_of([&] { (void)item.at(4); }) == Code::kNotFound);
  CHECK(code_of([&] { (void)item["text"].as<int>(); }) == Code::kInvalid);
  CHECK(code_of([&] { (void)item["big"].as<std::uint8_t>(); }) == Code::kInvalid);
  CHECK(code_of([&] { (void)item["minus"].as<unsigned>(); }) == Code::kInvalid);
  CHECK(code_of([&] { (void)item["half"].as<int>(); }) == Code::kInvalid);
  CHECK(code_of([&] { (void)item["half"].as<bool>(); }) == Code::kInvalid);
  CHECK(code_of([&] { (void)item["half"].view(); }) == Code::kInvalid);
  CHECK(item["big"].as<double>() == 300.0);
  auto refused = item["big"].try_as<std::uint8_t>();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message == "[\"big\"]: expected unsigned int of 8 bits, found 300, which does not fit");
}

TEST_CASE("a value may be as deep as the limit and no deeper") {
  Value value = 1;
  for (std::size_t i = 0; i < kMaxDepth; ++i) {
    std::vector<Value> items;
    items.push_back(std::move(value));
    value = List(std::move(items));
  }
  format::FrameBuilder builder;
  CHECK(value::encode(value, builder).ok());
  Item item = trip(value);
  for (std::size_t i = 0; i < kMaxDepth; ++i) item = item[0];
  CHECK(item.as<int>() == 1);

  std::vector<Value> items;
  items.push_back(std::move(value));
  Status status = value::encode(List(std::move(items)), builder);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == Code::kInvalid);
}

TEST_CASE("an item outlives its frame and all earlier items") {
  Item episode;
  {
    auto frame = frame_of(Dict{{"info", Dict{{"episode", std::string(9000, 'e')}}}});
    episode = value::decode(frame, nullptr).value()["info"]["episode"];
    std::fill(frame.begin(), frame.end(), std::byte{0});
  }
  CHECK(episode.as<std::string_view>() == std::string(9000, 'e'));
}

TEST_CASE("the last item releases the owner of its message") {
  auto frame = std::make_shared<std::vector<std::byte>>(frame_of(List{1, 2}));
  const std::weak_ptr<std::vector<std::byte>> alive = frame;
  Item second;
  {
    const Item whole = value::decode(*frame, frame).value();
    frame.reset();
    second = whole[1];
  }
  CHECK_FALSE(alive.expired());
  second = Item();
  CHECK(alive.expired());
}

TEST_CASE("a default item is None") {
  const Item item;
  CHECK(item.is_none());
  CHECK(item.size() == 0);
  CHECK_FALSE(item.contains("x"));
  CHECK(item.begin() == item.end());
  CHECK(code_of([&] { (void)item.as<int>(); }) == Code::kInvalid);
}
