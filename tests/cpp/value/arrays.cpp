// Arrays in C++: sent by reference, received as views of shared memory.
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "shmtree/array.h"
#include "support/catch2.h"
#include "value/encoder.h"

#if __has_include(<xtensor/views/xview.hpp>)
#include <xtensor/core/xmath.hpp>
#include <xtensor/generators/xbuilder.hpp>
#include <xtensor/views/xview.hpp>
#else
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>
#endif

using namespace shmtree;

namespace {

struct Sent {
  std::shared_ptr<std::vector<std::byte>> frame;
  std::uint64_t buffer_bytes = 0;
};

Sent sent_from(const format::FrameBuilder& builder) {
  auto frame = std::make_shared<std::vector<std::byte>>(builder.total_bytes());
  builder.write(frame->data());
  return {frame, builder.buffer_bytes()};
}

Sent send(const Value& value) {
  format::FrameBuilder builder;
  value::encode(value, builder).value();
  return sent_from(builder);
}

Item receive(const Sent& sent) {
  return value::decode(*sent.frame, sent.frame).value();
}
Item trip(const Value& value) {
  return receive(send(value));
}

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const BadResult& bad) {
    return bad.error();
  }
  return {.code = Code::kOs, .message = "nothing was thrown"};
}

Error refusal(ArrayRef array) {
  format::FrameBuilder builder;
  Status status = value::encode(std::move(array), builder);
  REQUIRE_FALSE(status.ok());
  return status.error();
}

}  // namespace

TEST_CASE("the example of the documentation works") {
  xt::xarray<float> obs = xt::zeros<float>({84, 84});
  obs(3, 4) = 7;
  const Item item = trip(Dict{{"obs", obs}, {"reward", 1.0}});
  auto view = item["obs"].array<float>();
  CHECK(view.dimension() == 2);
  CHECK(view.shape()[0] == 84);
  CHECK(view(3, 4) == 7);
  CHECK(xt::sum(view)() == 7);
}

TEST_CASE("a received array is a view of the frame and can be written") {
  xt::xarray<double> sent = xt::arange<double>(6).reshape({2, 3});
  const Sent message = send(Dict{{"x", sent}});
  const Item item = receive(message);
  auto view = item["x"].array<double>();
  const auto* begin = reinterpret_cast<const std::byte*>(view.data());
  CHECK(begin >= message.frame->data());
  CHECK(begin < message.frame->data() + message.frame->size());
  view(1, 2) = 100;
  CHECK(item["x"].array<const double>()(1, 2) == 100);
  CHECK(sent(1, 2) == 5);
}

TEST_CASE("an xtensor view keeps its message alive without items") {
  xt::xarray<int> numbers = {1, 2, 3};
  Sent sent = send(Dict{{"x", numbers}});
  const std::weak_ptr<std::vector<std::byte>> alive = sent.frame;
  {
    auto view = receive(sent)["x"].array<int>();
    sent.frame.reset();
    CHECK_FALSE(alive.expired());
    CHECK(view(2) == 3);
  }
  CHECK(alive.expired());
}

TEST_CASE("a value refers to an array and copies it only when encoded") {
  xt::xarray<int> sent = {1, 2, 3};
  const Value value = Dict{{"x", sent}};
  sent(0) = 10;
  CHECK(trip(value)["x"].array<int>()(0) == 10);
}

TEST_CASE("a value owns temporaries and expressions") {
  const Value from_temporary = Dict{{"x", xt::xarray<float>{1, 2, 3}}};
  CHECK(trip(from_temporary)["x"].array<float>()(2) == 3);
  const xt::xarray<float> base = {1, 2, 3};
  const Value from_expression = Dict{{"x", 2.0f * base}};
  CHECK(trip(from_expression)["x"].array<float>()(2) == 6);
}

TEST_CASE("views and transposes and column-major arrays keep elements") {
  xt::xarray<int> base = xt::arange<int>(24).reshape({4, 6});
  auto block = xt::view(base, xt::range(1, 3), xt::range(0, 6, 2));
  auto received = trip(Value(block)).array<int>();
  CHECK((received == block));
  auto turned = xt::transpose(base);
  CHECK((trip(Value(turned)).array<int>() == turned));
  xt::xarray<int, xt::layout_type::column_major> columns = base;
  const Item item = trip(Value(columns));
  CHECK((item.array<int>() == base));
  CHECK(item.view().strides[0] == 4);
}

TEST_CASE("the type of elements must be the one that was sent") {
  xt::xarray<float> sent = {1, 2, 3};
  const Item item = trip(Value(sent));
  CHECK(error_of([&] { (void)item.array<double>(); }).message == "expected an array of float64, found one of float32");
}

// guarantee: read-only-arrays
TEST_CASE("a read-only array is accessible only as const") {
  const float values[] = {1, 2, 3};
  ArrayRef ref = array_ref(values, {3});
  ref.read_only = true;
  const Item item = trip(ref);
  CHECK(item.view().read_only);
  static_assert(std::is_same_v<decltype(ArrayView::data), const std::byte*>);
  CHECK_THROWS_AS(item.view().mutable_data(), BadResult);
  CHECK(error_of([&] { (void)item.array<float>(); }).code == Code::kInvalid);
  CHECK(item.array<const float>()(1) == 2);
  CHECK(item.span<const float>()[1] == 2);
}

TEST_CASE("an array with negative strides is read through view()") {
  const float values[] = {1, 2, 3};
  const Item item = trip(ArrayRef{.data = values + 2, .dtype = DType::kFloat32, .shape = {3}, .strides = {-4}});
  const ArrayView view = item.view();
  CHECK(view.strides[0] == -4);
  CHECK(*reinterpret_cast<const float*>(view.data + 2 * view.strides[0]) == 1);
  CHECK(error_of([&] { (void)item.array<float>(); }).message.find("negative stride") != std::string::npos);
  CHECK_FALSE(view.c_order);
}

TEST_CASE("vectors and spans are arrays") {
  std::vector<double> values = {1, 2, 3};
  const Item item = trip(Dict{{"vector", values},
                              {"temporary", std::vector<std::uint8_t>{4, 5}},
                              {"span", std::span<const double>(values).last(2)}});
  CHECK(item["vector"].span<double>()[2] == 3);
  CHECK(item["temporary"].span<std::uint8_t>()[1] == 5);
  CHECK(item["span"].array<double>()(0) == 2);
}

TEST_CASE("arrays that share memory are stored once") {
  std::vector<double> values(1000, 1.0);
  const std::span<const double> all(values);
  const Sent sent = send(List{all, all, all.first(500)});
  CHECK(sent.buffer_bytes == 8000);
}

TEST_CASE("every C++ element type survives a round trip") {
  const auto check = [](auto one) {
    using T = decltype(one);
    const T values[] = {one, T(0), one};
    const Item item = trip(array_ref(values, {3}));
    return item.span<const T>()[2] == one && item.view().dtype == dtype_of<T>();
  };
  CHECK(check(true));
  CHECK(check(std::int8_t{-1}));
  CHECK(check(std::uint8_t{255}));
  CHECK(check(std::int16_t{-1}));
  CHECK(check(std::uint16_t{1}));
  CHECK(check(std::int32_t{-1}));
  CHECK(check(std::uint32_t{1}));
  CHECK(check(std::int64_t{-1}));
  CHECK(check(std::uint64_t{1}));
  CHECK(check(1.5f));
  CHECK(check(1.5));
  CHECK(check(std::complex<float>(1, 2)));
  CHECK(check(std::complex<double>(1, 2)));
}

TEST_CASE("empty arrays and arrays without dimensions keep their shape") {
  xt::xarray<float> empty = xt::zeros<float>({0, 3});
  xt::xarray<float> single = 5.0f;
  const Item item = trip(Dict{{"empty", empty}, {"single", single}});
  CHECK(item["empty"].view().shape[1] == 3);
  CHECK(item["empty"].array<float>().size() == 0);
  CHECK(item["single"].view().shape.empty());
  CHECK(item["single"].array<float>()() == 5);
  CHECK(item["single"].as<double>() == 5);
}

TEST_CASE("invalid arrays are refused on encoding") {
  const float values[4] = {};
  CHECK(refusal({.data = values, .dtype = DType::kOther}).code == Code::kInvalid);
  CHECK(refusal({.data = values, .shape = {-1}}).message == "An array to send has a dimension of -1.");
  CHECK(refusal({.data = values, .shape = std::vector<std::int64_t>(65, 1)}).code == Code::kInvalid);
  CHECK(refusal({.data = values, .shape = {2}, .strides = {4, 4}}).code == Code::kInvalid);
  CHECK(refusal({.data = values, .shape = {INT64_MAX, 2}}).code == Code::kInvalid);
  CHECK(refusal({.data = values, .shape = {2, 2}, .strides = {INT64_MAX, INT64_MAX}}).code == Code::kInvalid);
  CHECK(refusal({.data = nullptr, .shape = {2}}).code == Code::kInvalid);
}

namespace {

// A block that contains some of the sender's arrays.
struct Block {
  std::vector<double> memory = std::vector<double>(100);

  std::optional<value::LentRange> lend(const value::ArrayMemory& array) const {
    const auto* low = reinterpret_cast<const std::byte*>(memory.data());
    if (array.begin < low || array.begin + array.bytes > low + memory.size() * 8) return std::nullopt;
    return value::LentRange{.range = {.reference = 1, .offset = 64, .bytes = memory.size() * 8 - 64},
                            .at = array.begin - low - 64};
  }
  static bool is_given(const value::Origin&) { return false; }
  static value::EncodeOptions options() { return {}; }
};

}  // namespace

TEST_CASE("an array in an arena block is encoded by reference") {
  Block block;
  std::iota(block.memory.begin(), block.memory.end(), 0.0);
  const std::span<const double> inside = std::span<const double>(block.memory).subspan(10, 5);
  format::FrameBuilder builder;
  value::encode(Dict{{"inside", inside}}, builder, block).value();
  const Sent sent = sent_from(builder);
  CHECK(sent.buffer_bytes == 0);

  const auto bytes = std::as_bytes(std::span(block.memory));
  const std::span<const std::byte> blocks[] = {{}, bytes};
  const Item item = value::decode(*sent.frame, sent.frame, blocks).value();
  CHECK(item["inside"].span<double>().data() == &block.memory[10]);
  CHECK(item["inside"].span<double>()[4] == 14);

  SECTION("a block that the message does not have is refused") {
    auto missing = value::decode(*sent.frame, sent.frame, std::span(blocks).first(1));
    REQUIRE_FALSE(missing.ok());
    CHECK(missing.error().code == Code::kCorrupt);
  }
  SECTION("a block that is too short is refused") {
    const std::span<const std::byte> shorter[] = {{}, bytes.first(799)};
    auto beyond = value::decode(*sent.frame, sent.frame, shorter);
    REQUIRE_FALSE(beyond.ok());
    CHECK(beyond.error().message.find("beyond the end of a block") != std::string::npos);
  }
}
