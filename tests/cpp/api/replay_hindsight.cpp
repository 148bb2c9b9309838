// C++ replay buffers: hindsight.
#include <cstring>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

constexpr float kOwn = -1000;

// Row n of an episode achieves the goal n + 1.
ReplayOptions steps() {
  ReplayOptions options;
  options.capacity = 256;
  options.columns = {{"obs/achieved_goal", DType::kFloat32, {2}},
                     {"obs/desired_goal", DType::kFloat32, {2}},
                     {"n"},
                     {"reward", DType::kFloat64},
                     {"terminated", DType::kFloat32},
                     {"truncated", DType::kBool}};
  options.episodes = {.next = {"obs"}, .gamma = 0.5};
  options.sampling.seed = 3;
  return options;
}
Dict observation(float achieved) {
  return Dict{{"achieved_goal", std::vector<float>{achieved, -achieved}},
              {"desired_goal", std::vector<float>{kOwn, kOwn}}};
}
void add_episode(const ReplayWriter& writer, int first, int rows) {
  for (int n = first; n < first + rows; ++n) {
    const Dict row{{"obs", observation(static_cast<float>(n))},
                   {"n", n},
                   {"reward", 7.0},
                   {"terminated", 0.0},
                   {"truncated", n == first + rows - 1}};
    writer.add(row, 60s, std::nullopt, {}, Dict{{"obs", observation(static_cast<float>(n + 1))}}).value();
  }
}
std::string refusal(const ReplayBuffer& buffer, const ReplayHindsight& how) {
  return buffer.sample(1, 0s, {.hindsight = how}).error().message;
}
void ignore(ReplayRelabelled&) {}

}  // namespace

TEST_CASE("hindsight replaces goals and rewards") {
  const ReplayBuffer buffer = make_replay(steps());
  const ReplayWriter writer = buffer.writer().value();
  for (int episode = 0; episode < 3; ++episode) add_episode(writer, 100 * episode, 20);
  std::size_t relabelled = 0;
  const auto reward = [&](ReplayRelabelled& rows) {
    relabelled = rows.rows.size();
    REQUIRE((rows.achieved.shape[0] == static_cast<std::int64_t>(relabelled) && rows.achieved.shape[1] == 2));
    REQUIRE(rows.desired.elements == 2 * relabelled);
    rows.has_terminated = true;
    for (std::size_t i = 0; i < relabelled; ++i) {
      float achieved = 0, desired = 0;
      std::memcpy(&achieved, rows.achieved.data + 8 * i, sizeof achieved);
      std::memcpy(&desired, rows.desired.data + 8 * i, sizeof desired);
      rows.rewards[i] = achieved - desired;
      rows.terminated[i] = achieved == desired;
    }
  };
  for (const auto strategy : {ReplayGoals::kFuture, ReplayGoals::kFinal, ReplayGoals::kEpisode}) {
    const ReplayBatch batch = buffer.sample(500, 10s, {.hindsight = ReplayHindsight{reward, strategy}}).value();
    std::size_t found = 0, ended = 0;
    for (std::size_t i = 0; i < 500; ++i) {
      const auto n = batch.span<const std::int64_t>("n")[i];
      const float goal = batch.span<const float>("obs/desired_goal")[2 * i];
      CHECK(batch.span<const float>("next/obs/desired_goal")[2 * i] == goal);
      const bool is_new = batch.goal_index()[i] >= 0;
      found += is_new ? 1 : 0;
      if (!is_new) {
        CHECK((goal == kOwn && batch.span<const double>("reward")[i] == 7 && batch.discount()[i] == 0.5f));
        continue;
      }
      const auto of = static_cast<std::int64_t>(goal) - 1;
      CHECK(of / 100 == n / 100);
      if (strategy == ReplayGoals::kFuture) CHECK(of >= n);
      if (strategy == ReplayGoals::kFinal) CHECK(of % 100 == 19);
      CHECK(batch.span<const double>("reward")[i] == static_cast<double>(n - of));
      CHECK(batch.span<const float>("terminated")[i] == (n == of ? 1.0f : 0.0f));
      CHECK(batch.discount()[i] == (n == of ? 0.0f : 0.5f));
      ended += n == of ? 1 : 0;
    }
    CHECK((found == relabelled && found > 300 && ended > 0));
  }
  CHECK(buffer.sample(10, 10s).value().goal_index().empty());
}

TEST_CASE("hindsight refuses buffers without the required options") {
  const ReplayBuffer buffer = make_replay(steps());
  CHECK(refusal(buffer, {}).find("hindsight needs a reward function") != std::string::npos);
  CHECK(refusal(buffer, {.reward = ignore, .k = -1}).find("k is -1") != std::string::npos);
  CHECK(refusal(buffer, {.reward = ignore, .achieved = "goal"}).find("achieved of Hindsight has \"goal\"") !=
        std::string::npos);
  CHECK(refusal(buffer, {.reward = ignore, .strategy = ReplayGoals{3}}).find("strategy") != std::string::npos);
  ReplayOptions options = steps();
  options.episodes.n_step = 2;
  CHECK(refusal(make_replay(options), {.reward = ignore}).find("n_step=1") != std::string::npos);
}
