// Frames for the tests of the format layer. They are built in memory, and have the same bytes in every run.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "format/frame_builder.h"

namespace shmtree::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(format::FrameBuilder& builder) {
  builder.finish().value();
  Bytes frame(builder.total_bytes(), std::byte{0xaa});
  builder.write(frame.data());
  return frame;
}

// {"reward": 1.5, "done": False, "step": 17, "id": "ep-12", "big": [1000, None]}
inline void add_small_dict(format::FrameBuilder& builder) {
  builder.add_kind(Kind::kStrDict);
  builder.add_length(5);
  builder.add_name("reward");
  builder.add_float_node(1.5);
  builder.add_name("done");
  builder.add_bool_node(false);
  builder.add_name("step");
  builder.add_int_node(17);
  builder.add_name("id");
  builder.add_str_node("ep-12", 5);
  builder.add_name("big");
  builder.add_kind(Kind::kList);
  builder.add_length(2);
  builder.add_int_node(1000);
  builder.add_none_node();
}

// The memory of the arrays of add_everything().
struct Sample {
  float matrix[6][4];
  std::uint8_t pixels[300];
  double lonely[5];
  std::string long_text;

  Sample() : long_text(5000, 'x') {
    for (int i = 0; i < 24; ++i) matrix[i / 4][i % 4] = static_cast<float>(i);
    for (int i = 0; i < 300; ++i) pixels[i] = static_cast<std::uint8_t>(i);
    for (int i = 0; i < 5; ++i) lonely[i] = 0.5 * i;
  }
};

inline void add_array_node(format::FrameBuilder& builder, const format::ArraySource& source) {
  builder.add_kind(Kind::kArray);
  builder.add_array(source);
}

inline void add_scalars(format::FrameBuilder& builder) {
  builder.add_none_node();
  builder.add_bool_node(true);
  builder.add_kind(Kind::kBigInt);
  builder.add_string("\x01\x02\x03\x04\x05\x06\x07\x08\x09");
  builder.add_kind(Kind::kComplex);
  builder.add_float(1.0);
  builder.add_float(-2.0);
  builder.add_bytes_node("raw", 3);
  builder.add_kind(Kind::kByteArray);
  builder.add_string("mutable");
  builder.add_kind(Kind::kEllipsis);
  builder.add_kind(Kind::kNotImplemented);
  builder.add_kind(Kind::kDate);
  builder.add_int(2026 << 9 | 11 << 5 | 21);
  builder.add_kind(Kind::kTime);
  builder.add_int(86399999999);
  builder.add_length(2);
  builder.add_kind(Kind::kTimezone);
  builder.add_int(3600000000);
  builder.add_length(1);
  builder.add_string("CET");
  builder.add_kind(Kind::kDateTime);
  builder.add_int(2026 << 9 | 11 << 5 | 21);
  builder.add_int(1);
  builder.add_length(3);
  builder.add_kind(Kind::kTimezoneUtc);
  builder.add_kind(Kind::kTimeDelta);
  builder.add_int(-1);
  builder.add_int(5);
  builder.add_kind(Kind::kZoneInfo);
  builder.add_name("Europe/Paris");
  builder.add_kind(Kind::kDecimal);
  builder.add_string("1.250");
  builder.add_kind(Kind::kFraction);
  builder.add_int_node(1);
  builder.add_int_node(3);
  builder.add_kind(Kind::kUuid);
  builder.add_text("0123456789abcdef", 16);
  builder.add_kind(Kind::kPath);
  builder.add_length(0);
  builder.add_string("/tmp/x");
  builder.add_kind(Kind::kRange);
  for (int i : {0, 10, 2}) builder.add_int(i);
  builder.add_kind(Kind::kSlice);
  builder.add_none_node();
  builder.add_int_node(3);
  builder.add_none_node();
}
inline constexpr std::uint64_t kScalarNodes = 19;

inline void add_containers(format::FrameBuilder& builder) {
  builder.add_kind(Kind::kTuple);
  builder.add_length(1);
  builder.add_int_node(INT64_MIN);
  builder.add_kind(Kind::kIntList);
  builder.add_length(3);
  for (std::int64_t i : {1, 2, 3}) builder.add_int(i);
  builder.add_kind(Kind::kFloatList);
  builder.add_length(2);
  for (double f : {0.25, 0.5}) builder.add_float(f);
  for (Kind kind : {Kind::kSet, Kind::kFrozenSet}) {
    builder.add_kind(kind);
    builder.add_length(1);
    builder.add_int_node(7);
  }
  builder.add_kind(Kind::kDeque);
  builder.add_length(1);
  builder.add_length(11);
  builder.add_none_node();
  for (Kind kind : {Kind::kDict, Kind::kOrderedDict, Kind::kCounter}) {
    builder.add_kind(kind);
    builder.add_length(1);
    builder.add_int_node(1);
    builder.add_int_node(2);
  }
  builder.add_kind(Kind::kStrOrderedDict);
  builder.add_length(1);
  builder.add_name("reward");
  builder.add_none_node();
  builder.add_kind(Kind::kDefaultDict);
  builder.add_kind(Kind::kGlobal);
  builder.add_name("builtins:list");
  builder.add_length(0);
  builder.add_kind(Kind::kNamedTuple);
  builder.add_name("demo:Point");
  builder.add_length(2);
  builder.add_int_node(1);
  builder.add_int_node(2);
  builder.add_kind(Kind::kDataclass);
  builder.add_name("demo:Step");
  builder.add_length(1);
  builder.add_name("reward");
  builder.add_float_node(2.5);
  builder.add_kind(Kind::kEnum);
  builder.add_name("demo:Color");
  builder.add_name("RED");
  builder.add_kind(Kind::kEnumValue);
  builder.add_name("demo:Flag");
  builder.add_int_node(3);
  builder.add_kind(Kind::kRegistered);
  builder.add_name("demo:Mine");
  builder.add_none_node();
}
inline constexpr std::uint64_t kContainerNodes = 16;

// Adds {"a": [7]} twice, then a list that contains itself and the list in the dict.
inline void add_references(format::FrameBuilder& builder) {
  const std::size_t dict = builder.kinds();
  builder.add_kind(Kind::kStrDict);
  builder.add_length(1);
  builder.add_name("a");
  const std::size_t inner = builder.kinds();
  builder.begin_node(Kind::kList, 1);
  builder.add_int_node(7);
  builder.add_reference(dict);
  const std::size_t loop = builder.kinds();
  builder.begin_node(Kind::kList, 2);
  builder.add_reference(loop);
  builder.add_reference(inner);
}
inline constexpr std::uint64_t kReferenceNodes = 3;

inline void add_arrays(format::FrameBuilder& builder, const Sample& sample) {
  const std::int64_t shape[] = {6, 4};
  const std::int64_t turned[] = {4, 6};
  const std::int64_t turned_strides[] = {4, 16};
  const std::int64_t column[] = {6};
  const std::int64_t column_stride[] = {16};
  const std::int64_t empty[] = {0, 3};
  const std::int64_t pixels[] = {300};
  const std::int64_t some[] = {60};
  const std::int64_t some_stride[] = {-5};
  const std::int64_t outside[] = {8};
  const std::int64_t records[] = {10};
  const format::ArraySource matrix{.data = sample.matrix, .shape = shape, .ndim = 2, .dtype = DType::kFloat32};
  add_array_node(builder, matrix);
  format::ArraySource view = matrix;
  view.shape = turned;
  view.strides = turned_strides;
  view.order = format::Order::kStrided;
  view.may_share = true;
  add_array_node(builder, view);
  view.shape = column;
  view.strides = column_stride;
  view.ndim = 1;
  view.data = &sample.matrix[0][1];
  add_array_node(builder, view);
  add_array_node(builder, {.data = sample.pixels + 299,
                           .shape = some,
                           .strides = some_stride,
                           .ndim = 1,
                           .order = format::Order::kStrided,
                           .dtype = DType::kUInt8,
                           .read_only = true});
  add_array_node(builder, {.data = sample.pixels, .shape = pixels, .ndim = 1, .dtype = DType::kUInt8});
  add_array_node(builder, {.data = sample.matrix, .shape = empty, .ndim = 2, .dtype = DType::kInt16});
  add_array_node(builder, {.data = &sample.lonely[2], .shape = nullptr, .ndim = 0, .dtype = DType::kFloat64});
  const std::uint32_t range = builder.add_external({.reference = 2, .offset = 4096, .bytes = 64});
  add_array_node(builder,
                 {.shape = outside, .ndim = 1, .dtype = DType::kFloat32, .external = range, .external_offset = 32});
  add_array_node(builder, {.data = sample.pixels,
                           .shape = records,
                           .ndim = 1,
                           .item_bytes = 30,
                           .description = "[('a', '<i4'), ('b', 'S26')]"});
  add_array_node(
      builder,
      {.data = sample.matrix, .shape = turned, .ndim = 2, .order = format::Order::kFortran, .dtype = DType::kFloat32});
}
inline constexpr std::uint64_t kArrayNodes = 10;

// Adds a Cap'n Proto message with these segments, which consist of whole words.
inline void add_capnp_node(format::FrameBuilder& builder, std::uint64_t schema_id,
                           const std::vector<std::span<const std::byte>>& segments) {
  builder.add_kind(Kind::kCapnp);
  builder.add_int(static_cast<std::int64_t>(schema_id));
  builder.add_length(segments.size());
  for (const auto& segment : segments) {
    const auto bytes = static_cast<std::int64_t>(segment.size());
    builder.add_array({.data = segment.data(),
                       .shape = &bytes,
                       .ndim = 1,
                       .dtype = DType::kUInt8,
                       .read_only = true,
                       .may_share = true,
                       .whole_words = true});
  }
}

// Adds the vector (1, 0, 2) in COO layout.
inline void add_sparse_tensor(format::FrameBuilder& builder) {
  static const std::int64_t indices[] = {0, 2}, shape[] = {1, 2};
  static const float values[] = {1, 2};
  builder.add_kind(Kind::kSparseTensor);
  builder.add_length(0);
  builder.add_length(1);
  builder.add_kind(Kind::kTuple);
  builder.add_length(1);
  builder.add_int_node(3);
  builder.add_length(2);
  builder.add_kind(Kind::kTensor);
  builder.add_length(0);
  builder.add_array({.data = indices, .shape = shape, .ndim = 2, .dtype = DType::kInt64});
  builder.add_kind(Kind::kTensor);
  builder.add_length(0);
  builder.add_array({.data = values, .shape = shape + 1, .ndim = 1, .dtype = DType::kFloat32});
}

// Adds one node of nearly every kind, and arrays of every sort: contiguous, Fortran, strided, shared, external, empty,
// 0-d.
inline void add_everything(format::FrameBuilder& builder, const Sample& sample) {
  builder.add_kind(Kind::kList);
  builder.add_length(kScalarNodes + kContainerNodes + kArrayNodes + 9);
  add_scalars(builder);
  add_containers(builder);
  add_arrays(builder, sample);
  builder.add_str_node(sample.long_text.data(), sample.long_text.size());
  builder.add_kind(Kind::kMemoryView);
  const std::int64_t five[] = {5};
  add_array_node(builder, {.data = sample.lonely, .shape = five, .ndim = 1, .dtype = DType::kFloat64});
  builder.add_kind(Kind::kPickle);
  builder.add_string("\x80\x05N.");
  builder.add_length(0);
  builder.add_kind(Kind::kNumpyScalar);
  builder.add_length(static_cast<std::uint64_t>(DType::kFloat32));
  builder.add_text("\0\0\x80\x3f", 4);
  builder.add_kind(Kind::kDType);
  builder.add_length(0);
  builder.add_name("<M8[ns]");
  builder.add_kind(Kind::kMaskedArray);
  add_array_node(builder, {.data = sample.lonely, .shape = five, .ndim = 1, .dtype = DType::kFloat64});
  builder.add_bool_node(false);
  builder.add_none_node();
  builder.add_length(0);
  builder.add_kind(Kind::kTensor);
  builder.add_length(1);
  builder.add_array({.data = sample.lonely, .shape = five, .ndim = 1, .dtype = DType::kBFloat16});
  const auto words = std::as_bytes(std::span(sample.lonely));
  add_capnp_node(builder, 0xd8a1b2c3d4e5f607, {words.first(24), words.last(16), {}});
  add_sparse_tensor(builder);
}

inline Bytes everything() {
  const Sample sample;
  format::FrameBuilder builder;
  add_everything(builder, sample);
  return bytes_of(builder);
}

}  // namespace shmtree::test
