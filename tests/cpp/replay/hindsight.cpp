// Hindsight: goals that rows of an episode achieved, also with corrupt words in shared memory.
#include "replay/buffer/hindsight.h"

#include <array>
#include <random>
#include <vector>

#include "support/catch2.h"
#include "support/replays.h"

using namespace shmtree;
using namespace shmtree::replay;
using shmtree::test::header_of;
using shmtree::test::new_arena;
using shmtree::test::patience;

namespace {

constexpr float kOwn = -1;

// Rows {"goal": float32, "wanted": float32, "reward": float32}.
Spec steps() {
  Spec spec;
  spec.row = {.form = SpecPart::Form::kDict,
              .keys = {{"goal"}, {"wanted"}, {"reward"}},
              .parts = {{.leaf = 0}, {.leaf = 1}, {.leaf = 2}}};
  spec.leaves = {{"<f4", 4, {}}, {"<f4", 4, {}}, {"<f4", 4, {}}};
  spec.samplers = {{"all", {}}};
  spec.next = {0};
  spec.reward = 2;
  return spec;
}

std::shared_ptr<Buffer> new_buffer() {
  return Buffer::create(new_arena(), steps(), {.capacity = 64, .chunk = 4}, patience()).value();
}

// Adds episodes of `length` rows. Row n achieves the goal n + 1. Returns the indices of the rows.
std::vector<std::uint64_t> fill(Buffer& buffer, int rows, int length) {
  Writer writer(buffer.store(), 1);
  std::vector<std::uint64_t> indices;
  for (int n = 0; n < rows; ++n) {
    const auto goal = static_cast<float>(n);
    const float after = goal + 1, own = kOwn, reward = 0;
    const std::int64_t version = 0;
    const std::array<replay::Column, 4> row{&goal, &own, &reward, &version}, final{&after, nullptr, nullptr, nullptr};
    indices.push_back(writer.add(row, {}, patience()).value());
    if (n % length == length - 1) writer.end(final, true, patience()).value();
  }
  return indices;
}

struct Relabelled {
  std::vector<float> goal, wanted, reward, next;
  std::vector<std::uint64_t> goals;

  Relabelled(Buffer& buffer, const std::vector<std::uint64_t>& indices, GoalStrategy strategy)
      : goal(indices.size()), wanted(indices.size(), kOwn), reward(goal), next(goal), goals(indices.size()) {
    const std::array<std::byte*, 4> out{
        reinterpret_cast<std::byte*>(goal.data()), reinterpret_cast<std::byte*>(wanted.data()),
        reinterpret_cast<std::byte*>(reward.data()), reinterpret_cast<std::byte*>(next.data())};
    const auto how = Hindsight::of(buffer.spec(), {strategy, 1e9, {"goal"}, {"wanted"}}).value();
    relabel(buffer, how, indices, out, goals).value();
  }
};

constexpr std::array kStrategies{GoalStrategy::kFuture, GoalStrategy::kFinal, GoalStrategy::kEpisode};

}  // namespace

TEST_CASE("a relabelled row has the goal that another row achieved") {
  const auto buffer = new_buffer();
  const std::vector<std::uint64_t> all = fill(*buffer, 50, 7);
  std::vector<std::uint64_t> rows(all.end() - 20, all.end());
  for (const GoalStrategy strategy : kStrategies) {
    const Relabelled found(*buffer, rows, strategy);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (found.goals[i] == kNoRow) {
        CHECK((i == rows.size() - 1 && found.wanted[i] == kOwn));  // the last row has no successor yet
        continue;
      }
      const auto achieved = static_cast<std::size_t>(found.wanted[i]) - 1, row = 30 + i;
      CHECK(all[achieved] == found.goals[i]);
      CHECK(achieved / 7 == row / 7);
      if (strategy != GoalStrategy::kEpisode) CHECK(achieved >= row);
      if (strategy == GoalStrategy::kFinal && row < 49) CHECK(achieved % 7 == 6);
    }
  }
}

TEST_CASE("hindsight stays in bounds with corrupt words") {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const auto buffer = new_buffer();
    std::vector<std::uint64_t> indices = fill(*buffer, 100, 9);
    Store& store = *buffer->store();
    const auto any = [&]() -> std::uint64_t {
      const std::uint64_t ticket = store.window().head + random() % 20;
      switch (random() % 4) {
        case 0: return random();
        case 1: return ticket;
        case 2: return replay::pack({.ticket = ticket, .rows = 127, .ready = 127});
        default: return random() % 3;
      }
    };
    auto* control = reinterpret_cast<std::byte*>(&header_of(store));
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(control);
    const std::size_t first = sizeof(ReplayHeader) / 8;  // the note and the state of chunks, behind the header
    const auto last = static_cast<std::size_t>(store.tables_area().data() - control) / 8;
    for (int i = 0; i < 60; ++i) words[first + random() % (last - first)] = any();
    for (int i = 0; i < 20; ++i) indices.push_back(random());
    for (const GoalStrategy strategy : kStrategies) {
      const Relabelled found(*buffer, indices, strategy);
      for (const std::uint64_t goal : found.goals)
        CHECK((goal == kNoRow || store.shape().ticket_of(goal) <= kMaxTicket));
    }
  }
}
