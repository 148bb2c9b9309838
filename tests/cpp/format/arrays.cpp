// Arrays: descriptors, buffers, and memory that several arrays share.
#include <numeric>

#include "format/frame_reader.h"
#include "support/catch2.h"
#include "support/frames.h"

using namespace shmtree;
using format::ArrayInfo;
using format::ArraySource;
using format::FrameBuilder;
using format::FrameReader;
using format::Order;
using test::Bytes;

namespace {

// Returns the elements of an int32 array in C order.
std::vector<std::int32_t> elements_of(const ArrayInfo& info) {
  std::vector<std::int32_t> out;
  std::int64_t at[kMaxDims] = {};
  for (std::uint64_t i = 0; i < info.elements; ++i) {
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < info.ndim; ++dim) offset += at[dim] * info.strides[dim];
    std::int32_t value;
    std::memcpy(&value, info.data + offset, sizeof(value));
    out.push_back(value);
    for (std::size_t dim = info.ndim; dim-- > 0;) {
      if (++at[dim] < info.shape[dim]) break;
      at[dim] = 0;
    }
  }
  return out;
}

// Writes arrays as children of a tuple and reads them back.
struct RoundTrip {
  FrameBuilder builder;
  Bytes frame;
  std::vector<ArrayInfo> arrays;

  explicit RoundTrip(std::initializer_list<ArraySource> sources) {
    builder.add_kind(Kind::kTuple);
    builder.add_length(sources.size());
    for (const ArraySource& source : sources) test::add_array_node(builder, source);
    frame = test::bytes_of(builder);
    FrameReader reader = FrameReader::open(frame).value();
    REQUIRE(reader.next_kind() == Kind::kTuple);
    REQUIRE(reader.next_count() == sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      reader.next_kind();
      arrays.emplace_back();
      INFO("array " << i);
      REQUIRE(reader.next_array(arrays.back()));
    }
    Status status = reader.finish();
    INFO((status.ok() ? std::string() : status.error().message));
    REQUIRE(status.ok());
  }
};

// 24 increasing int32, and views of them.
struct Numbers {
  std::int32_t values[24];
  std::int64_t shape[2] = {4, 6};
  std::int64_t turned_shape[2] = {6, 4};
  std::int64_t turned_strides[2] = {4, 24};
  std::int64_t rows_shape[2] = {2, 6};
  std::int64_t column_shape[1] = {4};
  std::int64_t column_strides[1] = {24};

  Numbers() { std::iota(values, values + 24, 0); }
  ArraySource whole() const { return {.data = values, .shape = shape, .ndim = 2, .dtype = DType::kInt32}; }
  ArraySource turned() const {
    return {.data = values,
            .shape = turned_shape,
            .strides = turned_strides,
            .ndim = 2,
            .order = Order::kStrided,
            .dtype = DType::kInt32,
            .may_share = true};
  }
  ArraySource rows(int first) const {
    return {.data = values + 6 * first, .shape = rows_shape, .ndim = 2, .dtype = DType::kInt32, .may_share = true};
  }
  ArraySource column(int index, bool may_share) const {
    return {.data = values + index,
            .shape = column_shape,
            .strides = column_strides,
            .ndim = 1,
            .order = Order::kStrided,
            .dtype = DType::kInt32,
            .may_share = may_share};
  }
};

}  // namespace

TEST_CASE("buffers start at multiples of 64 and gaps are zero") {
  const std::uint8_t bytes[] = {1, 2, 3};
  const std::int64_t one[] = {1};
  const std::int64_t three[] = {3};
  const RoundTrip trip({{.data = bytes, .shape = one, .ndim = 1, .dtype = DType::kUInt8},
                        {.data = bytes, .shape = three, .ndim = 1, .dtype = DType::kUInt8}});
  const auto first = trip.arrays[0].data - trip.frame.data();
  const auto second = trip.arrays[1].data - trip.frame.data();
  CHECK(first % 64 == 0);
  CHECK(second == first + 64);
  CHECK(static_cast<std::size_t>(second) + 3 == trip.frame.size());
  for (auto i = static_cast<std::size_t>(first) + 1; i < static_cast<std::size_t>(second); ++i) {
    REQUIRE(trip.frame[i] == std::byte{0});
  }
  for (std::size_t i = 16 + trip.builder.metadata_bytes(); i < static_cast<std::size_t>(first); ++i) {
    REQUIRE(trip.frame[i] == std::byte{0});
  }
}

TEST_CASE("shape and strides and type and flags of a C array survive") {
  const Numbers numbers;
  ArraySource source = numbers.whole();
  source.read_only = true;
  const RoundTrip trip({source});
  const ArrayInfo& info = trip.arrays[0];
  CHECK(info.dtype == DType::kInt32);
  CHECK(info.read_only());
  CHECK(info.ndim == 2);
  CHECK((info.shape[0] == 4 && info.shape[1] == 6));
  CHECK((info.strides[0] == 24 && info.strides[1] == 4));
  CHECK(info.nbytes == 96);
  CHECK(elements_of(info) == std::vector<std::int32_t>(numbers.values, numbers.values + 24));
}

TEST_CASE("a Fortran array keeps its order") {
  const Numbers numbers;
  ArraySource source = numbers.whole();
  source.order = Order::kFortran;
  const RoundTrip trip({source});
  CHECK((trip.arrays[0].strides[0] == 4 && trip.arrays[0].strides[1] == 16));
  CHECK((trip.arrays[0].flags & format::kFortran) != 0);
  CHECK(std::memcmp(trip.arrays[0].data, numbers.values, 96) == 0);
}

TEST_CASE("a transposed array is copied verbatim with its strides") {
  const Numbers numbers;
  const RoundTrip trip({numbers.turned()});
  CHECK((trip.arrays[0].strides[0] == 4 && trip.arrays[0].strides[1] == 24));
  CHECK(std::memcmp(trip.arrays[0].data, numbers.values, 96) == 0);
}

TEST_CASE("an array with gaps is gathered in C order") {
  const Numbers numbers;
  const RoundTrip trip({numbers.column(2, true)});
  CHECK(trip.arrays[0].contiguous());
  CHECK(trip.builder.buffer_bytes() == 16);
  CHECK(elements_of(trip.arrays[0]) == std::vector<std::int32_t>{2, 8, 14, 20});
}

TEST_CASE("negative strides are read from the right end") {
  const Numbers numbers;
  const std::int64_t shape[] = {2, 3};
  const std::int64_t strides[] = {-24, -8};
  const RoundTrip trip({{.data = numbers.values + 11,
                         .shape = shape,
                         .strides = strides,
                         .ndim = 2,
                         .order = Order::kStrided,
                         .dtype = DType::kInt32}});
  CHECK(elements_of(trip.arrays[0]) == std::vector<std::int32_t>{11, 9, 7, 5, 3, 1});
}

TEST_CASE("a reversed contiguous array keeps its strides and offset") {
  const Numbers numbers;
  const std::int64_t shape[] = {24};
  const std::int64_t strides[] = {-4};
  const RoundTrip trip({{.data = numbers.values + 23,
                         .shape = shape,
                         .strides = strides,
                         .ndim = 1,
                         .order = Order::kStrided,
                         .dtype = DType::kInt32}});
  CHECK(trip.arrays[0].offset == 92);
  CHECK(elements_of(trip.arrays[0]).front() == 23);
  CHECK(elements_of(trip.arrays[0]).back() == 0);
}

TEST_CASE("a broadcast array is written out in full") {
  const std::int32_t seven = 7;
  const std::int64_t shape[] = {3, 5};
  const std::int64_t strides[] = {0, 0};
  const RoundTrip trip({{.data = &seven,
                         .shape = shape,
                         .strides = strides,
                         .ndim = 2,
                         .order = Order::kStrided,
                         .dtype = DType::kInt32,
                         .may_share = true}});
  CHECK(elements_of(trip.arrays[0]) == std::vector<std::int32_t>(15, 7));
}

TEST_CASE("gathering works for every size of element") {
  std::uint8_t bytes[4096];
  for (std::size_t i = 0; i < sizeof(bytes); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  const auto item = GENERATE(1, 2, 3, 4, 8, 16, 24);
  const std::int64_t shape[] = {3, 4, 2};
  const std::int64_t strides[] = {item * 30, item * 7, item * 3};
  const RoundTrip trip({{.data = bytes,
                         .shape = shape,
                         .strides = strides,
                         .ndim = 3,
                         .order = Order::kStrided,
                         .item_bytes = static_cast<std::uint64_t>(item),
                         .description = "V"}});
  const std::byte* at = trip.arrays[0].data;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 2; ++k, at += item) {
        REQUIRE(std::memcmp(at, bytes + i * strides[0] + j * strides[1] + k * strides[2],
                            static_cast<std::size_t>(item)) == 0);
      }
    }
  }
}

TEST_CASE("the same array twice is stored once") {
  const Numbers numbers;
  const RoundTrip trip({numbers.whole(), numbers.whole(), numbers.column(1, false), numbers.column(1, false)});
  CHECK(trip.builder.buffer_count() == 2);
  CHECK(trip.arrays[0].data == trip.arrays[1].data);
  CHECK(trip.arrays[2].data == trip.arrays[3].data);
}

TEST_CASE("an array and its views are stored once in any order") {
  const Numbers numbers;
  const RoundTrip trip({numbers.rows(1), numbers.whole(), numbers.turned(), numbers.column(3, true)});
  REQUIRE(trip.builder.buffer_count() == 1);
  CHECK(trip.builder.buffer_bytes() == 96);
  const std::byte* base = trip.arrays[1].data;
  CHECK(trip.arrays[0].data == base + 24);
  CHECK(trip.arrays[2].data == base);
  CHECK(trip.arrays[3].data == base + 12);
  CHECK(elements_of(trip.arrays[3]) == std::vector<std::int32_t>{3, 9, 15, 21});
  CHECK(elements_of(trip.arrays[0]).front() == 6);
}

TEST_CASE("overlapping rows are stored as the range that they cover") {
  const Numbers numbers;
  const RoundTrip trip({numbers.rows(0), numbers.rows(1), numbers.rows(2)});
  CHECK(trip.builder.buffer_count() == 1);
  CHECK(trip.builder.buffer_bytes() == 96);
}

TEST_CASE("views that do not overlap are stored separately") {
  const Numbers numbers;
  const RoundTrip rows({numbers.rows(0), numbers.rows(2)});
  CHECK(rows.builder.buffer_count() == 2);
  const RoundTrip columns({numbers.column(0, true), numbers.column(5, true)});
  CHECK(columns.builder.buffer_count() == 2);
  CHECK(columns.builder.buffer_bytes() == 32);
  CHECK(elements_of(columns.arrays[1]) == std::vector<std::int32_t>{5, 11, 17, 23});
}

TEST_CASE("sharing never makes a frame larger") {
  std::vector<std::int32_t> wide(10000);
  std::iota(wide.begin(), wide.end(), 0);
  const std::int64_t shape[] = {100};
  const std::int64_t strides[] = {400};
  const auto column = [&](int index) {
    return ArraySource{.data = wide.data() + index,
                       .shape = shape,
                       .strides = strides,
                       .ndim = 1,
                       .order = Order::kStrided,
                       .dtype = DType::kInt32,
                       .may_share = true};
  };
  const RoundTrip trip({column(0), column(1), column(0)});
  CHECK(trip.builder.buffer_bytes() == 800);
  CHECK(trip.arrays[0].data == trip.arrays[2].data);
  CHECK(elements_of(trip.arrays[1])[2] == 201);
}

TEST_CASE("buffers are ordered by array and not by address") {
  const Numbers numbers;
  const RoundTrip trip({numbers.rows(2), numbers.rows(0)});
  CHECK(trip.arrays[0].buffer == 0);
  CHECK(trip.arrays[1].buffer == 1);
}

TEST_CASE("many arrays refer to the right buffers") {
  std::vector<std::int32_t> values(1000);
  std::iota(values.begin(), values.end(), 0);
  const std::int64_t shape[] = {1};
  const bool may_share = GENERATE(false, true);
  FrameBuilder builder;
  for (int round = 0; round < 2; ++round) {
    builder.clear();
    for (std::size_t i = 0; i < 2000; ++i) {
      test::add_array_node(
          builder,
          {.data = &values[i * 7 % 1000], .shape = shape, .ndim = 1, .dtype = DType::kInt32, .may_share = may_share});
    }
    const Bytes frame = test::bytes_of(builder);
    CHECK(builder.buffer_count() == 1000);
    FrameReader reader = FrameReader::open(frame).value();
    for (std::size_t i = 0; i < 2000; ++i) {
      ArrayInfo info;
      reader.next_kind();
      REQUIRE(reader.next_array(info));
      REQUIRE(elements_of(info)[0] == static_cast<std::int32_t>(i * 7 % 1000));
    }
  }
}

TEST_CASE("arrays without elements have no buffer and keep their shape") {
  const std::int64_t shape[] = {3, 0, INT64_C(1) << 40};
  const RoundTrip trip({{.data = nullptr, .shape = shape, .ndim = 3, .dtype = DType::kComplex128}});
  CHECK(trip.builder.buffer_count() == 0);
  CHECK(trip.arrays[0].shape[2] == INT64_C(1) << 40);
  CHECK(trip.arrays[0].elements == 0);
  CHECK(trip.arrays[0].data == nullptr);
}

TEST_CASE("an array of zero dimensions has one element") {
  const std::int32_t value = 42;
  const RoundTrip trip({{.data = &value, .shape = nullptr, .ndim = 0, .dtype = DType::kInt32}});
  CHECK(trip.arrays[0].elements == 1);
  CHECK(elements_of(trip.arrays[0]) == std::vector<std::int32_t>{42});
}

TEST_CASE("arrays of 64 dimensions are supported") {
  const std::int32_t value = 1;
  std::vector<std::int64_t> shape(64, 1);
  const RoundTrip trip({{.data = &value, .shape = shape.data(), .ndim = 64, .dtype = DType::kInt32}});
  CHECK(trip.arrays[0].ndim == 64);
}

TEST_CASE("a described element type keeps its text and size") {
  const std::uint8_t bytes[24] = {};
  const std::int64_t shape[] = {2};
  const ArraySource source{
      .data = bytes, .shape = shape, .ndim = 1, .item_bytes = 12, .description = "[('x', '<f8'), ('y', '<i4')]"};
  const RoundTrip trip({source, source});
  CHECK(trip.arrays[1].dtype == DType::kOther);
  CHECK(trip.arrays[1].description.index == trip.arrays[0].description.index);
  CHECK(trip.arrays[0].item_bytes == 12);
  CHECK(trip.arrays[0].nbytes == 24);
}

TEST_CASE("an external array stores a reference and no bytes") {
  FrameBuilder builder;
  const std::int64_t shape[] = {4, 2};
  const std::int64_t strides[] = {64, 8};
  const auto range = builder.add_external({.reference = 3, .offset = 65536, .bytes = 1024});
  CHECK(builder.add_external({.reference = 3, .offset = 65536, .bytes = 1024}) == range);
  const ArraySource source{.shape = shape,
                           .strides = strides,
                           .ndim = 2,
                           .order = Order::kStrided,
                           .dtype = DType::kFloat64,
                           .external = range,
                           .external_offset = 128};
  test::add_array_node(builder, source);
  const Bytes frame = test::bytes_of(builder);
  CHECK(builder.buffer_bytes() == 0);

  FrameReader reader = FrameReader::open(frame).value();
  ArrayInfo info;
  reader.next_kind();
  REQUIRE(reader.next_array(info));
  CHECK(info.external());
  CHECK(info.data == nullptr);
  CHECK(info.offset == 128);
  CHECK(info.strides[0] == 64);
  REQUIRE(reader.external_count() == 1);
  CHECK(reader.external(info.buffer).reference == 3);
  CHECK(reader.external(info.buffer).offset == 65536);
  CHECK(reader.external(info.buffer).bytes == 1024);
}
