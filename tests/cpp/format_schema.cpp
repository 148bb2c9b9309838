// The metadata is a Cap'n Proto message like any other: its library and our reader agree about every one.
#include <capnp/message.h>
#include <capnp/serialize.h>

#include <random>

#include "format/schema_columns.h"
#include "format/segment.h"
#include "schema/shmtree.capnp.h"
#include "support/catch2.h"
#include "support/frame_walk.h"
#include "support/frames.h"

using namespace shmtree;
using format::FrameReader;
using format::Segment;
using test::Bytes;
namespace columns = format::schema;

namespace {

using Words = std::vector<std::uint64_t>;

Words metadata_of(const Bytes& frame) {
  std::uint32_t bytes;
  std::memcpy(&bytes, frame.data() + 4, 4);
  Words words(bytes / 8);
  std::memcpy(words.data(), frame.data() + 16, bytes);
  return words;
}

// A frame without buffers around some metadata.
Bytes frame_around(::kj::ArrayPtr<const ::capnp::word> metadata) {
  const std::size_t bytes = metadata.size() * 8;
  Bytes frame(16 + bytes);
  const format::FrameHeader header{.magic = format::kFrameMagic,
                                   .metadata_bytes = static_cast<std::uint32_t>(bytes),
                                   .size_version_flags = frame.size() | std::uint64_t{1} << 48};
  std::memcpy(frame.data(), &header, 16);
  std::memcpy(frame.data() + 16, metadata.begin(), bytes);
  return frame;
}

// Calls `use` with the message as Cap'n Proto's library sees it; false when it refuses it.
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

struct List {
  const void* begin = nullptr;
  std::size_t count = 0;
};

template <Segment::Column column, class T>
bool read_list(const Segment& segment, std::vector<List>& lists) {
  const T *begin = nullptr, *end = nullptr;
  if (!segment.read_list<column>(begin, end)) return false;
  lists.push_back({begin, static_cast<std::size_t>(end - begin)});
  return true;
}

// The columns as Segment sees them; empty when it refuses the message.
std::vector<List> with_segment(const Words& words) {
  Segment segment{std::span(words)};
  if (!segment.read_root()) return {};
  std::vector<List> lists;
  const bool fits =
      read_list<columns::kinds, char>(segment, lists) && read_list<columns::lengths, char>(segment, lists) &&
      read_list<columns::ints, std::int64_t>(segment, lists) && read_list<columns::floats, double>(segment, lists) &&
      read_list<columns::text, char>(segment, lists) && read_list<columns::arrays, std::uint64_t>(segment, lists) &&
      read_list<columns::buffers, std::uint64_t>(segment, lists) &&
      read_list<columns::views, std::int64_t>(segment, lists) &&
      read_list<columns::externals, format::External>(segment, lists);
  return fits ? lists : std::vector<List>();
}

bool same_bytes(const List& ours, ::capnp::Data::Reader theirs) {
  return ours.count == theirs.size() && (ours.count == 0 || ours.begin == theirs.begin());
}

template <class T, class Theirs>
bool same_values(const List& ours, Theirs theirs) {
  if (ours.count != theirs.size()) return false;
  for (unsigned i = 0; i < theirs.size(); ++i) {
    const T value = theirs[i];
    if (std::memcmp(static_cast<const std::byte*>(ours.begin) + i * sizeof(T), &value, sizeof(T)) != 0) return false;
  }
  return true;
}

bool agree(const std::vector<List>& ours, schema::Frame::Reader theirs) {
  bool same = same_bytes(ours[0], theirs.getKinds()) && same_bytes(ours[1], theirs.getLengths()) &&
              same_values<std::int64_t>(ours[2], theirs.getInts()) &&
              same_values<double>(ours[3], theirs.getFloats()) && same_bytes(ours[4], theirs.getText()) &&
              same_values<std::uint64_t>(ours[6], theirs.getBuffers()) &&
              same_values<std::int64_t>(ours[7], theirs.getViews()) && ours[5].count == theirs.getArrays().size() &&
              ours[8].count == theirs.getExternals().size();
  for (unsigned i = 0; same && i < ours[5].count; ++i) {
    const auto array = theirs.getArrays()[i];
    const std::uint64_t word = static_cast<const std::uint64_t*>(ours[5].begin)[i];
    same = word == (std::uint64_t{array.getDtype()} | std::uint64_t{array.getFlags()} << 8 |
                    std::uint64_t{array.getNdim()} << 16 | std::uint64_t{array.getSpare()} << 24 |
                    std::uint64_t{array.getBuffer()} << 32);
  }
  for (unsigned i = 0; same && i < ours[8].count; ++i) {
    const auto range = theirs.getExternals()[i];
    const auto& external = static_cast<const format::External*>(ours[8].begin)[i];
    same = external.reference == range.getReference() && external.offset == range.getOffset() &&
           external.bytes == range.getBytes();
  }
  return same;
}

Words everything() {
  const test::Sample sample;
  format::FrameBuilder builder;
  test::add_everything(builder, sample);
  return metadata_of(test::bytes_of(builder));
}

// The same columns as Cap'n Proto's own builder lays them out.
Words rebuilt(const Words& words) {
  ::capnp::MallocMessageBuilder message(static_cast<unsigned>(words.size()));
  const bool read = with_library(words, [&](schema::Frame::Reader from) {
    auto to = message.initRoot<schema::Frame>();
    if (from.hasKinds()) to.setKinds(from.getKinds());
    if (from.hasLengths()) to.setLengths(from.getLengths());
    if (from.hasInts()) to.setInts(from.getInts());
    if (from.hasFloats()) to.setFloats(from.getFloats());
    if (from.hasText()) to.setText(from.getText());
    if (from.hasArrays()) to.setArrays(from.getArrays());
    if (from.hasBuffers()) to.setBuffers(from.getBuffers());
    if (from.hasViews()) to.setViews(from.getViews());
    if (from.hasExternals()) to.setExternals(from.getExternals());
  });
  REQUIRE(read);
  const auto segments = message.getSegmentsForOutput();
  REQUIRE(segments.size() == 1);
  Words made(segments[0].size());
  std::memcpy(made.data(), segments[0].begin(), made.size() * 8);
  return made;
}

// So many values in some of the columns, and none in the others.
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

TEST_CASE("the metadata is byte for byte what Cap'n Proto's builder makes of the columns") {
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

TEST_CASE("Cap'n Proto's reader finds the same columns") {
  const Words words = everything();
  const std::vector<List> ours = with_segment(words);
  REQUIRE(ours.size() == 9);
  for (const List& list : ours) CHECK(list.count > 0);
  bool same = false;
  CHECK(with_library(words, [&](schema::Frame::Reader frame) { same = agree(ours, frame); }));
  CHECK(same);
}

TEST_CASE("columns may stand in any order, and unused words between them") {
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

TEST_CASE("what our reader accepts, Cap'n Proto's reads alike") {
  const Words whole = everything();
  std::mt19937_64 random(15);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  // The root pointer and the nine pointers to columns; the tags of struct lists are among the words behind.
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int round = 0; round < 80; ++round) {
      Words words = whole;
      words[at] = round < 64 ? words[at] ^ std::uint64_t{1} << round : random() >> random() % 64;
      const std::vector<List> ours = with_segment(words);
      if (ours.empty()) {
        ++refused;
        continue;
      }
      bool same = false;
      const bool read = with_library(words, [&](schema::Frame::Reader frame) { same = agree(ours, frame); });
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
  const Words whole = everything();
  const auto changed = [&whole](std::size_t field, std::uint64_t size) {
    Words words = whole;
    words[1 + field] = (words[1 + field] & ~(std::uint64_t{7} << 32)) | size << 32;
    return with_segment(words).empty();
  };
  CHECK_FALSE(changed(0, 2));
  CHECK(changed(0, 3));
  CHECK(changed(2, 2));
  CHECK(changed(2, 7));
  CHECK(changed(5, 5));
  Words far = whole;
  far[1] = 2;
  CHECK(with_segment(far).empty());
}
