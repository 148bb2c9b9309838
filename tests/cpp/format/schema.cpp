// The metadata is a plain Cap'n Proto message: Cap'n Proto's library and our reader agree about each message.
#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "format/frame_reader.h"
#include "format/metadata_reader.h"
#include "schema/shmtree.capnp.h"
#include "support/catch2.h"
#include "support/frame_walk.h"
#include "support/frames.h"

using namespace shmtree;
using format::FrameReader;
using test::Bytes;

namespace {

using Words = std::vector<std::uint64_t>;

Words metadata_of(const Bytes& frame) {
  std::uint32_t bytes;
  std::memcpy(&bytes, frame.data() + 4, 4);
  Words words(bytes / 8);
  std::memcpy(words.data(), frame.data() + 16, bytes);
  return words;
}

// Returns a frame with this metadata and without buffers.
Bytes frame_around(::kj::ArrayPtr<const ::capnp::word> metadata) {
  const std::size_t bytes = metadata.size() * 8;
  Bytes frame(16 + bytes);
  const format::FrameHeader header{.magic = format::kFrameMagic,
                                   .metadata_bytes = static_cast<std::uint32_t>(bytes),
                                   .size_version_flags = frame.size() | std::uint64_t{format::kFrameVersion} << 48};
  std::memcpy(frame.data(), &header, 16);
  std::memcpy(frame.data() + 16, metadata.begin(), bytes);
  return frame;
}

// Calls `use` with the message as Cap'n Proto's library reads it. Returns false if the library refuses it.
template <class Use>
bool with_library(const Words& words, Use use) {
  const ::kj::ArrayPtr<const ::capnp::word> segment(reinterpret_cast<const ::capnp::word*>(words.data()), words.size());
  const ::kj::ArrayPtr<const ::capnp::word> segments[] = {segment};
  try {
    ::capnp::SegmentArrayMessageReader message(::kj::arrayPtr(segments, 1));
    use(message.getRoot<schema::Frame>());
    return true;
  } catch (const ::kj::Exception&) {
    return false;
  }
}

// Compares bits, since there may be NaNs.
template <class T, class Theirs>
bool same_values(std::span<const T> ours, Theirs theirs) {
  if (ours.size() != theirs.size()) return false;
  for (unsigned i = 0; i < theirs.size(); ++i) {
    const T value = theirs[i];
    if constexpr (std::is_same_v<T, double>) {
      if (std::bit_cast<std::uint64_t>(ours[i]) != std::bit_cast<std::uint64_t>(value)) return false;
    } else if (ours[i] != value) {
      return false;
    }
  }
  return true;
}

bool agree(const format::FrameColumns& ours, schema::Frame::Reader theirs) {
  const schema::Arrays::Reader arrays = theirs.getArrays();
  bool same = same_values(ours.kinds, theirs.getKinds()) && same_values(ours.lengths, theirs.getLengths()) &&
              same_values(ours.text, theirs.getText()) && same_values(ours.ints, theirs.getInts()) &&
              same_values(ours.floats, theirs.getFloats()) && same_values(ours.buffers, arrays.getBuffers()) &&
              same_values(ours.views, arrays.getViews()) && ours.arrays.size() == arrays.getArrays().size() &&
              ours.externals.size() == arrays.getExternals().size();
  for (unsigned i = 0; same && i < ours.arrays.size(); ++i) {
    const auto array = arrays.getArrays()[i];
    same = ours.arrays[i].dtype == array.getDtype() && ours.arrays[i].flags == array.getFlags() &&
           ours.arrays[i].ndim == array.getNdim() && ours.arrays[i].buffer == array.getBuffer();
  }
  for (unsigned i = 0; same && i < ours.externals.size(); ++i) {
    const auto range = arrays.getExternals()[i];
    same = ours.externals[i].reference == range.getReference() && ours.externals[i].offset == range.getOffset() &&
           ours.externals[i].bytes == range.getBytes();
  }
  return same;
}

// Returns what read_metadata() finds in the message, or nothing if it refuses the message.
std::optional<format::FrameColumns> columns_of(const Words& words) {
  format::FrameColumns columns;
  if (!format::read_metadata(words, columns)) return std::nullopt;
  return columns;
}
bool is_refused(const Words& words) {
  return !columns_of(words);
}

Words everything() {
  const test::Sample sample;
  format::FrameBuilder builder;
  test::add_everything(builder, sample);
  return metadata_of(test::bytes_of(builder));
}

// Writes the same columns with Cap'n Proto's own builder.
Words rebuilt(const Words& words) {
  ::capnp::MallocMessageBuilder message(static_cast<unsigned>(words.size()));
  const bool read = with_library(words, [&](schema::Frame::Reader from) {
    auto to = message.initRoot<schema::Frame>();
    if (from.hasKinds()) to.setKinds(from.getKinds());
    if (from.hasLengths()) to.setLengths(from.getLengths());
    if (from.hasText()) to.setText(from.getText());
    if (from.hasInts()) to.setInts(from.getInts());
    if (from.hasFloats()) to.setFloats(from.getFloats());
    if (from.hasArrays()) to.setArrays(from.getArrays());
  });
  REQUIRE(read);
  const auto segments = message.getSegmentsForOutput();
  REQUIRE(segments.size() == 1);
  Words made(segments[0].size());
  std::memcpy(made.data(), segments[0].begin(), made.size() * 8);
  return made;
}

// Adds random numbers of values to some columns, and none to the others.
void add_some(format::FrameBuilder& builder, std::mt19937_64& random, const std::vector<float>& memory) {
  const auto some = [&random] { return random() % 3 == 0 ? 0 : random() % 20; };
  builder.add_none_node();
  for (std::uint64_t i = some(); i > 0; --i) builder.add_kind(Kind::kTrue);
  for (std::uint64_t i = some(); i > 0; --i) builder.add_length(random() % 255);
  for (std::uint64_t i = some(); i > 0; --i) builder.add_int(static_cast<std::int64_t>(random()));
  for (std::uint64_t i = some(); i > 0; --i) builder.add_float(static_cast<double>(random()));
  builder.add_text("abcdefghijklmnopqrstuvwxyz", some());
  for (std::uint64_t i = some(); i > 0; --i) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(random() % 4), 3};
    const std::int64_t strides[] = {24, 8};
    test::add_array_node(builder, {.data = memory.data() + random() % 10,
                                   .shape = shape,
                                   .strides = strides,
                                   .ndim = 2,
                                   .order = random() % 2 == 0 ? format::Order::kC : format::Order::kStrided,
                                   .dtype = DType::kFloat32,
                                   .read_only = random() % 2 == 0,
                                   .may_share = random() % 2 == 0});
  }
  for (std::uint64_t i = some(); i > 0; --i) {
    builder.add_external({.reference = static_cast<std::uint32_t>(random()), .offset = random() >> 1, .bytes = i});
  }
}

}  // namespace

TEST_CASE("metadata is byte-identical to that of the capnp builder") {
  CHECK(everything() == rebuilt(everything()));
  const std::vector<float> memory(100);
  for (unsigned seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    format::FrameBuilder builder;
    add_some(builder, random, memory);
    const Words words = metadata_of(test::bytes_of(builder));
    REQUIRE(words == rebuilt(words));
  }
}

// guarantee: capnp-tools
TEST_CASE("a plain reader of Cap'n Proto finds the same columns") {
  const Words words = everything();
  const format::FrameColumns ours = columns_of(words).value();
  CHECK(!ours.kinds.empty());
  CHECK(!ours.externals.empty());
  bool same = false;
  CHECK(with_library(words, [&](schema::Frame::Reader frame) { same = agree(ours, frame); }));
  CHECK(same);
}

TEST_CASE("columns may be in any order with unused words between") {
  ::capnp::MallocMessageBuilder message;
  auto frame = message.initRoot<schema::Frame>();
  frame.initInts(4);
  auto ints = frame.initInts(1);
  ints.set(0, -5);
  auto kinds = frame.initKinds(1);
  kinds[0] = static_cast<std::uint8_t>(Kind::kInt);
  const Bytes bytes = frame_around(message.getSegmentsForOutput()[0]);
  FrameReader reader = FrameReader::open(bytes).value();
  CHECK(reader.next_kind() == Kind::kInt);
  CHECK(reader.next_int() == -5);
  CHECK(reader.finish().ok());
}

TEST_CASE("an older writer with fewer columns is read") {
  // A root with a single pointer: kinds.
  const std::uint64_t words[] = {std::uint64_t{1} << 48, 1 | std::uint64_t{2} << 32 | std::uint64_t{1} << 35,
                                 static_cast<std::uint64_t>(Kind::kNone)};
  const Bytes bytes = frame_around({reinterpret_cast<const ::capnp::word*>(words), 3});
  CHECK(test::walk_frame(bytes).ok());
}

TEST_CASE("accepted metadata reads the same with the capnp library") {
  const Words whole = everything();
  std::mt19937_64 random(15);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int round = 0; round < 80; ++round) {
      Words words = whole;
      words[at] = round < 64 ? words[at] ^ std::uint64_t{1} << round : random() >> random() % 64;
      const auto ours = columns_of(words);
      if (!ours) {
        ++refused;
        continue;
      }
      bool same = false;
      const bool read = with_library(words, [&](schema::Frame::Reader frame) { same = agree(*ours, frame); });
      INFO("word " << at << " round " << round);
      REQUIRE(read);
      REQUIRE(same);
      ++accepted;
    }
  }
  CHECK(accepted > 1000);
  CHECK(refused > 200);
}

TEST_CASE("lists that Cap'n Proto would adapt are refused") {
  // The root's pointers follow the pointer to the root. Element sizes have the numbers of Cap'n Proto's encoding.
  const auto changed = [whole = everything()](std::size_t field, std::uint64_t size) {
    Words words = whole;
    words[1 + field] = (words[1 + field] & ~(std::uint64_t{7} << 32)) | size << 32;
    return is_refused(words);
  };
  constexpr std::uint64_t kOneByte = 2, kTwoBytes = 3, kEightBytes = 5, kStructs = 7;
  CHECK_FALSE(changed(0, kOneByte));
  CHECK(changed(0, kTwoBytes));
  CHECK_FALSE(changed(3, kEightBytes));
  CHECK(changed(3, kOneByte));
  CHECK(changed(3, kStructs));
}

TEST_CASE("a list of empty structs is refused") {
  ::capnp::MallocMessageBuilder message;
  auto frame = message.initRoot<schema::Frame>();
  frame.initKinds(1);
  frame.initArrays().initArrays(1);
  const auto segment = message.getSegmentsForOutput()[0];
  Words words(segment.size());
  std::memcpy(words.data(), segment.begin(), words.size() * 8);
  CHECK_FALSE(is_refused(words));
  const std::uint64_t tag = std::uint64_t{1} << 2 | std::uint64_t{1} << 32;  // one struct of one word
  const auto at = std::find(words.begin(), words.end(), tag);
  REQUIRE(at != words.end());
  *at = std::uint64_t{100'000'000} << 2;
  CHECK(is_refused(words));
}

TEST_CASE("metadata with far pointers or extra columns is refused") {
  Words words = everything();
  words[1] = 2 | std::uint64_t{1} << 32;  // a far pointer to segment 1
  CHECK(is_refused(words));
  Words wide(12, 0);
  wide[0] = std::uint64_t{7} << 48;  // a root with seven pointers
  CHECK(is_refused(wide));
}

TEST_CASE("a malformed message is refused during stack unwinding") {
  struct ReadsAtUnwinding {
    bool& refused;
    ~ReadsAtUnwinding() { refused = is_refused({std::uint64_t{9}}); }
  };
  bool refused = false;
  try {
    const ReadsAtUnwinding reads{refused};
    throw 1;
  } catch (int) {
  }
  CHECK(refused);
}
