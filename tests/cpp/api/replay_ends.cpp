// Compares episodes that terminate or are cut off with lists of episodes: those of single environments, and of vector
// environments in both of Gymnasium's reset modes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

constexpr std::uint32_t kSteps = 3;
constexpr double kGamma = 0.5;

// An episode from its reset on. It has one observation more than rewards.
struct Episode {
  std::vector<float> obs, rewards;
  std::vector<std::int64_t> rows;
  bool terminated = false, truncated = false;

  bool is_over() const { return terminated || truncated; }
};

// Makes episodes of random lengths with random ends. Every observation is a new number.
class Environment {
 public:
  Environment(int number, unsigned seed)
      : random_(seed * 100 + static_cast<unsigned>(number)), next_(10'000 * number) {}

  float reset() {
    episodes_.emplace_back().obs.push_back(new_obs());
    return episodes_.back().obs[0];
  }
  Episode& step() {
    Episode& now = episodes_.back();
    now.rewards.push_back(static_cast<float>(random_() % 8));
    now.rows.push_back(++row_ + next_);
    now.obs.push_back(new_obs());
    if (random_() % 4 == 0) {
      const unsigned end = static_cast<unsigned>(random_() % 3);
      now.terminated = end != 0;
      now.truncated = end != 1;
    }
    return now;
  }
  const std::deque<Episode>& episodes() const { return episodes_; }

 private:
  float new_obs() { return static_cast<float>(++obs_ + next_); }

  std::minstd_rand random_;
  const int next_;
  int obs_ = 0, row_ = 0;
  std::deque<Episode> episodes_;
};

struct Drawn {
  float reward = 0, discount = 0, next = 0;
  bool operator==(const Drawn&) const = default;
};
using Rows = std::map<std::int64_t, Drawn>;

Rows expected(const std::vector<Environment>& environments) {
  Rows rows;
  for (const Environment& environment : environments) {
    for (const Episode& episode : environment.episodes()) {
      const std::size_t count = episode.rows.size(), waiting = episode.is_over() ? 0 : kSteps;
      for (std::size_t at = 0; at + waiting < count; ++at) {
        const std::size_t steps = std::min<std::size_t>(kSteps, count - at);
        Drawn drawn{.next = episode.obs[at + steps]};
        for (std::size_t i = 0; i < steps; ++i) {
          drawn.reward += static_cast<float>(std::pow(kGamma, i)) * episode.rewards[at + i];
        }
        const bool ends = episode.terminated && at + kSteps >= count;
        drawn.discount = ends ? 0 : static_cast<float>(std::pow(kGamma, steps));
        rows[episode.rows[at]] = drawn;
      }
    }
  }
  return rows;
}

Rows sampled_from(const ReplayBuffer& buffer) {
  const ReplayBatch batch = buffer.sample(buffer.size(), 0s, {.replace = false}).value();
  Rows rows;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    rows[batch.span<std::int64_t>("n")[i]] = {batch.span<float>("reward")[i], batch.discount()[i],
                                              batch.span<float>("next/obs")[i]};
  }
  return rows;
}

ReplayBuffer new_buffer(bool with_done = false) {
  ReplayOptions options{.capacity = 4096};
  options.columns = {{"obs", DType::kFloat32, {1}},
                     {"n"},
                     {"reward", DType::kFloat32},
                     {"terminated", DType::kBool},
                     {"truncated", DType::kBool}};
  if (with_done) options.columns.push_back({"done", DType::kBool});
  options.episodes.next = {"obs"};
  options.episodes.n_step = kSteps;
  options.episodes.gamma = kGamma;
  return make_replay(options);
}

// Rows of one step of all environments.
struct Step {
  explicit Step(std::size_t count)
      : obs(count), reward(count), n(count), terminated(new bool[count]{}), truncated(new bool[count]{}) {}
  Dict rows() const {
    const auto count = static_cast<std::int64_t>(n.size());
    return Dict{{"obs", array_ref(obs.data(), {count, 1})},
                {"n", n},
                {"reward", reward},
                {"terminated", array_ref(terminated.get(), {count})},
                {"truncated", array_ref(truncated.get(), {count})}};
  }
  std::vector<float> obs, reward;
  std::vector<std::int64_t> n;
  std::unique_ptr<bool[]> terminated, truncated;
};

// State of each environment before a step, as in Gymnasium's vectors, and whether the step resets it.
void add_vectors(const ReplayBuffer& buffer, std::vector<Environment>& environments, ReplayAutoreset mode, int steps) {
  const std::size_t count = environments.size();
  const ReplayVectorWriter writer = buffer.vector_writer(count, mode).value();
  std::vector<float> obs;
  for (Environment& each : environments) obs.push_back(each.reset());
  std::vector<char> ended(count, 0);
  for (int i = 0; i < steps; ++i) {
    Step step(count);
    std::vector<float> after(count), finals;
    std::vector<char> resets(count, 0);
    step.obs = obs;
    for (std::size_t k = 0; k < count; ++k) {
      resets[k] = mode == ReplayAutoreset::kNextStep && ended[k] != 0;
      if (resets[k] != 0) {
        after[k] = environments[k].reset();
        ended[k] = 0;
        continue;
      }
      const Episode& now = environments[k].step();
      step.reward[k] = now.rewards.back();
      step.n[k] = now.rows.back();
      step.terminated[k] = now.terminated;
      step.truncated[k] = now.truncated;
      after[k] = now.obs.back();
      ended[k] = now.is_over();
      if (!now.is_over()) continue;
      finals.push_back(after[k]);
      if (mode == ReplayAutoreset::kSameStep) after[k] = environments[k].reset();
    }
    ReplayMarks marks;
    const auto rows = static_cast<std::int64_t>(finals.size());
    if (!finals.empty()) marks.final = Dict{{"obs", array_ref(finals.data(), {rows, 1})}};
    const std::vector<std::int64_t> indices = writer.add(step.rows(), marks, 60s).value();
    for (std::size_t k = 0; k < count; ++k) REQUIRE((indices[k] == -1) == (resets[k] != 0));
    obs = after;
  }
  CHECK(sampled_from(buffer) == expected(environments));
}

Dict row_of(float obs, const Episode& now) {
  return Dict{{"obs", std::vector<float>{obs}},
              {"n", now.rows.back()},
              {"reward", now.rewards.back()},
              {"terminated", now.terminated},
              {"truncated", now.truncated}};
}

}  // namespace

// guarantee: replay-gymnasium
TEST_CASE("vector writers store the episodes in both reset modes") {
  for (const ReplayAutoreset mode : {ReplayAutoreset::kNextStep, ReplayAutoreset::kSameStep}) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
      INFO("seed " << seed << ", mode " << static_cast<int>(mode));
      std::vector<Environment> environments;
      for (int number = 1; number <= 3; ++number) environments.emplace_back(number, seed);
      add_vectors(new_buffer(), environments, mode, 100);
      CHECK(environments[0].episodes().size() > 10);
    }
  }
}

TEST_CASE("add and end both take the last observation") {
  for (const bool with_row : {true, false}) {
    const ReplayBuffer buffer = new_buffer();
    std::vector<Environment> environments{Environment(1, 9)};
    const ReplayWriter writer = buffer.writer().value();
    float obs = environments[0].reset();
    for (int i = 0; i < 200; ++i) {
      const Episode& now = environments[0].step();
      const Dict last{{"obs", std::vector<float>{now.obs.back()}}};
      writer.add(row_of(obs, now), 60s, {}, {}, with_row ? Value(last) : Value(nullptr)).value();
      if (!with_row && now.is_over()) writer.end(last, now.truncated).value();
      obs = now.is_over() ? environments[0].reset() : now.obs.back();
    }
    CHECK(sampled_from(buffer) == expected(environments));
  }
}

TEST_CASE("a truncated row without its final blocks the next row") {
  const ReplayBuffer buffer = new_buffer();
  const ReplayWriter writer = buffer.writer().value();
  Episode cut{.obs = {1, 2}, .rewards = {1}, .rows = {1}, .truncated = true};
  writer.add(row_of(1, cut)).value();
  const auto refused = writer.add(row_of(2, cut));
  REQUIRE(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.find("is truncated") != std::string::npos);
  CHECK(writer.end().code() == Code::kInvalid);
  CHECK(buffer.size() == 0);
  const Dict last{{"obs", std::vector<float>{5}}};
  CHECK(writer.end(last).ok());
  CHECK(writer.add(row_of(2, cut), 60s, {}, {}, last).ok());
  CHECK(sampled_from(buffer).at(1) == Drawn{1, 0.5, 5});
  const ReplayVectorWriter vector = buffer.vector_writer(2).value();
  Step step(2);
  step.truncated[1] = true;
  CHECK(vector.add(step.rows()).error().message.starts_with("row 1 is truncated"));
}

TEST_CASE("contradictory rows and rows without an end key are refused") {
  const ReplayBuffer buffer = new_buffer(true);
  Dict row = row_of(1, {.obs = {1}, .rewards = {1}, .rows = {1}, .terminated = true});
  row.set("done", false);
  const auto refused = buffer.add(row);
  REQUIRE(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.starts_with("the row has terminated = true, truncated = false, done = false"));

  ReplayOptions options{.capacity = 100};
  options.columns = {{"obs", DType::kFloat32, {1}}};
  const ReplayBuffer plain = make_replay(options);
  plain.add(Dict{{"obs", std::vector<float>{1}}}).value();
  CHECK(plain.sample_sequences(1, 2, 0s).code() == Code::kInvalid);
  options.episodes.next = {"obs"};
  CHECK_THROWS_AS(make_replay(options), BadResult);
  options.episodes.done.reset();
  CHECK_NOTHROW(make_replay(options));
  options.episodes.next.clear();
  const ReplayBuffer by_calls = make_replay(options);
  by_calls.add(Dict{{"obs", std::vector<float>{1}}}).value();
  CHECK(by_calls.sample_sequences(1, 2, 0s).ok());
  options.episodes.done = "done";
  options.columns.insert(options.columns.end(), {{"truncated/a", DType::kBool}, {"truncated/b", DType::kBool}});
  CHECK_THROWS_AS(make_replay(options), BadResult);
}
