// Aggregates are sent as dicts of their members, and received as aggregates.
#include "shmtree/fields.h"

#include <xtensor/xtensor.hpp>

#include "shmtree/array.h"
#include "support/catch2.h"
#include "support/values.h"

namespace lab {

struct Sample {
  xt::xtensor<float, 2> obs;
  double reward = 0;
  std::string episode;
};
SHMTREE_FIELDS(Sample, obs, reward, episode)

struct Episode {
  std::vector<Sample> steps;
  std::optional<std::string> note;
  std::map<std::string, int> counts;
};
SHMTREE_FIELDS(Episode, steps, note, counts)

struct Empty {};
SHMTREE_FIELDS(Empty)

struct Raw {
  shmtree::Item first;
  std::string_view second;
};
SHMTREE_FIELDS(Raw, first, second)

struct Wide {
  int a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9;
};
SHMTREE_FIELDS(Wide, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9)

enum class Gear { kNeutral, kFirst };
struct Robot {
  Gear gear = Gear::kNeutral;
  double joints[2] = {};
  std::string names[2];
};
SHMTREE_FIELDS(Robot, gear, joints, names)

}  // namespace lab

struct InNoNamespace {
  int number = 0;
};
SHMTREE_FIELDS(InNoNamespace, number)

using namespace shmtree;
using test::refused;
using test::sent;

namespace {

lab::Sample some_sample() {
  return {.obs = xt::xtensor<float, 2>{{1, 2, 3}, {4, 5, 6}}, .reward = 1.5, .episode = "ep-12"};
}

}  // namespace

TEST_CASE("an aggregate is sent as a dict of its members in order") {
  const lab::Sample sample = some_sample();
  const Item item = sent(sample);
  CHECK(item.kind() == Kind::kStrDict);
  CHECK(item.keys() == std::vector<std::string_view>{"obs", "reward", "episode"});
  CHECK(item["obs"].view().shape.size() == 2);
  const auto back = item.as<lab::Sample>();
  CHECK((back.obs == sample.obs));
  CHECK(back.reward == 1.5);
  CHECK(back.episode == "ep-12");
}

TEST_CASE("aggregates can be nested in aggregates and containers") {
  lab::Episode episode{.steps = {some_sample(), some_sample()}, .note = "good", .counts = {{"falls", 2}}};
  episode.steps[1].reward = -1;
  const auto back = sent(episode).as<lab::Episode>();
  REQUIRE(back.steps.size() == 2);
  CHECK(back.steps[1].reward == -1);
  CHECK((back.steps[0].obs == episode.steps[0].obs));
  CHECK(back.note == "good");
  CHECK(back.counts == episode.counts);
  CHECK(sent(InNoNamespace{7}).as<InNoNamespace>().number == 7);
  CHECK(sent(lab::Empty{}).size() == 0);
  CHECK(sent(Dict{{"other", 1}}).try_as<lab::Empty>().ok());
}

TEST_CASE("optional members may be missing and extra keys are ignored") {
  const auto whole = Dict{{"steps", List{}}, {"note", nullptr}, {"counts", Dict{}}, {"extra", 1}};
  CHECK(sent(whole).as<lab::Episode>().note == std::nullopt);
  CHECK(sent(Dict{{"steps", List{}}, {"counts", Dict{}}}).as<lab::Episode>().note == std::nullopt);
  CHECK(sent(lab::Episode{})["note"].is_none());
}

// guarantee: cpp-conversions
TEST_CASE("a missing key is an error that names it and the aggregate") {
  const Error error = refused<lab::Sample>(sent(Dict{{"reward", 1.0}, {"episode", "x"}}));
  CHECK(error.code == Code::kNotFound);
  CHECK(error.message == "Sample needs the key \"obs\", which is not in a dict of 2");
}

// guarantee: cpp-conversions
TEST_CASE("a mismatched value is an error with its path") {
  Dict sample{{"obs", xt::xtensor<float, 2>(some_sample().obs)}, {"reward", "much"}, {"episode", "x"}};
  const Error error = refused<lab::Episode>(sent(Dict{{"steps", List{sample}}, {"counts", Dict{}}}));
  CHECK(error.code == Code::kInvalid);
  CHECK(error.message == "[\"steps\"][0][\"reward\"]: expected float, found string");
  CHECK(refused<lab::Sample>(sent(1)).message == "expected dict, found int");
}

TEST_CASE("reading an xtensor requires its rank and element type") {
  const std::vector<float> six(6);
  const std::vector<double> doubles(6);
  const Item line = sent(six), wide = sent(array_ref(doubles.data(), {2, 3}));
  CHECK(refused<xt::xtensor<float, 2>>(line).message == "expected an array of 2 dimensions, found one of 1");
  CHECK(refused<xt::xtensor<float, 2>>(wide).message == "expected an array of float32, found one of float64");
  CHECK(line.as<xt::xarray<float>>().size() == 6);
  CHECK((wide.as<xt::xtensor<double, 2, xt::layout_type::column_major>>().shape(1) == 3));
}

TEST_CASE("an xtensor of another order has the same elements") {
  xt::xtensor<std::int32_t, 2, xt::layout_type::column_major> columns{{1, 2, 3}, {4, 5, 6}};
  const Item item = sent(columns);
  CHECK((item.as<xt::xtensor<std::int32_t, 2>>() == columns));
  CHECK((item.as<xt::xtensor<std::int32_t, 2, xt::layout_type::column_major>>() == columns));
}

TEST_CASE("members that are Items and views refer to the message") {
  const Item item = sent(Dict{{"first", List{1, 2}}, {"second", "text"}});
  const auto raw = item.as<lab::Raw>();
  CHECK(raw.first[1].as<int>() == 2);
  CHECK(raw.second == "text");
}

TEST_CASE("an aggregate refers to its arrays unless it is temporary") {
  const lab::Sample sample = some_sample();
  const Value referring(sample), keeping(some_sample());
  const auto array_in = [](const Value& value) {
    return std::get<ArrayRef>(std::get<Dict>(value.variant()).entries()[0].value.variant());
  };
  CHECK(array_in(referring).data == sample.obs.data());
  CHECK(array_in(keeping).owner != nullptr);
}

TEST_CASE("an aggregate can have many members") {
  lab::Wide wide{};
  wide.b9 = 9;
  const Item item = sent(wide);
  CHECK(item.size() == 20);
  CHECK(item.as<lab::Wide>().b9 == 9);
}

TEST_CASE("members may be enums and arrays of C") {
  const Item item = sent(lab::Robot{.gear = lab::Gear::kFirst, .joints = {1.5, 2.5}, .names = {"left", "right"}});
  CHECK(item["joints"].kind() == Kind::kArray);
  const auto robot = item.as<lab::Robot>();
  CHECK(robot.gear == lab::Gear::kFirst);
  CHECK(robot.joints[1] == 2.5);
  CHECK(robot.names[1] == "right");
  CHECK(refused<lab::Robot>(sent(Dict{{"gear", 0}, {"joints", List{1.0}}, {"names", List{"a", "b"}}})).message ==
        "[\"joints\"]: expected 2 items, found a list of 1");
}
