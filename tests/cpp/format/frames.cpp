// Frames that are not decoded: checked, and made standalone.
#include "support/frames.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <random>
#include <thread>

#include "format/checked_frame.h"
#include "format/metadata_writer.h"
#include "format/standalone.h"
#include "support/catch2.h"
#include "support/frame_walk.h"

using namespace shmtree;
using format::Blocks;
using format::CheckedFrame;
using format::FrameBuilder;
using format::FrameReader;
using test::Bytes;

namespace {

// Memory with the alignment of frames.
struct Aligned {
  explicit Aligned(std::size_t count) : memory(count + 64) {}
  std::byte* data() { return memory.data() + (64 - std::bit_cast<std::uintptr_t>(memory.data()) % 64) % 64; }
  Bytes memory;
};

// Blocks that the frame with nodes of every kind may refer to.
struct Blocks3 {
  Bytes memory = Bytes(8192, std::byte{7});
  std::span<const std::byte> all[3] = {memory, memory, memory};
};

Bytes alone(const Bytes& frame, Blocks blocks) {
  CheckedFrame checked;
  checked.load(frame, blocks).value();
  format::Standalone standalone(checked, blocks);
  standalone.finish().value();
  Bytes made(standalone.total_bytes(), std::byte{0xaa});
  standalone.write(made.data());
  return made;
}

void add_external_array(FrameBuilder& builder, const format::External& range, std::vector<std::int64_t> shape,
                        DType dtype, std::int64_t offset = 0, std::vector<std::int64_t> strides = {}) {
  format::ArraySource source{.shape = shape.data(),
                             .ndim = static_cast<std::uint8_t>(shape.size()),
                             .dtype = dtype,
                             .external = builder.add_external(range),
                             .external_offset = offset};
  if (!strides.empty()) {
    source.strides = strides.data();
    source.order = format::Order::kStrided;
  }
  test::add_array_node(builder, source);
}

// Returns the bytes of the elements of each array.
std::vector<Bytes> elements_of(const Bytes& frame, Blocks blocks) {
  FrameReader reader;
  reader.load(frame).value();
  std::vector<Bytes> all;
  while (!reader.left().kinds.is_over()) {
    if (reader.next_kind() != Kind::kArray) {
      reader.next_length();  // of the list that contains the arrays
      continue;
    }
    format::ArrayInfo info;
    REQUIRE(reader.next_array(info));
    const std::byte* data = info.data;
    if (info.external()) {
      const format::External range = reader.external(info.buffer);
      data = blocks[range.reference].data() + range.offset + info.offset;
    }
    Bytes elements;
    for (std::uint64_t i = 0; i < info.elements; ++i) {
      std::int64_t at = 0;
      std::uint64_t rest = i;
      for (std::size_t dim = info.ndim; dim-- > 0;) {
        at += static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(info.shape[dim])) * info.strides[dim];
        rest /= static_cast<std::uint64_t>(info.shape[dim]);
      }
      elements.insert(elements.end(), data + at, data + at + info.item_bytes);
    }
    all.push_back(std::move(elements));
  }
  return all;
}

}  // namespace

TEST_CASE("a frame of every kind loads and can be made standalone") {
  const Bytes frame = test::everything();
  const Blocks3 blocks;
  CheckedFrame checked;
  REQUIRE(checked.load(frame, blocks.all).ok());
  CHECK(checked.contents().bytes == frame.size());
  CHECK_FALSE(checked.contents().is_standalone);
  CHECK_FALSE(checked.contents().has_handle());
  CHECK(checked.handle_class().empty());
  const Bytes made = alone(frame, blocks.all);
  CHECK(test::walk_frame(made).value().nodes == test::walk_frame(frame).value().nodes);
  CHECK(alone(made, {}) == made);
}

TEST_CASE("a checked frame reports pickles and classes and handles") {
  FrameBuilder builder;
  SECTION("a pickle") {
    builder.add_kind(Kind::kPickle);
    builder.add_string("x");
    builder.add_length(0);
    CheckedFrame checked;
    const Bytes frame = test::bytes_of(builder);
    REQUIRE(checked.load(frame).ok());
    CHECK(checked.contents().has_pickle);
    CHECK(checked.contents().needs_pickle());
  }
  SECTION("a class as a value, and one that makes the values of a defaultdict") {
    builder.begin_node(Kind::kList, 2);
    builder.add_kind(Kind::kDefaultDict);
    builder.add_kind(Kind::kGlobal);
    builder.add_name("builtins:list");
    builder.add_length(0);
    const bool as_value = GENERATE(false, true);
    if (as_value) {
      builder.add_kind(Kind::kGlobal);
      builder.add_name("builtins:list");
    } else {
      builder.add_none_node();
    }
    CheckedFrame checked;
    const Bytes frame = test::bytes_of(builder);
    REQUIRE(checked.load(frame).ok());
    CHECK(checked.contents().needs_pickle() == as_value);
    CHECK_FALSE(checked.contents().has_pickle);
  }
  SECTION("the first handle") {
    builder.begin_node(Kind::kList, 3);
    for (const char* name : {"demo:Sender", "shmtree:Sender", "shmtree._leaves:DeviceLeaf"}) {
      builder.add_kind(Kind::kRegistered);
      builder.add_name(name);
      builder.add_none_node();
    }
    CheckedFrame checked;
    const Bytes frame = test::bytes_of(builder);
    REQUIRE(checked.load(frame).ok());
    CHECK(checked.contents().handle == 3);
    CHECK(checked.handle_class() == "shmtree:Sender");
  }
}

TEST_CASE("CheckedFrame accepts only frames that a reader accepts") {
  const Bytes frame = test::everything();
  const Blocks3 blocks;
  CheckedFrame whole;
  whole.load(frame, blocks.all).value();
  const std::size_t described = 16 + whole.reader().metadata_bytes();
  std::size_t accepted = 0;
  for (std::size_t bit = 0; bit < described * 8; ++bit) {
    Bytes changed = frame;
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CheckedFrame checked;
    const bool sound = checked.load(changed, blocks.all).ok();
    // It also refuses text that is no plain byte range, and arrays in missing blocks.
    if (sound) CHECK(test::walk_frame(changed).ok());
    accepted += sound;
  }
  CHECK(accepted > 0);
  for (std::size_t bytes = 0; bytes < frame.size(); bytes += 7) {
    CheckedFrame cut;
    CHECK(cut.load(std::span(frame).first(bytes)).code() == Code::kCorrupt);
  }
}

TEST_CASE("a standalone frame contains its external arrays") {
  Aligned memory(4096);
  for (std::size_t i = 0; i < 4096; ++i) memory.data()[i] = static_cast<std::byte>(i * 7);
  const std::span<const std::byte> blocks[] = {{memory.data(), 1024}, {memory.data() + 1024, 3072}};
  const double own[3] = {1, 2, 3};
  const std::int64_t three[] = {3};
  FrameBuilder builder;
  builder.begin_node(Kind::kList, 5);
  add_external_array(builder, {.reference = 1, .offset = 64, .bytes = 800}, {100}, DType::kInt64);
  test::add_array_node(builder, {.data = own, .shape = three, .ndim = 1, .dtype = DType::kFloat64});
  add_external_array(builder, {.reference = 0, .offset = 3, .bytes = 5}, {5}, DType::kUInt8);
  add_external_array(builder, {.reference = 1, .offset = 64, .bytes = 800}, {10, 5}, DType::kInt32, 400, {-40, 8});
  add_external_array(builder, {.reference = 0, .offset = 0, .bytes = 1024}, {0, 4}, DType::kInt32);
  const Bytes frame = test::bytes_of(builder);
  CheckedFrame checked;
  REQUIRE(checked.load(frame, blocks).ok());
  CHECK_FALSE(checked.contents().is_standalone);

  const Bytes made = alone(frame, blocks);
  CheckedFrame again;
  REQUIRE(again.load(made).ok());
  CHECK(again.contents().is_standalone);
  CHECK(again.reader().buffer_sizes().size() == 3);
  CHECK(elements_of(made, {}) == elements_of(frame, blocks));
}

TEST_CASE("overlapping ranges share one aligned buffer") {
  Aligned memory(1024);
  const std::span<const std::byte> blocks[] = {{memory.data(), 1024}};
  FrameBuilder builder;
  builder.begin_node(Kind::kList, 3);
  add_external_array(builder, {.reference = 0, .offset = 67, .bytes = 100}, {100}, DType::kUInt8);
  add_external_array(builder, {.reference = 0, .offset = 160, .bytes = 80}, {10}, DType::kFloat64);
  add_external_array(builder, {.reference = 0, .offset = 512, .bytes = 8}, {1}, DType::kFloat64);
  const Bytes made = alone(test::bytes_of(builder), blocks);
  FrameReader reader;
  reader.load(made).value();
  REQUIRE(reader.buffer_sizes().size() == 2);
  CHECK(reader.buffer_sizes()[0] == 3 + 240 - 67);
  CHECK(reader.buffer_sizes()[1] == 8);
  reader.next_kind();
  reader.next_length();
  format::ArrayInfo bytes, doubles;
  reader.next_kind();
  REQUIRE(reader.next_array(bytes));
  reader.next_kind();
  REQUIRE(reader.next_array(doubles));
  CHECK(bytes.buffer == doubles.buffer);
  CHECK(bytes.offset == 3);
  CHECK(doubles.offset == 96);
}

TEST_CASE("a missing or short block is refused") {
  Aligned memory(1024);
  FrameBuilder builder;
  add_external_array(builder, {.reference = 1, .offset = 100, .bytes = 100}, {100}, DType::kUInt8);
  const Bytes frame = test::bytes_of(builder);
  for (const std::size_t bytes : {0u, 99u, 199u}) {
    const std::span<const std::byte> blocks[] = {{memory.data(), 1024}, {memory.data(), bytes}};
    CheckedFrame checked;
    CHECK(checked.load(frame, blocks).code() == Code::kCorrupt);
  }
  CheckedFrame checked;
  CHECK(checked.load(frame).code() == Code::kCorrupt);
}

TEST_CASE("a standalone frame has the same elements for any ranges") {
  std::mt19937 random(20260730);
  const auto up_to = [&](std::size_t most) { return static_cast<std::int64_t>(random() % (most + 1)); };
  Aligned memory(2048);
  for (std::size_t i = 0; i < 2048; ++i) memory.data()[i] = static_cast<std::byte>(random());
  const std::span<const std::byte> blocks[] = {{memory.data(), 2048}, {memory.data() + 64, 1500}, {}};
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    FrameBuilder builder;
    const auto count = 1 + up_to(8);
    builder.begin_node(Kind::kList, count);
    std::vector<Bytes> own;
    own.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t rows = up_to(6), columns = up_to(9), gap = up_to(3), offset = up_to(9);
      if (random() % 4 == 0) {
        own.emplace_back(static_cast<std::size_t>(rows + 1), static_cast<std::byte>(i));
        const std::int64_t shape[] = {rows + 1};
        test::add_array_node(builder, {.data = own.back().data(), .shape = shape, .ndim = 1, .dtype = DType::kUInt8});
        continue;
      }
      const std::uint64_t bytes = static_cast<std::uint64_t>(offset + rows * (2 * columns + gap) + 2);
      const std::uint64_t place = static_cast<std::uint64_t>(up_to(1400 - bytes));
      add_external_array(builder,
                         {.reference = static_cast<std::uint32_t>(random() % 2), .offset = place, .bytes = bytes},
                         {rows, columns}, DType::kInt16, offset, {2 * columns + gap, 2});
    }
    const Bytes frame = test::bytes_of(builder);
    const Bytes made = alone(frame, blocks);
    REQUIRE(test::walk_frame(made).ok());
    REQUIRE(elements_of(made, {}) == elements_of(frame, blocks));
  }
}

TEST_CASE("a frame with unused buffers and ranges can be standalone") {
  const std::uint8_t kinds[] = {static_cast<std::uint8_t>(Kind::kNone)};
  const std::uint64_t buffers[] = {5};
  const format::External ranges[] = {{.reference = 0, .offset = 0, .bytes = 8}};
  format::FrameColumns columns;
  columns.kinds = kinds;
  columns.buffers = buffers;
  columns.externals = ranges;
  std::vector<std::uint64_t> metadata(format::measure_metadata(columns).words);
  format::write_metadata(metadata, columns);
  const std::size_t bytes = metadata.size() * 8, buffer = format::align_buffer(16 + bytes);
  Bytes frame(buffer + 5);
  format::write_header(frame.data(), bytes, frame.size());
  std::memcpy(frame.data() + 16, metadata.data(), bytes);
  const Bytes block(64);
  const std::span<const std::byte> blocks[] = {block};
  const Bytes made = alone(frame, blocks);
  CheckedFrame again;
  REQUIRE(again.load(made).ok());
  CHECK(again.contents().is_standalone);
}

TEST_CASE("writing a frame survives concurrent overwrites") {
  // Includes words that lead a builder astray: pointers to other segments, and far outside.
  constexpr std::uint64_t kWords[] = {0x0000000100000002, 0x0000ffff7ffffffc, 0x0000ffff0007a400};
  FrameBuilder builder;
  test::add_everything(builder, test::Sample());
  Bytes out(builder.finish().ok() ? builder.total_bytes() : 0);
  REQUIRE(!out.empty());
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    for (std::size_t i = 0; !is_done; ++i) {
      for (std::size_t at = 16; at + 8 <= 16 + builder.metadata_bytes(); at += 8) {
        std::atomic_ref(reinterpret_cast<std::uint64_t&>(out[at])).store(kWords[i % 3], std::memory_order_relaxed);
      }
    }
  });
  for (int i = 0; i < 20'000; ++i) builder.write_metadata(out.data());
  is_done = true;
  other.join();
  CHECK(format::read_header(out.data()).magic == format::kFrameMagic);
}
