// Enums, variants, smart pointers, times and paths are converted to Values and from Items.
#include "shmtree/vocabulary.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "support/catch2.h"
#include "support/values.h"

using namespace shmtree;
using namespace std::chrono_literals;
using format::FrameBuilder;
using test::refused;
using test::sent;

namespace {

enum class Mode : std::uint8_t { kIdle, kRun = 7 };
enum class Answer : bool { kNo, kYes };
enum Level { kLow = -1, kHigh = 1 };
enum class Named { kOne };

Item decoded(FrameBuilder& builder) {
  return value::decode(test::bytes_of(builder), nullptr).value();
}

}  // namespace

template <>
struct shmtree::ValueOf<Named> {
  static Value make(Named) { return "one"; }
};
template <>
struct shmtree::ItemAs<Named> {
  static Result<Named> make(const Item& item) {
    if (item.as<std::string>() == "one") return Named::kOne;
    return item.mismatch("the name of a member");
  }
};

TEST_CASE("enums and bytes are sent as their numbers") {
  CHECK(sent(Mode::kRun).as<int>() == 7);
  CHECK(sent(7).as<Mode>() == Mode::kRun);
  CHECK(sent(Answer::kYes).kind() == Kind::kTrue);
  CHECK(sent(true).as<Answer>() == Answer::kYes);
  CHECK(sent(kLow).as<Level>() == kLow);
  CHECK(sent(std::byte{200}).as<std::byte>() == std::byte{200});
  CHECK(refused<Mode>(sent(256)).message.starts_with("expected unsigned int of 8 bits, found 256"));
  CHECK(refused<Mode>(sent("run")).message == "expected int, found string");
}

TEST_CASE("a conversion of the program has precedence for an enum") {
  CHECK(sent(Named::kOne).as<std::string>() == "one");
  CHECK(sent("one").as<Named>() == Named::kOne);
}

TEST_CASE("a variant is sent as its alternative") {
  using Goal = std::variant<std::monostate, int, std::string, std::vector<double>>;
  CHECK(sent(Goal("dock")).as<std::string>() == "dock");
  CHECK(sent(Goal()).is_none());
  CHECK(std::get<1>(sent(4).as<Goal>()) == 4);
  CHECK(std::get<2>(sent("dock").as<Goal>()) == "dock");
  CHECK(std::get<3>(sent(List{1.5}).as<Goal>()) == std::vector<double>{1.5});
  CHECK(std::holds_alternative<std::monostate>(sent(nullptr).as<Goal>()));
  CHECK(refused<Goal>(sent(1.5)).message == "expected one of the alternatives of a variant, found float");
  const Goal kept = std::vector<double>{1, 2};
  CHECK(std::get<ArrayRef>(Value(kept).variant()).data == std::get<3>(kept).data());
}

TEST_CASE("smart pointers are sent as the object or None") {
  const auto number = std::make_unique<int>(3);
  CHECK(sent(number).as<int>() == 3);
  CHECK(sent(std::shared_ptr<std::string>()).is_none());
  CHECK(*sent("text").as<std::shared_ptr<std::string>>() == "text");
  CHECK(sent(nullptr).as<std::unique_ptr<int>>() == nullptr);
  CHECK(refused<std::unique_ptr<int>>(sent("three")).message == "expected int, found string");
}

TEST_CASE("durations and times are sent as seconds") {
  CHECK(sent(1500ms).as<double>() == 1.5);
  CHECK(sent(0.25).as<std::chrono::milliseconds>() == 250ms);
  CHECK(sent(2).as<std::chrono::nanoseconds>() == 2s);
  CHECK(sent(1.4e-3).as<std::chrono::duration<float>>().count() == 1.4e-3F);
  const auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  CHECK(sent(now).as<std::remove_const_t<decltype(now)>>() == now);
  CHECK(sent(-0.6).as<std::chrono::seconds>() == -1s);
  CHECK(refused<std::chrono::nanoseconds>(sent(1e300)).message.find("do not fit into") != std::string::npos);
  CHECK(refused<std::chrono::nanoseconds>(sent(std::numeric_limits<double>::quiet_NaN())).code == Code::kInvalid);
  CHECK(refused<std::chrono::nanoseconds>(sent(9.3e9)).code == Code::kInvalid);
  CHECK(refused<std::chrono::seconds>(sent("soon")).message == "expected float, found string");

  FrameBuilder builder;
  builder.add_kind(Kind::kTimeDelta);
  builder.add_int(-1);
  builder.add_int(86'399'500'000);
  CHECK(decoded(builder).as<std::chrono::milliseconds>() == -500ms);
}

TEST_CASE("a duration holds exactly the range of its integer type") {
  using Unsigned = std::chrono::duration<std::uint64_t>;
  using Byte = std::chrono::duration<std::int8_t>;
  for (const double seconds : {-5.0, 0x1p64}) CHECK(refused<Unsigned>(sent(seconds)).code == Code::kInvalid);
  for (const double seconds : {0.0, -0.4, 0x1p63})
    CHECK(sent(seconds).as<Unsigned>().count() == static_cast<std::uint64_t>(seconds));
  for (const double seconds : {-129.0, 127.5}) CHECK(refused<Byte>(sent(seconds)).code == Code::kInvalid);
  for (const double seconds : {-128.4, 127.4}) CHECK(sent(seconds).as<Byte>().count() == std::round(seconds));
}

TEST_CASE("a decimal of Python is read as its text") {
  FrameBuilder builder;
  builder.add_kind(Kind::kDecimal);
  builder.add_string("1.250");
  CHECK(decoded(builder).as<std::string>() == "1.250");
}

TEST_CASE("paths are read from text and from paths of Python") {
  CHECK(sent(std::filesystem::path("/tmp/x")).as<std::string>() == "/tmp/x");
  CHECK(sent("/tmp/x").as<std::filesystem::path>() == "/tmp/x");
  FrameBuilder builder;
  builder.begin_node(Kind::kPath, 0);
  builder.add_string("/tmp/y");
  CHECK(decoded(builder).as<std::filesystem::path>() == "/tmp/y");
  CHECK(refused<std::filesystem::path>(sent(1)).message == "expected string, found int");
}
