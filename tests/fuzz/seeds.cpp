// Writes the initial inputs of the searches: valid frames, valid recordings and single overwritten words, to
// <folder>/frame, <folder>/recording and <folder>/arena.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/frame_walk.h"
#include "support/frames.h"
#include "support/recordings.h"

using namespace shmtree;

namespace {

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Aborts unless the frame is valid: a search that starts from invalid frames finds less.
test::Bytes sound_frame(format::FrameBuilder& builder) {
  test::Bytes frame = test::bytes_of(builder);
  if (!test::walk_frame(frame).ok()) std::abort();
  return frame;
}

// Returns an input for frame.cpp: the number of metadata words, then the frame without its header.
std::string frame_of(const std::function<void(format::FrameBuilder&)>& add) {
  format::FrameBuilder builder;
  add(builder);
  const test::Bytes frame = sound_frame(builder);
  const auto words = static_cast<std::uint16_t>(builder.metadata_bytes() / 8);
  std::string seed(reinterpret_cast<const char*>(&words), sizeof words);
  return seed.append(reinterpret_cast<const char*>(frame.data()) + 16, frame.size() - 16);
}

// --- lists of values of one sort -------------------------------------------------------------------------------------

using Builder = format::FrameBuilder;

void add_tuple(Builder& builder, std::uint64_t items) {
  builder.add_kind(Kind::kTuple);
  builder.add_length(items);
}

void add_registered(Builder& builder, std::string_view name) {
  builder.add_kind(Kind::kRegistered);
  builder.add_name(name);
}

// Adds device memory, in the form of python/shmtree/cuda/_sent.py: value, sender, memory, token.
void add_device_leaf(Builder& builder, const test::Sample& sample, bool is_tensor) {
  add_registered(builder, "shmtree._leaves:DeviceLeaf");
  add_tuple(builder, 4);
  add_tuple(builder, is_tensor ? 7 : 6);
  const std::string_view kind = is_tensor ? "torch" : "array", dtype = is_tensor ? "float32" : "<f4";
  builder.add_str_node(kind.data(), kind.size());
  builder.add_str_node(dtype.data(), dtype.size());
  builder.add_int_node(0);
  for (const std::int64_t number : {6, 4}) {
    add_tuple(builder, 2);
    builder.add_int_node(number);
    builder.add_int_node(1);
  }
  builder.add_bool_node(false);
  if (is_tensor) builder.add_bool_node(true);
  add_tuple(builder, 4);  // arena, block, participant, process
  builder.add_bytes_node("0123456789abcdef", 16);
  for (const std::int64_t number : {5, 1025, 77}) builder.add_int_node(number);
  add_tuple(builder, 5);  // device, handle of the memory, offset, bytes, handle of the event
  builder.add_bytes_node("0123456789abcdef", 16);
  builder.add_bytes_node(sample.pixels, 64);
  builder.add_int_node(0);
  builder.add_int_node(96);
  builder.add_bytes_node(sample.pixels + 64, 64);
  builder.add_kind(Kind::kArray);  // the token: bytes of another block
  const std::int64_t shape[] = {64};
  const std::uint32_t token = builder.add_external({.reference = 0, .offset = 64, .bytes = 64});
  builder.add_array({.shape = shape, .ndim = 1, .dtype = DType::kUInt8, .external = token});
}

void add_device_leaves(Builder& builder, const test::Sample& sample) {
  builder.begin_node(Kind::kList, 4);
  add_device_leaf(builder, sample, true);
  add_device_leaf(builder, sample, false);
  for (const bool has_strides : {false, true}) {  // no elements, so no memory
    add_registered(builder, "shmtree._leaves:DeviceLeaf");
    add_tuple(builder, 1);
    add_tuple(builder, 6);
    builder.add_str_node("array", 5);
    builder.add_str_node("|u1", 3);
    builder.add_int_node(0);
    add_tuple(builder, 1);
    builder.add_int_node(0);
    if (has_strides) {
      add_tuple(builder, 1);
      builder.add_int_node(8);
    } else {
      builder.add_none_node();
    }
    builder.add_bool_node(true);
  }
}

// Adds ranges of numbers, and arrays in ranges of other blocks: whole, strided, overlapping and up to the end.
void add_ranges(Builder& builder) {
  builder.begin_node(Kind::kList, 8);
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{-3}, INT64_MAX}) {
    builder.add_kind(Kind::kRange);
    for (const std::int64_t number : {INT64_MIN, std::int64_t{10}, step}) builder.add_int(number);
  }
  const std::int64_t shape[] = {16}, strides[] = {-8};
  const auto array_in = [&](std::uint32_t range, std::int64_t offset, const std::int64_t* steps) {
    builder.add_kind(Kind::kArray);
    builder.add_array({.shape = shape,
                       .strides = steps,
                       .ndim = 1,
                       .order = steps == nullptr ? format::Order::kC : format::Order::kStrided,
                       .dtype = DType::kFloat32,
                       .external = range,
                       .external_offset = offset});
  };
  const std::uint32_t first = builder.add_external({.reference = 0, .offset = 0, .bytes = 256});
  const std::uint32_t overlaps = builder.add_external({.reference = 0, .offset = 128, .bytes = 256});
  const std::uint32_t last = builder.add_external({.reference = 1, .offset = 4032, .bytes = 64});
  array_in(first, 0, nullptr);
  array_in(first, 192, nullptr);
  array_in(first, 240, strides);
  array_in(overlaps, 60, nullptr);
  array_in(last, 0, nullptr);
}

// Adds masked arrays: with and without a mask, with each sort of fill value, and with a hard mask.
void add_masked_arrays(Builder& builder, const test::Sample& sample) {
  builder.begin_node(Kind::kList, 4);
  const std::int64_t five[] = {5};
  for (int i = 0; i < 4; ++i) {
    builder.add_kind(Kind::kMaskedArray);
    test::add_array_node(builder, {.data = sample.lonely, .shape = five, .ndim = 1, .dtype = DType::kFloat64});
    if (i % 2 == 0) {
      builder.add_bool_node(false);
    } else {
      test::add_array_node(builder, {.data = sample.pixels, .shape = five, .ndim = 1, .dtype = DType::kBool});
    }
    if (i == 0) {
      builder.add_none_node();
    } else if (i == 1) {
      test::add_array_node(builder, {.data = sample.lonely, .ndim = 0, .dtype = DType::kFloat64});
    } else {
      builder.add_kind(Kind::kNumpyScalar);
      builder.add_length(static_cast<std::uint64_t>(DType::kFloat64));
      builder.add_text("\0\0\0\0\0\0\xf0\x3f", 8);
    }
    builder.add_length(i == 3 ? 1 : 0);
  }
}

// A request and a reply, as python/shmtree/_ipc/service.py writes them: a header and a value.
void add_service_messages(Builder& builder, const test::Sample& sample) {
  builder.begin_node(Kind::kList, 3);
  for (int i = 0; i < 3; ++i) {
    add_tuple(builder, 2);
    add_registered(builder, "shmtree._service:Header");
    add_tuple(builder, i == 2 ? 2 : 3);
    if (i == 2) {
      builder.add_int_node(7);
      builder.add_bool_node(true);
    } else {
      builder.add_bytes_node(sample.pixels, 60);
      builder.add_int_node(1);
      if (i == 0) builder.add_none_node();
      if (i == 1) builder.add_float_node(1e9);
    }
    test::add_small_dict(builder);
  }
}

void write_frames(const std::filesystem::path& folder) {
  const test::Sample sample;
  const auto list_of = [](std::uint64_t items, const std::function<void(format::FrameBuilder&)>& add) {
    return frame_of([&](format::FrameBuilder& builder) {
      builder.add_kind(Kind::kList);
      builder.add_length(items);
      add(builder);
    });
  };
  write(folder / "nothing", frame_of([](auto& builder) { builder.add_none_node(); }));
  write(folder / "dict", frame_of([](auto& builder) { test::add_small_dict(builder); }));
  write(folder / "scalars", list_of(test::kScalarNodes, [](auto& builder) { test::add_scalars(builder); }));
  write(folder / "containers", list_of(test::kContainerNodes, [](auto& builder) { test::add_containers(builder); }));
  write(folder / "references", list_of(test::kReferenceNodes, [](auto& builder) { test::add_references(builder); }));
  write(folder / "arrays", list_of(test::kArrayNodes, [&](auto& builder) { test::add_arrays(builder, sample); }));
  write(folder / "devices", frame_of([&](auto& builder) { add_device_leaves(builder, sample); }));
  write(folder / "ranges", frame_of([](auto& builder) { add_ranges(builder); }));
  write(folder / "masked arrays", frame_of([&](auto& builder) { add_masked_arrays(builder, sample); }));
  write(folder / "service", frame_of([&](auto& builder) { add_service_messages(builder, sample); }));
  using namespace std::string_literals;
  write(folder / "flat", "\x00\x80"s + "bytes"s);
  write(folder / "flat, padded", "\x30\x80"s + std::string(48, '\0') + "bytes"s);
  write(folder / "everything", frame_of([&](auto& builder) { test::add_everything(builder, sample); }));
}

// Writes inputs for arena.cpp: the operations, then region, word and value.
void write_words(const std::filesystem::path& folder) {
  constexpr std::uint64_t kValues[] = {0, ~std::uint64_t{0}, 0x8000000000000001};
  constexpr int kRegions = 21, kTapTimes = 254, kTapNotes = 255;
  std::vector<int> regions{kTapTimes, kTapNotes};
  for (int region = 0; region < kRegions; ++region) regions.push_back(region);
  for (const int region : regions) {
    for (const std::uint64_t value : kValues) {
      std::string seed(2, '\0');
      for (std::uint16_t word = 0; word < 16; ++word) {
        seed += static_cast<char>(region);
        seed.append(reinterpret_cast<const char*>(&word), sizeof word);
        seed.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      write(folder / (std::to_string(region) + "-" + std::to_string(value >> 60)), seed);
    }
  }
}

// Writes inputs for recording.cpp: files without their magic.
void write_recordings(const std::filesystem::path& folder) {
  const auto whole_frame = [](const std::function<void(format::FrameBuilder&)>& add) {
    format::FrameBuilder builder;
    add(builder);
    const test::Bytes frame = sound_frame(builder);
    return std::string(reinterpret_cast<const char*>(frame.data()), frame.size());
  };
  const test::Sample sample;
  const std::string bytes =
      test::small_recording(whole_frame([](auto& builder) { builder.add_none_node(); }),
                            whole_frame([](auto& builder) { test::add_small_dict(builder); }),
                            whole_frame([&](auto& builder) { test::add_everything(builder, sample); }));
  write(folder / "whole", bytes.substr(test::kMagic.size()));
  const std::string sorts =
      test::small_recording(whole_frame([&](auto& builder) { add_device_leaves(builder, sample); }),
                            whole_frame([&](auto& builder) { add_masked_arrays(builder, sample); }),
                            whole_frame([&](auto& builder) { add_service_messages(builder, sample); }));
  write(folder / "sorts", sorts.substr(test::kMagic.size()));
  write(folder / "cut off", bytes.substr(test::kMagic.size(), bytes.size() / 2));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::filesystem::path folder = arguments[1];
  for (const char* name : {"frame", "arena", "recording"}) std::filesystem::create_directories(folder / name);
  write_frames(folder / "frame");
  write_words(folder / "arena");
  write_recordings(folder / "recording");
}
