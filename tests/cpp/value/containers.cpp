// Containers of the standard library are converted to Values and from Items.
#include "shmtree/containers.h"

#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "support/catch2.h"
#include "support/values.h"

using namespace shmtree;
using format::FrameBuilder;
using test::sent;

namespace {

template <class T>
std::string refused(const Item& item) {
  const Result<T> result = item.try_as<T>();
  REQUIRE_FALSE(result.ok());
  CHECK(result.code() == Code::kInvalid);
  return result.error().message;
}

template <class T>
const void* address_in(const Value& value) {
  return std::get<T>(value.variant()).data;
}

}  // namespace

TEST_CASE("an optional is sent as its value or None") {
  CHECK(sent(std::optional<int>(3)).as<int>() == 3);
  CHECK(sent(std::optional<int>()).is_none());
  CHECK(sent(std::nullopt).is_none());
  CHECK(sent(3).as<std::optional<int>>() == 3);
  CHECK(sent(nullptr).as<std::optional<int>>() == std::nullopt);
  CHECK(refused<std::optional<int>>(sent("three")) == "expected int, found string");
}

TEST_CASE("vectors of numbers become arrays and can be read from lists") {
  const std::vector<double> numbers{1.5, 2.5};
  const Item item = sent(numbers);
  CHECK(item.kind() == Kind::kArray);
  CHECK(item.as<std::vector<double>>() == numbers);
  CHECK(item.as<std::array<double, 2>>() == std::array{1.5, 2.5});
  CHECK(sent(List{1.5, 2.5}).as<std::vector<double>>() == numbers);
  CHECK(sent(Tuple{1, 2}).as<std::vector<int>>() == std::vector<int>{1, 2});
  CHECK(sent(std::vector<double>{}).as<std::vector<double>>().empty());
  CHECK(refused<std::vector<float>>(item) == "expected an array of float32, found one of float64");
  CHECK(refused<std::array<double, 3>>(sent(List{1.5})) == "expected 3 items, found a list of 1");
  CHECK(refused<std::vector<std::int8_t>>(sent(List{1, 300})).starts_with("[1]: expected int of 8 bits, found 300"));
  CHECK(refused<std::vector<int>>(sent(1)) == "expected array or sequence, found int");
}

TEST_CASE("an array of a wrong shape or length is refused") {
  const std::vector<float> six(6);
  CHECK(refused<std::vector<float>>(sent(array_ref(six.data(), {2, 3}))) ==
        "expected an array of 1 dimension, found one of 2");
  CHECK(refused<std::vector<float>>(sent(array_ref(six.data(), {}))) ==
        "expected an array of 1 dimension, found one of 0");
  CHECK(refused<std::array<float, 5>>(sent(six)) == "expected 5 items, found an array of 6");
  CHECK(refused<std::array<std::uint8_t, 3>>(sent(Bytes{"ab"})) == "expected 3 items, found bytes of 2");
  CHECK(refused<std::array<int, 3>>(sent(List{1, 2})) == "expected 3 items, found a list of 2");
}

TEST_CASE("a number out of range names the requested type") {
  CHECK(refused<std::uint8_t>(sent(-1)) == "expected unsigned int of 8 bits, found -1, which does not fit");
  CHECK(refused<std::int16_t>(sent(~std::uint64_t{0})) ==
        "expected int of 16 bits, found 18446744073709551615, which does not fit");
  CHECK(refused<std::int8_t>(sent(-129)) == "expected int of 8 bits, found -129, which does not fit");
}

TEST_CASE("elements of an array with strides come out in order") {
  const std::vector<std::int32_t> numbers{0, 1, 2, 3, 4, 5};
  ArrayRef backwards = array_ref(numbers.data() + 5, {3});
  backwards.strides = {-8};
  CHECK(sent(backwards).as<std::vector<std::int32_t>>() == std::vector<std::int32_t>{5, 3, 1});
  ArrayRef transposed = array_ref(numbers.data(), {3, 2});
  transposed.strides = {4, 12};
  std::vector<std::int32_t> out(6);
  sent(transposed).view().copy_to(out.data());
  CHECK(out == std::vector<std::int32_t>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("bytes can be read as byte strings and byte vectors") {
  const Item item = sent(Bytes{"abc"});
  CHECK(item.as<Bytes>().data == "abc");
  CHECK(item.as<std::vector<unsigned char>>() == std::vector<unsigned char>{'a', 'b', 'c'});
  CHECK(item.as<std::vector<std::byte>>().size() == 3);
  CHECK(sent(std::vector<std::byte>{std::byte{7}}).as<std::vector<std::byte>>().at(0) == std::byte{7});
  CHECK(sent(List{7, 255}).as<std::vector<std::byte>>().at(1) == std::byte{255});
  CHECK(refused<Bytes>(sent("text")) == "expected bytes, found string");
}

TEST_CASE("a vector of bool is a list and a std::array an array") {
  const std::vector<bool> bools{true, false};
  CHECK(sent(bools).kind() == Kind::kList);
  CHECK(sent(bools).as<std::vector<bool>>() == bools);
  CHECK(sent(std::array{true, false}).kind() == Kind::kArray);
  CHECK(sent(std::array{true, false}).as<std::vector<bool>>() == bools);
  CHECK(sent(bools).as<std::array<bool, 2>>() == std::array{true, false});
}

// guarantee: cpp-conversions
TEST_CASE("vectors and arrays of other types are lists") {
  const std::vector<std::string> names{"a", "b"};
  CHECK(sent(names).kind() == Kind::kList);
  CHECK(sent(names).as<std::vector<std::string>>() == names);
  CHECK(sent(std::array<std::string, 2>{"a", "b"}).as<std::array<std::string, 2>>()[1] == "b");
  const std::vector<std::vector<std::optional<int>>> nested{{1, std::nullopt}, {}};
  CHECK(sent(nested).as<std::vector<std::vector<std::optional<int>>>>() == nested);
  CHECK(refused<std::vector<std::vector<int>>>(sent(nested)) == "[0][1]: expected int, found None");
  CHECK(sent(std::array<std::string, 0>{}).size() == 0);
}

TEST_CASE("pairs and tuples are tuples of the same length") {
  const std::tuple<int, std::string, std::vector<double>> three{1, "two", {3.0}};
  CHECK(sent(three).kind() == Kind::kTuple);
  CHECK(sent(three).as<std::tuple<int, std::string, std::vector<double>>>() == three);
  CHECK(sent(std::pair(1, "two")).as<std::pair<int, std::string>>() == std::pair<int, std::string>(1, "two"));
  CHECK(sent(List{1, 2}).as<std::pair<int, int>>().second == 2);
  CHECK(refused<std::pair<int, int>>(sent(three)) == "expected 2 items, found a tuple of 3");
  CHECK(refused<std::tuple<int, int, int>>(sent(three)) == "[1]: expected int, found string");
}

TEST_CASE("maps with strings for keys are dicts") {
  const std::map<std::string, std::vector<int>> map{{"a", {1}}, {"b", {}}};
  const Item item = sent(map);
  CHECK(item.kind() == Kind::kStrDict);
  CHECK(item.keys() == std::vector<std::string_view>{"a", "b"});
  CHECK(item.as<std::map<std::string, std::vector<int>>>() == map);
  CHECK(item.as<std::unordered_map<std::string, std::vector<int>>>().at("a") == std::vector<int>{1});
  CHECK(sent(std::unordered_map<std::string, int>{{"one", 1}})["one"].as<int>() == 1);
  CHECK(refused<std::map<std::string, int>>(sent(Dict{{"x", 1}, {"y", "2"}})) == "[\"y\"]: expected int, found string");
  CHECK(refused<std::map<std::string, int>>(sent(1)) == "expected dict, found int");
}

TEST_CASE("a dict with other keys does not convert to a string map") {
  FrameBuilder builder;
  builder.add_kind(Kind::kDict);
  builder.add_length(1);
  builder.add_int_node(1);
  builder.add_int_node(2);
  const Item item = value::decode(test::bytes_of(builder), nullptr).value();
  CHECK(refused<std::map<std::string, int>>(item) == "key 0 of the dict: expected string, found int");
  for (const auto& [key, value] : item.entries()) CHECK((key.empty() && value.as<int>() == 2));
}

TEST_CASE("values refer to lvalue arrays and own temporary ones") {
  const std::vector<double> numbers{1, 2};
  const std::array<double, 2> few{1, 2};
  const std::map<std::string, std::vector<double>> map{{"a", numbers}};
  CHECK(address_in<ArrayRef>(Value(few)) == few.data());
  CHECK(address_in<ArrayRef>(std::get<Dict>(Value(map).variant()).entries()[0].value) == map.at("a").data());
  std::vector<std::vector<double>> moved{numbers};
  const void* place = moved[0].data();
  const Value value(std::move(moved));
  const Value& first = std::get<List>(value.variant()).items()[0];
  CHECK(address_in<ArrayRef>(first) == place);
  CHECK(std::get<ArrayRef>(first.variant()).owner != nullptr);
  CHECK(std::get<ArrayRef>(Value(std::array{1.0}).variant()).owner != nullptr);
}

TEST_CASE("a vector of Values makes a List and not a Value") {
  std::vector<Value> values{1, 2};
  CHECK(sent(List{std::move(values)}).size() == 2);
  STATIC_REQUIRE_FALSE(Sendable<std::vector<Value>>);
  STATIC_REQUIRE_FALSE(Sendable<std::list<int>>);
  STATIC_REQUIRE_FALSE(Sendable<std::map<int, int>>);
}

TEST_CASE("sets are sent as lists and read from any sequence") {
  const std::set<std::string> names{"b", "a"};
  CHECK(sent(names).kind() == Kind::kList);
  CHECK(sent(names).as<std::set<std::string>>() == names);
  CHECK(sent(std::unordered_set<int>{3}).as<std::unordered_set<int>>() == std::unordered_set<int>{3});
  CHECK(sent(Tuple{1, 2, 1}).as<std::set<int>>() == std::set<int>{1, 2});
  CHECK(sent(List{}).as<std::set<int>>().empty());
  CHECK(refused<std::set<int>>(sent(List{1, "two"})) == "[1]: expected int, found string");
  CHECK(refused<std::set<int>>(sent(1)) == "expected sequence, found int");
}

TEST_CASE("maps may have string_views as keys") {
  const std::map<std::string_view, int> counts{{"lost", 1}, {"won", 3}};
  const Item item = sent(counts);
  CHECK(item.as<std::map<std::string_view, int>>() == counts);
  CHECK(item.as<std::unordered_map<std::string_view, int>>().at("won") == 3);
  CHECK(item.as<std::map<std::string, int>>().at("lost") == 1);
}

TEST_CASE("a C array is sent by reference, except a text") {
  const float weights[3] = {1, 2, 3};
  CHECK(address_in<ArrayRef>(Value(weights)) == weights);
  CHECK(sent(weights).as<std::vector<float>>() == std::vector<float>{1, 2, 3});
  CHECK(sent("text").as<std::string>() == "text");
}

TEST_CASE("entries returns dict items as pairs in order") {
  const Item item = sent(Dict{{"b", 1}, {"a", 2}, {std::string(5000, 'k'), 3}});
  std::vector<std::pair<std::string, int>> found;
  for (auto [key, value] : item.entries()) found.emplace_back(key, value.as<int>());
  REQUIRE(found.size() == 3);
  CHECK(found[0] == std::pair<std::string, int>("b", 1));
  CHECK(found[1] == std::pair<std::string, int>("a", 2));
  CHECK(found[2] == std::pair<std::string, int>(std::string(5000, 'k'), 3));
  CHECK(item.entries().size() == 3);
  CHECK_THROWS_WITH(sent(List{1}).entries(), "expected dict, found list");
}

TEST_CASE("get_or returns the value or a default and reports misfits") {
  const Item item = sent(Dict{{"seed", 7}, {"name", "x"}, {"none", nullptr}});
  CHECK(item.get_or("seed", 1) == 7);
  CHECK(item.get_or("steps", 1) == 1);
  CHECK(item.get_or("name", "none") == "x");
  CHECK(item.get_or("label", "none") == "none");
  CHECK(item.get_or("none", std::optional<int>(3)) == std::nullopt);
  CHECK_THROWS_WITH(item.get_or("name", 1), "[\"name\"]: expected int, found string");
  CHECK_THROWS_WITH(item["seed"].get_or("a", 1), "[\"seed\"]: expected dict, found int");
}

// guarantee: cpp-conversions
TEST_CASE("conversion errors name the path from the message root") {
  const std::vector<double> numbers{1, 2};
  const Item item =
      sent(Dict{{"obs", Dict{{"reward", "much"}, {"none", nullptr}, {"shape", std::tuple(1, List{2, 3.5})}}},
                {std::string(5000, 'k'), List{List{}, Dict{{"a", numbers}}}}});
  CHECK(item.way().empty());
  CHECK_THROWS_WITH(item["obs"]["reward"].as<float>(), "[\"obs\"][\"reward\"]: expected float, found string");
  CHECK_THROWS_WITH(item["obs"].get_or("none", 1), "[\"obs\"][\"none\"]: expected int, found None");
  CHECK_THROWS_WITH(item["obs"]["nothing"], "[\"obs\"]: there is no key \"nothing\" in a dict of 3");
  CHECK_THROWS_WITH(item["obs"]["none"]["x"], "[\"obs\"][\"none\"]: there is no key \"x\" in None");
  CHECK_THROWS_WITH(item["obs"]["shape"][2], "[\"obs\"][\"shape\"]: there is no item 2 in a tuple of 2");
  CHECK_THROWS_WITH(item["obs"]["shape"][1].as<std::vector<int>>(),
                    "[\"obs\"][\"shape\"][1][1]: expected int, found float");
  const std::string deep = "[\"" + std::string(100, 'k') + "...\"][1][\"a\"]";
  CHECK(item.at(1)[1]["a"].way() == deep);
  CHECK_THROWS_WITH(item.at(1)[1]["a"].as<std::vector<float>>(),
                    deep + ": expected an array of float32, found one of float64");
  CHECK_THROWS_WITH(item.at(1)[1]["a"].span<float>(), deep + ": expected an array of float32, found one of float64");
}

namespace {

enum Unscoped { kThree = 3, kNegative = -4 };
enum Small : std::uint8_t { kTwoHundred = 200 };

}  // namespace

TEST_CASE("an unscoped enum is sent as its number") {
  CHECK(sent(kThree).as<int>() == 3);
  CHECK(sent(kNegative).as<int>() == -4);
  CHECK(sent(kTwoHundred).as<int>() == 200);
  CHECK(sent(std::vector<Unscoped>{kThree, kNegative}).as<std::vector<int>>() == std::vector<int>{3, -4});
}

TEST_CASE("a half float is sent as a float") {
#ifdef __FLT16_MAX__
  CHECK(sent(static_cast<_Float16>(1.5)).kind() == Kind::kFloat);
  CHECK(sent(static_cast<_Float16>(1.5)).as<double>() == 1.5);
  CHECK(sent(std::vector<_Float16>{static_cast<_Float16>(0.5)}).as<std::vector<double>>() == std::vector<double>{0.5});
#endif
  CHECK(sent(std::complex<float>(1, 2)).as<std::complex<double>>() == std::complex<double>(1, 2));
}

TEST_CASE("a null char pointer is None") {
  const char* text = nullptr;
  CHECK(sent(text).is_none());
}

TEST_CASE("a number does not convert to a vector of bytes") {
  for (const Value& number : {Value(5), Value(std::uint64_t{1} << 63), Value(1.5)}) {
    refused<std::vector<std::uint8_t>>(sent(number));
    refused<std::vector<std::byte>>(sent(number));
    refused<std::array<std::uint8_t, 9>>(sent(number));
  }
}
