// Errors of conversions contain the path of the value that does not fit, for any keys, and the reason.
#include <stdexcept>

#include "shmtree/containers.h"
#include "support/catch2.h"
#include "support/values.h"

using namespace shmtree;
using test::refused;
using test::sent;
using namespace std::string_literals;

namespace lab {

// A square of numbers. Its own errors begin like a path.
struct Square {
  std::vector<std::vector<int>> rows;
};
struct Celsius {
  double degrees = 0;
};
struct Fussy {};

}  // namespace lab

template <>
struct shmtree::ItemAs<lab::Square> {
  static Result<lab::Square> make(const Item& item) {
    auto rows = item.try_as<std::vector<std::vector<int>>>();
    if (!rows.ok()) return std::move(rows).error();
    if (rows->size() != rows->at(0).size()) return Error{.code = Code::kInvalid, .message = "[[...]] is no square"};
    return lab::Square{std::move(*rows)};
  }
};
template <>
struct shmtree::ItemAs<lab::Celsius> {
  static Result<lab::Celsius> make(const Item& item) { return lab::Celsius{item["degrees"].as<double>()}; }
};
template <>
struct shmtree::ItemAs<lab::Fussy> {
  static Result<lab::Fussy> make(const Item&) { throw std::domain_error("not today"); }
};

namespace {

std::string way_by(const std::string& key) {
  return sent(Dict{{key, 1}}).at(0).way();
}

}  // namespace

// guarantee: cpp-conversions
TEST_CASE("an error text that begins with a bracket gets one path") {
  const Item item = sent(Dict{{"m", List{List{List{1, 2}}}}, {"n", List{List{List{1}}, List{List{"x"}}}}});
  CHECK(refused<lab::Square>(item["m"][0]).message == "[\"m\"][0]: [[...]] is no square");
  CHECK(refused<std::vector<lab::Square>>(item["m"]).message == "[\"m\"][0]: [[...]] is no square");
  CHECK(refused<std::vector<lab::Square>>(item["n"]).message == "[\"n\"][1][0][0]: expected int, found string");
  CHECK(refused<lab::Square>(sent(List{List{1, 2}})).message == "[[...]] is no square");
}

// guarantee: cpp-conversions
TEST_CASE("a BadResult thrown by ItemAs becomes the conversion error") {
  const Item item = sent(List{Dict{{"degrees", "hot"}}, Dict{{"kelvin", 1}}, Dict{{"degrees", 20}}});
  CHECK(refused<lab::Celsius>(item[0]).message == "[0][\"degrees\"]: expected float, found string");
  CHECK(refused<lab::Celsius>(item[1]).code == Code::kNotFound);
  CHECK(refused<std::vector<lab::Celsius>>(item).message == "[0][\"degrees\"]: expected float, found string");
  CHECK(item[2].as<lab::Celsius>().degrees == 20);
  CHECK_THROWS_AS(item[0].as<lab::Celsius>(), BadResult);
}

TEST_CASE("other exceptions thrown by ItemAs pass through") {
  CHECK_THROWS_AS(sent(1).try_as<lab::Fussy>(), std::domain_error);
  CHECK_THROWS_AS(sent(1).as<lab::Fussy>(), std::domain_error);
}

// guarantee: cpp-conversions
TEST_CASE("keys in error paths are escaped like string literals") {
  CHECK(way_by("gr\xc3\xbc\xc3\x9f") == "[\"gr\xc3\xbc\xc3\x9f\"]");
  CHECK(way_by("say \"hi\" \\o/") == R"(["say \"hi\" \\o/"])");
  CHECK(way_by("a\nb\x1b[2J\0c\x7f"s) == R"(["a\nb\x1b[2J\x00c\x7f"])");
  CHECK(way_by("\xc2\x85\xed\xa0\x80") == R"(["\xc2\x85\xed\xa0\x80"])");
  CHECK_THROWS_WITH(sent(Dict{})["\xff\n"], R"(there is no key "\xff\n" in a dict of 0)");
}

TEST_CASE("a long key is cut between its characters") {
  const std::string letters(99, 'k'), two_bytes = "\xc3\xbc";
  CHECK(way_by(letters + two_bytes) == "[\"" + letters + "...\"]");
  CHECK(way_by(letters + "k") == "[\"" + letters + "k\"]");
  CHECK(way_by(letters.substr(1) + two_bytes) == "[\"" + letters.substr(1) + two_bytes + "\"]");
  CHECK(way_by(letters.substr(1) + two_bytes + "k") == "[\"" + letters.substr(1) + two_bytes + "...\"]");
}
