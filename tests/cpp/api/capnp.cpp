// Messages of Cap'n Proto: sent from any builder, and read in place.
#include <messages.capnp.h>
#include <shmtree/capnp.h>
#include <shmtree/shmtree.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/catch2.h"

using namespace shmtree;
using namespace std::chrono_literals;

namespace {

void fill(Pose::Builder pose, std::size_t image_bytes = 0) {
  pose.setSeq(7);
  pose.setFrame("map");
  auto position = pose.initPosition(3);
  for (unsigned i = 0; i < 3; ++i) position.set(i, 0.5 * i);
  auto image = pose.initImage(static_cast<unsigned>(image_bytes));
  for (std::size_t i = 0; i < image_bytes; ++i) image[i] = static_cast<capnp::byte>(i);
}

void check(Pose::Reader pose, std::size_t image_bytes = 0) {
  CHECK(pose.getSeq() == 7);
  CHECK(std::string(pose.getFrame().cStr()) == "map");
  REQUIRE(pose.getPosition().size() == 3);
  CHECK(pose.getPosition()[2] == 1.0);
  const auto image = pose.getImage();  // each call counts towards the traversal limit
  REQUIRE(image.size() == image_bytes);
  for (std::size_t i = 0; i < image_bytes; ++i) {
    if (image[i] != static_cast<capnp::byte>(i)) FAIL("byte " << i << " differs");
  }
}
void check(const CapnpItem<Pose>& pose, std::size_t image_bytes) {
  check(*pose, image_bytes);
}

const void* image_of(const CapnpItem<Pose>& pose) {
  return pose->getImage().begin();
}

bool lies_in(const void* place, const CapnpRef& message) {
  const auto* byte = static_cast<const std::byte*>(place);
  for (const auto& segment : message.segments) {
    if (byte >= segment.data() && byte < segment.data() + segment.size()) return true;
  }
  return false;
}

// Packs a value and unpacks it: the frame is self-contained.
Item unpacked(const Value& value) {
  return unpack(pack(value).value()).value();
}

std::vector<std::byte> bytes_of(const Value& value) {
  const Frame frame = pack(value).value();
  return {frame.bytes().begin(), frame.bytes().end()};
}

}  // namespace

TEST_CASE("a Cap'n Proto message is the root of a message") {
  auto [sender, receiver] = make_pair();
  for (const std::size_t bytes : {0u, 300u, 100'000u}) {
    capnp::MallocMessageBuilder builder;
    fill(builder.initRoot<Pose>(), bytes);
    sender.put<Pose>(builder, 60s).value();
    builder.getRoot<Pose>().setSeq(8);  // the message is a copy
    const Item item = receiver.get(60s).value();
    CHECK(item.kind() == Kind::kCapnp);
    check(item.capnp<Pose>(), bytes);
    check(item.capnp<Pose>({.copy = true}), bytes);
  }
}

TEST_CASE("the segment count of a message is preserved") {
  auto [sender, receiver] = make_pair();
  capnp::MallocMessageBuilder builder(8, capnp::AllocationStrategy::FIXED_SIZE);
  fill(builder.initRoot<Pose>(), 50'000);
  const std::size_t segments = builder.getSegmentsForOutput().size();
  REQUIRE(segments > 2);
  sender.put(Dict{{"id", 1}, {"poses", List{capnp_ref<Pose>(builder), capnp_ref<Pose>(builder)}}}, 60s).value();
  const Item item = receiver.get(60s).value();
  for (const Item& pose : item["poses"]) {
    CHECK(pose.capnp_segments().value().segments.size() == segments);
    check(pose.capnp<Pose>(), 50'000);
  }
}

TEST_CASE("a capnp reader keeps its message alive") {
  auto [sender, receiver] = make_pair();
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100'000);
  sender.put<Pose>(builder, 60s).value();
  const CapnpItem<Pose> pose = receiver.get(60s).value().capnp<Pose>();
  for (int i = 0; i < 20; ++i) {
    sender.put(std::vector<std::byte>(100'000), 60s).value();
    receiver.get(60s).value();
  }
  check(*pose, 100'000);
  const CapnpItem<Pose> copy = pose;  // NOLINT(performance-unnecessary-copy-initialization): it keeps the message
  CHECK(copy->getSeq() == 7);
}

TEST_CASE("a capnp reader reads in place unless a copy is requested") {
  auto [sender, receiver] = make_pair();
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100'000);
  sender.put<Pose>(builder, 60s).value();
  const Item item = receiver.get(60s).value();
  const CapnpRef message = item.capnp_segments().value();
  CHECK(message.schema_id == capnp::typeId<Pose>());
  CHECK(lies_in(image_of(item.capnp<Pose>()), message));
  CHECK(!lies_in(image_of(item.capnp<Pose>({.copy = true})), message));
}

TEST_CASE("queues and broadcasts and Latest take capnp messages") {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100);
  const Queue queue = make_queue();
  queue.put<Pose>(builder, 60s).value();
  check(queue.get(60s).value().capnp<Pose>(), 100);
  const Broadcast broadcast = make_broadcast();
  const Subscriber subscriber = broadcast.subscribe().value();
  broadcast.put<Pose>(builder, 60s).value();
  check(subscriber.get(60s).value().capnp<Pose>(), 100);
  const Latest latest = make_latest();
  latest.publish<Pose>(builder, 60s).value();
  check(latest.get(0, 60s).value().value.capnp<Pose>(), 100);
}

TEST_CASE("a Cap'n Proto message is forwarded like any other item") {
  auto [sender, receiver] = make_pair();
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100'000);
  sender.put(Dict{{"pose", capnp_ref<Pose>(builder)}}, 60s).value();
  Item item = receiver.get(60s).value();
  sender.put(Dict{{"again", item["pose"]}}, 60s).value();
  check(receiver.get(60s).value()["again"].capnp<Pose>(), 100'000);
  const void* place = image_of(item["pose"].capnp<Pose>());
  sender.put(std::move(item), 60s).value();
  const Item last = receiver.get(60s).value();
  check(last["pose"].capnp<Pose>(), 100'000);
  CHECK(image_of(last["pose"].capnp<Pose>()) == place);
}

TEST_CASE("a packed capnp message that shares bytes stays aligned") {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 20'000);
  const CapnpRef message = capnp_ref<Pose>(builder);
  const std::span<const std::byte> bytes = message.segments[0];
  const Item item = unpacked(Dict{{"bytes", bytes.subspan(3)}, {"pose", message}, {"all", bytes.subspan(1, 100)}});
  check(item["pose"].capnp<Pose>(), 20'000);
  CHECK(std::ranges::equal(item["bytes"].span<const std::byte>(), bytes.subspan(3)));
  const Item again = unpacked(Dict{{"x", item["bytes"]}, {"all", item}});
  check(again["all"]["pose"].capnp<Pose>(), 20'000);
}

// guarantee: capnp-item
TEST_CASE("capnp<T> refuses an item of another kind or type") {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>());
  const Item item = unpacked(Dict{{"pose", capnp_ref<Pose>(builder)}, {"n", 1}});
  const auto other = item["pose"].try_capnp<Other>();
  REQUIRE(!other);
  CHECK(other.code() == Code::kInvalid);
  CHECK(other.error().message ==
        "[\"pose\"]: expected a Cap'n Proto message of type @0xd8a1b2c3d4e5f608, found type @0xd8a1b2c3d4e5f607");
  const auto number = item["n"].try_capnp<Pose>();
  REQUIRE(!number);
  CHECK(number.error().message == "[\"n\"]: expected Cap'n Proto message, found int");
  CHECK(item["pose"].mismatch("int").message == "[\"pose\"]: expected int, found Cap'n Proto message");
  CHECK_THROWS_AS(item["n"].capnp<Pose>(), BadResult);
}

TEST_CASE("put refuses a missing root and invalid segments") {
  auto [sender, receiver] = make_pair();
  capnp::MallocMessageBuilder builder;
  const auto refused = [&sender = sender](const Value& value) {
    return sender.put(value, 0s).code() == Code::kInvalid;
  };
  CHECK(refused(capnp_ref<Pose>(builder)));
  alignas(8) std::byte words[64] = {};
  const std::span<const std::byte> all(words);
  CHECK(refused(CapnpRef{.segments = {all.first(12)}}));
  CHECK(refused(CapnpRef{.segments = {all.subspan(4, 16)}}));
  CHECK(refused(CapnpRef{.segments = {all}, .lent_bytes = {64, 64}}));
  CHECK(refused(CapnpRef{.segments = std::vector<std::span<const std::byte>>(513, all)}));
  CHECK(receiver.empty());
}

TEST_CASE("invalid capnp words are reported when they are read") {
  alignas(8) std::byte words[64];
  std::memset(words, 0xff, sizeof(words));
  const Item item = unpacked(CapnpRef{.schema_id = capnp::typeId<Pose>(), .segments = {std::span(words)}});
  const auto refused = item.try_capnp<Pose>();
  REQUIRE(!refused);
  CHECK(refused.code() == Code::kCorrupt);
  // The root is valid, but not a pointer in it. Cap'n Proto reports the error when that pointer is followed.
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100);
  const auto segment = builder.getSegmentsForOutput()[0];
  std::vector<std::uint64_t> damaged(segment.size());
  std::memcpy(damaged.data(), segment.begin(), segment.size() * sizeof(std::uint64_t));
  damaged[2] = ~std::uint64_t{0};
  const auto bytes = std::as_bytes(std::span(damaged));
  const Item sent = unpacked(CapnpRef{.schema_id = capnp::typeId<Pose>(), .segments = {bytes}});
  const auto pose = sent.capnp<Pose>();
  CHECK(pose->getSeq() == 7);
  CHECK_THROWS_AS(pose->getFrame(), kj::Exception);
}

TEST_CASE("segments of a Cap'n Proto message that overlap are refused") {
  alignas(8) const std::byte words[64] = {};
  const std::span<const std::byte> all(words);
  const Item item = unpacked(CapnpRef{.schema_id = 1, .segments = {all, all.subspan(8, 8)}});
  const auto refused = item.capnp_segments();
  REQUIRE(!refused);
  CHECK(refused.code() == Code::kCorrupt);
}

TEST_CASE("an unaligned capnp message is readable only as a copy") {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100);
  const std::vector<std::byte> frame = bytes_of(capnp_ref<Pose>(builder));
  auto shifted = std::make_shared<std::vector<std::byte>>(frame.size() + 1);
  std::memcpy(shifted->data() + 1, frame.data(), frame.size());
  const Item item = unpack(std::span(*shifted).subspan(1), shifted).value();
  const auto refused = item.try_capnp<Pose>();
  REQUIRE(!refused);
  CHECK(refused.code() == Code::kInvalid);
  check(item.capnp<Pose>({.copy = true}), 100);
}

TEST_CASE("the traversal limit applies and can be set") {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Pose>(), 100'000);
  const Item item = unpacked(capnp_ref<Pose>(builder));
  const auto pose = item.capnp<Pose>({.traversal_words = 20'000});
  check(*pose, 100'000);
  CHECK_THROWS_AS(pose->getImage(), kj::Exception);
  check(item.capnp<Pose>(), 100'000);
}

TEST_CASE("put does not copy the message of an ArenaMessageBuilder") {
  const Arena arena = Arena::create().value();
  auto [sender, receiver] = make_pair({.arena = arena});
  for (const std::size_t first_words : {1u, 1024u}) {
    ArenaMessageBuilder builder(sender, 60s, first_words);
    fill(builder.initRoot<Pose>(), 200'000);
    const void* place = builder.getRoot<Pose>().getImage().begin();
    const std::size_t segments = builder.getSegmentsForOutput().size();
    CHECK(segments > 1);
    sender.put(Dict{{"pose", capnp_ref<Pose>(builder)}, {"n", 1}}, 60s).value();
    const Item item = receiver.get(60s).value();
    const auto pose = item["pose"].capnp<Pose>();
    check(*pose, 200'000);
    CHECK(pose->getImage().begin() == place);
    CHECK(item["pose"].capnp_segments().value().segments.size() == segments);
  }
}

TEST_CASE("only the used part of a segment is sent") {
  auto [sender, receiver] = make_pair();
  ArenaMessageBuilder builder(sender, 60s, 100'000);
  builder.initRoot<Pose>().setSeq(7);
  sender.put<Pose>(builder, 60s).value();
  const Item item = receiver.get(60s).value();
  const CapnpItem<Pose> read = item.capnp<Pose>();
  CHECK(read->getSeq() == 7);
  CHECK(item.capnp_segments().value().segments[0].size() == 48);
}

TEST_CASE("the second put of an ArenaMessageBuilder copies") {
  const Arena arena = Arena::create().value();
  auto [sender, receiver] = make_pair({.arena = arena});
  ArenaMessageBuilder builder(arena, 60s);
  fill(builder.initRoot<Pose>(), 100'000);
  const void* place = builder.getRoot<Pose>().getImage().begin();
  sender.put<Pose>(builder, 60s).value();
  sender.put<Pose>(builder, 60s).value();
  const Item first = receiver.get(60s).value(), second = receiver.get(60s).value();
  CHECK(image_of(first.capnp<Pose>()) == place);
  CHECK(image_of(second.capnp<Pose>()) != place);
  check(second.capnp<Pose>(), 100'000);
}

TEST_CASE("ArenaMessageBuilder survives a failed put") {
  auto [sender, receiver] = make_pair({.capacity = 1});
  sender.put(1).value();
  ArenaMessageBuilder builder(sender, 60s);
  fill(builder.initRoot<Pose>(), 100'000);
  const void* place = builder.getRoot<Pose>().getImage().begin();
  CHECK(sender.put<Pose>(builder, 0s).code() == Code::kFull);
  receiver.get(60s).value();
  sender.put<Pose>(builder, 60s).value();
  CHECK(image_of(receiver.get(60s).value().capnp<Pose>()) == place);
}

TEST_CASE("ArenaMessageBuilder memory is freed with its last user") {
  const Arena arena = Arena::create().value();
  auto [sender, receiver] = make_pair({.arena = arena});
  const std::uint64_t before = arena.usage().used_bytes;
  {
    ArenaMessageBuilder builder(arena, 60s);
    fill(builder.initRoot<Pose>(), 1'000'000);
    CHECK(arena.usage().used_bytes >= before + 1'000'000);
  }
  CHECK(arena.usage().used_bytes == before);
  {
    ArenaMessageBuilder builder(arena, 60s);
    fill(builder.initRoot<Pose>(), 1'000'000);
    sender.put<Pose>(builder, 60s).value();
  }
  {
    const auto pose = receiver.get(60s).value().capnp<Pose>();
    check(*pose, 1'000'000);
    CHECK(arena.usage().used_bytes >= before + 1'000'000);
  }
  CHECK(arena.usage().used_bytes == before);
}

TEST_CASE("other arenas and Broadcast and Latest take a capnp builder") {
  const Arena arena = Arena::create().value();
  auto [sender, receiver] = make_pair({.arena = Arena::create().value()});
  ArenaMessageBuilder elsewhere(arena, 60s);
  fill(elsewhere.initRoot<Pose>(), 100'000);
  sender.put<Pose>(elsewhere, 60s).value();
  check(receiver.get(60s).value().capnp<Pose>(), 100'000);

  const Broadcast broadcast = make_broadcast();
  const Subscriber subscriber = broadcast.subscribe().value();
  ArenaMessageBuilder shown(broadcast, 60s);
  fill(shown.initRoot<Pose>(), 100'000);
  broadcast.put<Pose>(shown, 60s).value();
  CHECK(image_of(subscriber.get(60s).value().capnp<Pose>()) == shown.getRoot<Pose>().getImage().begin());

  const Latest latest = make_latest();
  ArenaMessageBuilder newest(latest, 60s);
  fill(newest.initRoot<Pose>(), 100'000);
  latest.publish<Pose>(newest, 60s).value();
  check(latest.get(0, 60s).value().value.capnp<Pose>(), 100'000);
}

TEST_CASE("ArenaMessageBuilder throws only while the arena is full") {
  const Arena arena = Arena::create({.max_bytes = 1 << 20}).value();
  {
    std::vector<ArrayRef> arrays;
    for (std::int64_t bytes = 1 << 20; bytes >= 4096; bytes /= 2) {
      while (auto array = arena.new_array(DType::kUInt8, {bytes}, 0s)) arrays.push_back(std::move(*array));
    }
    CHECK_THROWS_AS(ArenaMessageBuilder(arena, 0s), BadResult);
  }
  ArenaMessageBuilder builder(arena, 60s);
  fill(builder.initRoot<Pose>(), 1'000);
  check(builder.getRoot<Pose>().asReader(), 1'000);
}

TEST_CASE("a growing ArenaMessageBuilder throws the arena error") {
  const Arena arena = Arena::create({.max_bytes = 4 << 20}).value();
  ArenaMessageBuilder builder(arena, 0s);
  auto pose = builder.initRoot<Pose>();
  try {
    pose.initImage(64 << 20);
    FAIL("there is no memory for it");
  } catch (const BadResult& refused) {
    CHECK((refused.error().code == Code::kMessageTooLarge || refused.error().code == Code::kOutOfSharedMemory ||
           refused.error().code == Code::kFull));
  }
  CHECK(pose.getSeq() == 0);
}
