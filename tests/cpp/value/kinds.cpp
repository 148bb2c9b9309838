// C++ can still read nodes that Python wrote and for which it has no type. It refuses nodes that no sender writes.
#include <cmath>
#include <functional>

#include "support/catch2.h"
#include "support/frames.h"
#include "value/codec.h"

using namespace shmtree;
using format::FrameBuilder;

namespace {

Result<Item> decoded(FrameBuilder& builder) {
  return value::decode(test::bytes_of(builder), nullptr);
}

Item item_of(const std::function<void(FrameBuilder&)>& add) {
  FrameBuilder builder;
  add(builder);
  return decoded(builder).value();
}

Item numpy_scalar(DType dtype, const std::vector<unsigned char>& bytes) {
  return item_of([&](FrameBuilder& builder) {
    builder.add_kind(Kind::kNumpyScalar);
    builder.add_length(static_cast<std::uint64_t>(dtype));
    builder.add_text(bytes.data(), bytes.size());
  });
}

Item big_int(const std::vector<unsigned char>& bytes) {
  return item_of([&](FrameBuilder& builder) {
    builder.add_kind(Kind::kBigInt);
    builder.add_string(bytes.data(), bytes.size());
  });
}

}  // namespace

TEST_CASE("one node of every kind becomes an item") {
  const test::Sample sample;
  FrameBuilder builder;
  test::add_everything(builder, sample);
  const std::vector<std::byte> block(8192);
  const std::span<const std::byte> blocks[] = {{}, {}, block};
  auto item = value::decode(test::bytes_of(builder), nullptr, blocks);
  INFO((item.ok() ? std::string() : item.error().message));
  REQUIRE(item.ok());
  CHECK(item->size() == test::kScalarNodes + test::kContainerNodes + test::kArrayNodes + 9);
  for (const Item& part : *item) CHECK(name_of(part.kind()) != "unknown");
}

TEST_CASE("classes of Python are containers of their parts") {
  FrameBuilder builder;
  builder.add_kind(Kind::kList);
  builder.add_length(test::kContainerNodes);
  test::add_containers(builder);
  const Item items = decoded(builder).value();
  const auto of_kind = [&items](Kind kind) {
    for (const Item& item : items) {
      if (item.kind() == kind) return item;
    }
    FAIL("no such kind");
    return Item();
  };
  const Item dataclass = of_kind(Kind::kDataclass);
  CHECK(dataclass.class_name() == "demo:Step");
  CHECK(dataclass["reward"].as<double>() == 2.5);
  const Item point = of_kind(Kind::kNamedTuple);
  CHECK(point.class_name() == "demo:Point");
  CHECK(point[1].as<int>() == 2);
  const Item color = of_kind(Kind::kEnum);
  CHECK(color.class_name() == "demo:Color");
  CHECK(color.member() == "RED");
  const Item dict = of_kind(Kind::kDict);
  CHECK(dict.size() == 1);
  CHECK(dict.key_at(0).as<int>() == 1);
  CHECK(dict[std::size_t{0}].as<int>() == 2);
  CHECK(of_kind(Kind::kDefaultDict).size() == 0);
  const Item ints = of_kind(Kind::kIntList);
  CHECK(ints.size() == 3);
  CHECK(ints[2].as<int>() == 3);
  CHECK(ints.ints()[1] == 2);
  const Item floats = of_kind(Kind::kFloatList);
  CHECK(floats[1].as<double>() == 0.5);
  CHECK(floats.floats().size() == 2);
  CHECK(of_kind(Kind::kSet)[0].as<int>() == 7);
}

TEST_CASE("a sparse tensor is read as its shape and its dense tensors") {
  const Item tensor = item_of(test::add_sparse_tensor);
  CHECK(tensor.kind() == Kind::kSparseTensor);
  CHECK_FALSE(tensor.is_sequence());
  CHECK(std::vector(tensor.ints().begin(), tensor.ints().end()) == std::vector<std::int64_t>{0, 1});
  REQUIRE(tensor.size() == 3);
  CHECK(tensor.at(0).at(0).as<int>() == 3);
  CHECK(tensor.at(1).span<const std::int64_t>()[1] == 2);
  CHECK(tensor.at(2).span<const float>()[1] == 2);
  CHECK(tensor.at(2).way() == "[2]");
  CHECK_THROWS_WITH(tensor.as<int>(), "expected int, found sparse tensor");
}

TEST_CASE("the entries of a defaultdict do not include its factory") {
  const Item item = item_of([](FrameBuilder& builder) {
    builder.add_kind(Kind::kDefaultDict);
    builder.add_none_node();
    builder.add_length(2);
    for (const char* key : {"a", "b"}) {
      builder.add_str_node(key, 1);
      builder.add_int_node(*key);
    }
  });
  CHECK(item.size() == 2);
  CHECK(item["b"].as<int>() == 'b');
  CHECK(item.keys() == std::vector<std::string_view>{"a", "b"});
}

TEST_CASE("NumPy scalars of every native type count as numbers") {
  CHECK(numpy_scalar(DType::kBool, {1}).as<bool>());
  CHECK(numpy_scalar(DType::kInt8, {0xff}).as<int>() == -1);
  CHECK(numpy_scalar(DType::kUInt8, {0xff}).as<int>() == 255);
  CHECK(numpy_scalar(DType::kInt16, {0xfe, 0xff}).as<int>() == -2);
  CHECK(numpy_scalar(DType::kUInt16, {0xfe, 0xff}).as<int>() == 65534);
  CHECK(numpy_scalar(DType::kInt32, {1, 0, 0, 0}).as<int>() == 1);
  CHECK(numpy_scalar(DType::kUInt32, {0, 0, 0, 0x80}).as<std::int64_t>() == INT64_C(1) << 31);
  CHECK(numpy_scalar(DType::kInt64, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}).as<int>() == -1);
  CHECK(numpy_scalar(DType::kUInt64, {0, 0, 0, 0, 0, 0, 0, 0x80}).as<std::uint64_t>() == UINT64_C(1) << 63);
  CHECK(numpy_scalar(DType::kFloat16, {0x00, 0x3e}).as<double>() == 1.5);
  CHECK(numpy_scalar(DType::kFloat16, {0x01, 0x80}).as<double>() == -0x1p-24);
  CHECK(std::isinf(numpy_scalar(DType::kFloat16, {0x00, 0x7c}).as<double>()));
  CHECK(numpy_scalar(DType::kBFloat16, {0xc0, 0x3f}).as<double>() == 1.5);
  CHECK(numpy_scalar(DType::kFloat32, {0, 0, 0x80, 0x3f}).as<double>() == 1.0);
  CHECK(numpy_scalar(DType::kFloat64, {0, 0, 0, 0, 0, 0, 0xf0, 0x3f}).as<float>() == 1.0f);
  CHECK(numpy_scalar(DType::kComplex64, {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}).as<std::complex<double>>() ==
        std::complex<double>(1, 2));
}

TEST_CASE("big integers that fit 64 bits are numbers") {
  CHECK(big_int({0xff}).as<int>() == -1);
  CHECK(big_int({0xff, 0}).as<int>() == 255);
  CHECK(big_int({0, 0, 0, 0, 0, 0, 0, 0x80, 0}).as<std::uint64_t>() == UINT64_C(1) << 63);
  CHECK(big_int({0, 0, 0, 0, 0, 0, 0, 0x80}).as<std::int64_t>() == INT64_MIN);
  CHECK_FALSE(big_int({0, 0, 0, 0, 0, 0, 0, 0, 1}).try_as<std::uint64_t>().ok());
  CHECK_FALSE(big_int({0, 0, 0, 0, 0, 0, 0, 0, 0xff}).try_as<std::int64_t>().ok());
  CHECK(big_int({0, 0, 0, 0, 0, 0, 0, 0, 1}).as<std::span<const std::byte>>().size() == 9);
}

TEST_CASE("long text must be a plain run of bytes") {
  const double values[4] = {};
  const std::int64_t shape[] = {4};
  const std::int64_t strides[] = {-8};
  FrameBuilder builder;
  builder.add_kind(Kind::kLongStr);
  builder.add_array({.data = values + 3,
                     .shape = shape,
                     .strides = strides,
                     .ndim = 1,
                     .order = format::Order::kStrided,
                     .dtype = DType::kFloat64});
  auto item = decoded(builder);
  REQUIRE_FALSE(item.ok());
  CHECK(item.error().code == Code::kCorrupt);
  CHECK(item.error().message.find("not contiguous bytes") != std::string::npos);
}

TEST_CASE("no change of a single word makes an item misbehave") {
  const test::Sample sample;
  FrameBuilder builder;
  test::add_everything(builder, sample);
  const test::Bytes whole = test::bytes_of(builder);
  const std::vector<std::byte> block(8192);
  const std::span<const std::byte> blocks[] = {{}, {}, block};
  // Reads all that can be read of an item, for any kind.
  const std::function<std::size_t(const Item&)> look = [&look](const Item& item) -> std::size_t {
    std::size_t seen = item.ints().size() + item.floats().size() + item.class_name().size() + item.key().size();
    if (auto text = item.try_as<std::string>(); text.ok()) seen += text->size();
    if (auto bytes = item.try_as<std::span<const std::byte>>(); bytes.ok()) {
      for (const std::byte byte : *bytes) seen += static_cast<std::size_t>(byte);
    }
    if (auto number = item.try_as<double>(); number.ok()) seen += *number > 0;
    if (auto view = item.try_view(); view.ok() && view->c_order) {
      for (std::size_t i = 0; i < view->elements * view->item_bytes; ++i)
        seen += static_cast<std::size_t>(view->data[i]);
    }
    if (const auto message = item.capnp_segments(); message.ok()) {
      for (const auto& segment : message->segments) {
        for (const std::byte byte : segment) seen += static_cast<std::size_t>(byte);
      }
    }
    for (const std::string_view key : item.keys()) seen += key.size();
    for (const Item& part : item) seen += look(part);
    return seen;
  };
  std::size_t seen = 0;
  for (std::size_t offset = 0; offset + 8 <= 16 + builder.metadata_bytes(); offset += 8) {
    for (int bit = -1; bit < 64; ++bit) {
      test::Bytes frame = whole;
      std::uint64_t word;
      std::memcpy(&word, frame.data() + offset, 8);
      word = bit < 0 ? ~word : word ^ std::uint64_t{1} << bit;
      std::memcpy(frame.data() + offset, &word, 8);
      auto item = value::decode(frame, nullptr, blocks);
      if (item.ok()) seen += look(*item);
    }
  }
  CHECK(seen > 0);
}

TEST_CASE("unknown flags and parts of a wrong kind are corrupt") {
  using Add = std::function<void(FrameBuilder&)>;
  const Add add_path = [](FrameBuilder& builder) {
    builder.begin_node(Kind::kPath, 3);
    builder.add_string("/tmp");
  };
  const Add add_time = [](FrameBuilder& builder) {
    builder.add_kind(Kind::kTime);
    builder.add_int(0);
    builder.add_length(4);
  };
  const Add add_timezone = [](FrameBuilder& builder) {
    builder.add_kind(Kind::kTimezone);
    builder.add_int(0);
    builder.add_length(2);
    builder.add_string("UTC");
  };
  const Add add_fraction = [](FrameBuilder& builder) {
    builder.add_kind(Kind::kFraction);
    builder.add_int_node(1);
    builder.add_float_node(2);
  };
  for (const Add& add : {add_path, add_time, add_timezone, add_fraction}) {
    FrameBuilder builder;
    add(builder);
    const auto item = decoded(builder);
    REQUIRE(!item.ok());
    CHECK(item.error().code == Code::kCorrupt);
  }
}
