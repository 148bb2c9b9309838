// The frames of flat dicts: written in place, with the bytes that encode() writes.
#include "value/plain_dict.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/catch2.h"
#include "value/codec.h"

using namespace shmtree;

namespace {

std::vector<std::uint64_t> encoded(const Value& value) {
  format::FrameBuilder builder;
  value::encode(value, builder).value();
  std::vector<std::uint64_t> words((builder.total_bytes() + 7) / 8);
  builder.write(reinterpret_cast<std::byte*>(words.data()));
  return words;
}

// The memory is filled before the write, so that a byte that is not written shows.
std::vector<std::uint64_t> written(const value::PlainDict& dict) {
  std::vector<std::uint64_t> words((dict.bytes() + 7) / 8, ~std::uint64_t{0});
  dict.write(reinterpret_cast<std::byte*>(words.data()));
  return words;
}

}  // namespace

TEST_CASE("a flat dict is written as encode() writes it") {
  std::mt19937 random(17);
  for (int round = 0; round < 2000; ++round) {
    Dict dict;
    const std::size_t count = random() % 30;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string text(random() % 40, static_cast<char>('a' + random() % 26));
      const Value values[] = {nullptr, random() % 2 == 0, static_cast<std::int64_t>(random()) - 1'000'000'000,
                              0.5 * static_cast<double>(random()), text};
      dict.add(std::to_string(i) + text, values[random() % std::size(values)]);
    }
    const Value value = dict;
    const auto plain = value::PlainDict::of(value);
    REQUIRE(plain.has_value());
    REQUIRE(written(*plain) == encoded(value));
  }
}

TEST_CASE("a flat dict has up to 254 entries, of up to 254 bytes each") {
  Dict dict;
  for (int i = 0; i < 254; ++i)
    dict.add(std::string(254, 'k').replace(0, 3, std::to_string(100 + i)), std::string(254, 'v'));
  const Value most = dict;
  const auto plain = value::PlainDict::of(most);
  REQUIRE(plain.has_value());
  CHECK(written(*plain) == encoded(most));
  dict.add("one more", 1);
  const Value more = dict;
  CHECK_FALSE(value::PlainDict::of(more).has_value());
}

TEST_CASE("a value that a flat dict cannot contain needs encode()") {
  const std::string longer(255, 'x');
  const Value others[] = {1,
                          nullptr,
                          List{1, 2},
                          Dict{{longer, 1}},
                          Dict{{"text", longer}},
                          Dict{{"caf\xc3\xa9", 1}},
                          Dict{{"text", "caf\xc3\xa9"}},
                          Dict{{"nested", Dict{}}},
                          Dict{{"list", List{}}},
                          Dict{{"bytes", Bytes{"x"}}},
                          Dict{{"complex", std::complex<double>(1, 2)}},
                          Dict{{"unsigned", std::numeric_limits<std::uint64_t>::max()}}};
  for (const Value& other : others) CHECK_FALSE(value::PlainDict::of(other).has_value());
}

TEST_CASE("a repeated key of a dict arrives twice") {
  Dict dict;
  dict.add("key", 1);
  dict.add("key", 2);
  const Value value = dict;
  const auto frame = written(value::PlainDict::of(value).value());
  const Item item = value::decode(std::as_bytes(std::span(frame)), nullptr).value();
  REQUIRE(item.size() == 2);
  CHECK(item.at(0).as<int>() == 1);
  CHECK(item.at(1).as<int>() == 2);
  CHECK(item.at(1).key() == "key");
}
