// Objects that occur several times in a message: read as the object that they refer to, and forwarded as references.
#include <functional>

#include "shmtree/containers.h"
#include "support/catch2.h"
#include "support/frame_walk.h"
#include "support/frames.h"
#include "value/codec.h"

using namespace shmtree;
using format::FrameBuilder;

namespace {

using Add = std::function<void(FrameBuilder&)>;

test::Bytes frame_of(const Add& add) {
  FrameBuilder builder;
  add(builder);
  return test::bytes_of(builder);
}

Result<Item> decoded(const Add& add) {
  return value::decode(frame_of(add), nullptr);
}

Item with_references() {
  return decoded([](FrameBuilder& builder) {
           builder.begin_node(Kind::kList, test::kReferenceNodes);
           test::add_references(builder);
         })
      .value();
}

// Encodes `value` as a frame, and returns what is decoded.
Item sent_on(const Value& value) {
  FrameBuilder builder;
  value::encode(value, builder).value();
  const test::Bytes frame = test::bytes_of(builder);
  test::walk_frame(frame).value();
  return value::decode(frame, nullptr).value();
}

}  // namespace

// guarantee: shared-references
TEST_CASE("a reference reads as its target under its own key") {
  const Item item = decoded([](FrameBuilder& builder) {
                      builder.begin_node(Kind::kStrDict, 2);
                      builder.add_name("first");
                      const std::size_t at = builder.kinds();
                      builder.begin_node(Kind::kStrDict, 1);
                      builder.add_name("lr");
                      builder.add_float_node(0.5);
                      builder.add_name("again");
                      builder.add_reference(at);
                    }).value();
  CHECK(item["again"]["lr"].as<double>() == 0.5);
  CHECK(item["again"].kind() == Kind::kStrDict);
  CHECK(item["again"].key() == "again");
  CHECK(item["first"].key() == "first");
  CHECK(item["again"].size() == 1);
  const auto wrong = item["again"]["lr"].try_as<std::string>();
  CHECK(wrong.error().message == "[\"first\"][\"lr\"]: expected string, found float");
}

TEST_CASE("a reference to an array shares its memory") {
  const double numbers[] = {1, 2, 3};
  const std::int64_t shape[] = {3};
  const Item item =
      decoded([&](FrameBuilder& builder) {
        builder.begin_node(Kind::kTuple, 2);
        test::add_array_node(builder, {.data = numbers, .shape = shape, .ndim = 1, .dtype = DType::kFloat64});
        builder.add_reference(1);
      }).value();
  CHECK(item.at(0).view().data == item.at(1).view().data);
  CHECK(item.at(1).as<std::vector<double>>() == std::vector<double>{1, 2, 3});
}

TEST_CASE("a reference to its own container has no items") {
  const Item item = with_references();
  REQUIRE(item.at(2).size() == 2);
  CHECK(item.at(2).at(0).kind() == Kind::kReference);
  CHECK(item.at(2).at(0).size() == 0);
  CHECK(item.at(2).at(1).at(0).as<int>() == 7);
  CHECK(item.at(2).at(0).try_as<int>().error().message == "[2][0]: expected int, found reference");
}

// guarantee: bad-references
TEST_CASE("an invalid reference makes a frame corrupt") {
  const auto refer = [](std::uint64_t position) {
    return [position](FrameBuilder& builder) { builder.begin_node(Kind::kReference, position); };
  };
  const auto list_of = [](const Add& first, const Add& second) {
    return decoded([&](FrameBuilder& builder) {
      builder.begin_node(Kind::kList, 2);
      first(builder);
      second(builder);
    });
  };
  const auto marked = [](Kind kind, const Add& rest) {
    return [kind, rest](FrameBuilder& builder) {
      builder.add_kind(static_cast<Kind>(static_cast<std::uint8_t>(kind) | format::kMarked));
      rest(builder);
    };
  };
  const Add empty = [](FrameBuilder& builder) { builder.add_length(0); };
  const Add one_reference = [](FrameBuilder& builder) {
    builder.add_length(1);
    builder.begin_node(Kind::kReference, 1);
  };
  CHECK(list_of(marked(Kind::kList, empty), refer(1)).ok());
  CHECK(list_of(marked(Kind::kTuple, empty), refer(1)).ok());
  CHECK(list_of(marked(Kind::kList, one_reference), refer(1)).ok());
  CHECK(list_of(marked(Kind::kList, empty), marked(Kind::kList, empty)).ok());

  CHECK(decoded(refer(0)).error().code == Code::kCorrupt);
  for (const std::uint64_t position : {0ull, 2ull, 3ull, 254ull, 255ull, 1ull << 31, 1ull << 32, (1ull << 62) + 1}) {
    CHECK(list_of(marked(Kind::kList, empty), refer(position)).error().code == Code::kCorrupt);
  }
  CHECK(list_of([](FrameBuilder& builder) { builder.begin_node(Kind::kList, 0); }, refer(1)).error().code ==
        Code::kCorrupt);
  CHECK(list_of(refer(2), marked(Kind::kList, empty)).error().code == Code::kCorrupt);
  CHECK(list_of(marked(Kind::kTuple, one_reference), refer(1)).error().code == Code::kCorrupt);
  CHECK(list_of(marked(Kind::kFrozenSet, one_reference), refer(1)).error().code == Code::kCorrupt);
  CHECK(list_of(marked(Kind::kReference, empty), refer(1)).error().code == Code::kCorrupt);
  CHECK(list_of(marked(Kind::kNone, [](FrameBuilder&) {}), refer(1)).error().code == Code::kCorrupt);
  CHECK(list_of(marked(static_cast<Kind>(79), empty), refer(1)).error().code == Code::kCorrupt);
}

TEST_CASE("a message with references is forwarded with its references") {
  const Item again = sent_on(Value(with_references()));
  CHECK(again.at(0)["a"].at(0).as<int>() == 7);
  CHECK(again.at(1)["a"].at(0).as<int>() == 7);
  CHECK(again.at(2).at(0).kind() == Kind::kReference);
  CHECK(again.at(2).at(1).at(0).as<int>() == 7);

  FrameBuilder first, second;
  value::encode(Value(with_references()), first).value();
  value::encode(Value(again), second).value();
  CHECK(test::bytes_of(first) == test::bytes_of(second));
}

// guarantee: shared-references
TEST_CASE("a part is forwarded with all nodes to which it refers") {
  const Item item = with_references();
  const Item alone = sent_on(Value(item.at(1)));
  CHECK(alone["a"].at(0).as<int>() == 7);
  const Item loop = sent_on(Value(item.at(2)));
  CHECK(loop.at(0).kind() == Kind::kReference);
  CHECK(loop.at(1).at(0).as<int>() == 7);
  const Item in_itself = sent_on(Value(item.at(2).at(0)));
  CHECK(in_itself.kind() == Kind::kList);
  CHECK(in_itself.at(0).kind() == Kind::kReference);
  const Item beside = sent_on(Value(List{Value(item.at(1)), Value(item.at(2))}));
  CHECK(beside.at(0)["a"].at(0).as<int>() == 7);
  CHECK(beside.at(1).at(0).kind() == Kind::kReference);
}

TEST_CASE("forwarding a cyclic part includes its container") {
  const auto outer_of = [](Kind inner) {
    return decoded([inner](FrameBuilder& builder) {
             builder.begin_node(Kind::kList, 1);
             builder.begin_node(inner, 1);
             builder.add_reference(0);
           })
        .value();
  };
  const Item part = sent_on(Value(outer_of(Kind::kList).at(0)));
  REQUIRE(part.at(0).size() == 1);
  CHECK(part.at(0).at(0).kind() == Kind::kReference);
  FrameBuilder builder;
  const Status refused = value::encode(Value(outer_of(Kind::kTuple).at(0)), builder);
  CHECK(refused.error().code == Code::kInvalid);
}

// guarantee: bad-references
TEST_CASE("references that multiply are not expanded") {
  constexpr std::uint64_t kLevels = 900;
  const Item item = decoded([](FrameBuilder& builder) {
                      std::vector<std::size_t> open;
                      for (std::uint64_t level = 0; level < kLevels; ++level) {
                        open.push_back(builder.kinds());
                        builder.begin_node(Kind::kTuple, 2);
                      }
                      builder.add_none_node();
                      builder.add_none_node();
                      while (open.size() > 1) {
                        builder.add_reference(open.back());
                        open.pop_back();
                      }
                    }).value();
  FrameBuilder builder;
  value::encode(Value(item), builder).value();
  CHECK(builder.kinds() == 2 * kLevels + 1);
  Item deepest = item;
  while (deepest.size() == 2) deepest = deepest.at(1);
  CHECK(deepest.kind() == Kind::kNone);
}
