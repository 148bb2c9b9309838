// Streams of a replay buffer in C++: those of threads, vectors of them, and last observations of many rows.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;

namespace {

ReplayOptions episodes() {
  ReplayOptions options{.capacity = 1000};
  options.columns = {{"obs", DType::kFloat32, {1}}, {"n"}, {"reward", DType::kFloat32}, {"done", DType::kBool}};
  options.episodes.next = {"obs"};
  options.episodes.gamma = 0.5;
  return options;
}
// Rows with the numbers from `first` on; their observations are the same numbers.
struct Columns {
  Columns(int first, std::size_t count) : obs(count), n(count), reward(count, 1) {
    for (std::size_t i = 0; i < count; ++i) n[i] = first + static_cast<int>(i);
    std::ranges::transform(n, obs.begin(), [](std::int64_t each) { return static_cast<float>(each); });
    std::ranges::fill(done, false);
  }
  Dict rows() const {
    const auto count = static_cast<std::int64_t>(n.size());
    return Dict{{"obs", array_ref(obs.data(), {count, 1})},
                {"n", n},
                {"reward", reward},
                {"done", array_ref(done.data(), {count})}};
  }
  std::vector<float> obs;
  std::vector<std::int64_t> n;
  std::vector<float> reward;
  std::array<bool, 64> done{};
};
// Returns for each row, by its number: the observation of its successor, and the discount.
std::map<std::int64_t, std::pair<float, float>> successors(const ReplayBuffer& buffer) {
  std::map<std::int64_t, std::pair<float, float>> found;
  const ReplayBatch batch = buffer.sample(2000, 60s).value();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    found[batch.span<std::int64_t>("n")[i]] = {batch.span<float>("next/obs")[i], batch.discount()[i]};
  }
  return found;
}

}  // namespace

TEST_CASE("each thread adds rows to its own stream") {
  const ReplayBuffer buffer = make_replay({.capacity = 10'000, .columns = {{"n"}}});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) buffer.add(Dict{{"n", 1000 * t + i}}).value();
      });
    }
  }
  CHECK(buffer.add(Dict{{"n", -1}}).ok());
  CHECK(buffer.extend(Dict{{"n", std::vector<std::int64_t>{-2, -3}}}).value().size() == 2);
  CHECK(buffer.end().ok());
  CHECK(buffer.size() == 803);
  const ReplayBatch batch = buffer.sample(803, 60s, {.replace = false}).value();
  std::map<std::int64_t, std::set<std::int64_t>> streams;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::int64_t n = batch.span<std::int64_t>("n")[i];
    streams[n < 0 ? -1 : n / 1000].insert(batch.writer()[i]);
    if (n >= 0) REQUIRE(batch.step()[i] == n % 1000);
  }
  CHECK(streams.size() == 5);
  std::set<std::int64_t> all;
  for (const auto& [thread, numbers] : streams) {
    CHECK(numbers.size() == 1);
    all.insert(numbers.begin(), numbers.end());
  }
  CHECK(all.size() == 5);
}

TEST_CASE("a forked child has its own stream and close stops adds") {
  ReplayBuffer buffer = make_replay({.capacity = 100, .columns = {{"n"}}});
  buffer.add(Dict{{"n", 1}}).value();
  Child child([&] { return buffer.add(Dict{{"n", 2}}).ok(); });
  REQUIRE(child.succeeded());
  buffer.add(Dict{{"n", 3}}).value();
  const ReplayBatch batch = buffer.sample(3, 60s, {.replace = false}).value();
  CHECK(std::set<std::int64_t>(batch.writer().begin(), batch.writer().end()).size() == 2);
  std::atomic<bool> has_added{false};
  std::atomic<Code> told{Code::kOs};
  std::jthread other([&] {
    buffer.add(Dict{{"n", 4}}).value();
    has_added = true;
    has_added.notify_all();
    while (!buffer.closed()) std::this_thread::yield();
    told = buffer.add(Dict{{"n", 5}}).code();
  });
  has_added.wait(false);
  buffer.close();
  other.join();
  CHECK((told == Code::kClosed && buffer.add(Dict{{"n", 6}}).code() == Code::kClosed));
  CHECK(buffer.end().code() == Code::kClosed);
}

TEST_CASE("a vector writer adds a row per stream and skips resets") {
  const ReplayBuffer buffer = make_replay(episodes());
  ReplayVectorWriter writers = buffer.vector_writer(3).value();
  writers.set_version(7);
  const std::array<bool, 3> none{}, second{false, true, false};
  const std::array<double, 3> priorities{1, 1, 1};
  for (int step = 0; step < 5; ++step) {
    const Columns columns(10 * step, 3);
    const std::vector<float> last{101, 102, 103};
    const Dict final{{"obs", array_ref(last.data(), {3, 1})}};
    const auto index = writers
                           .add(columns.rows(), {.ends = step == 2 ? second : none,
                                                 .priorities = priorities,
                                                 .final = step == 2 ? Value(final) : Value(),
                                                 .reset = step == 3 ? second : none})
                           .value();
    CHECK((index.size() == 3 && (index[1] == -1) == (step == 3)));
  }
  const auto found = successors(buffer);
  CHECK(found.size() == 11);  // of each stream all but the last one, which waits for its successor
  CHECK(found.at(0) == std::pair(10.0f, 0.5f));
  CHECK(found.at(30) == std::pair(40.0f, 0.5f));
  CHECK(found.at(21) == std::pair(102.0f, 0.5f));
  CHECK((!found.contains(31) && !found.contains(41)));
  const ReplayBatch batch = buffer.sample(100, 60s).value();
  CHECK(std::ranges::all_of(batch.version(), [](std::int64_t version) { return version == 7; }));
  writers.close();
  const Columns more(50, 3);
  CHECK((writers.closed() && writers.size() == 3 && writers.writers()[0].closed()));
  CHECK(writers.add(more.rows()).code() == Code::kClosed);
}

TEST_CASE("a vector add refuses invalid rows and reports how many fit") {
  const ReplayBuffer buffer = make_replay(episodes());
  const ReplayVectorWriter writers = buffer.vector_writer(3).value();
  const std::array<bool, 3> first{true, false, false};
  const Columns four(0, 4), three(0, 3);
  CHECK(writers.add(four.rows()).error().message == "rows has 4 rows; it must have 3, one for each stream");
  const ReplayVectorWriter skipping = buffer.vector_writer(3, ReplayAutoreset::kNextStep).value();
  CHECK(skipping.add(four.rows()).error().message == "rows has 4 rows; it must have 3, one for each stream");
  CHECK(writers.add(three.rows(), {.ends = first}).error().message.find("needs final") != std::string::npos);
  const std::vector<float> two{1, 2};
  const Dict final{{"obs", array_ref(two.data(), {2, 1})}};
  CHECK(writers.add(three.rows(), {.ends = first, .final = final}).error().message ==
        "final has 2 rows; it must have 3, one for each row, or 1, one for each row that ends an episode");
  CHECK(writers.add(three.rows(), {.reset = std::span(first).first(2)}).error().message ==
        "reset has 2 entries; it must have 3, one for each row");
  CHECK(buffer.writer().value().extend(three.rows(), {.reset = first}).code() == Code::kInvalid);
  CHECK((buffer.vector_writer(0).code() == Code::kInvalid && buffer.size() == 0));

  const ReplayBuffer limited =
      make_replay({.capacity = 100,
                   .columns = {{"n"}},
                   .limits = {.rate = ReplayRateLimit{.samples_per_insert = 1, .error_buffer = 2}}});
  const ReplayVectorWriter five = limited.vector_writer(5).value();
  const auto full = five.add(Dict{{"n", std::vector<std::int64_t>{0, 1, 2, 3, 4}}}, {}, 0s);
  CHECK((full.code() == Code::kFull && full.error().completed == 3 && limited.size() == 3));
}

TEST_CASE("a repeated add to a full vector skips the same rows") {
  const ReplayBuffer buffer =
      make_replay({.capacity = 100,
                   .columns = {{"n"}, {"done", DType::kBool}},
                   .limits = {.rate = ReplayRateLimit{.samples_per_insert = 1, .error_buffer = 2}}});
  const ReplayVectorWriter writers = buffer.vector_writer(3, ReplayAutoreset::kNextStep).value();
  std::array<bool, 3> done{true, false, false};
  const auto rows = [&done] {
    return Dict{{"n", std::vector<std::int64_t>{0, 1, 2}}, {"done", array_ref(done.data(), {3})}};
  };
  CHECK(writers.add(rows(), {}, 0s).ok());
  done[0] = false;
  for (int i = 0; i < 2; ++i) {
    const auto full = writers.add(rows(), {}, 0s);
    CHECK((full.code() == Code::kFull && full.error().completed == 0));
  }
  CHECK(buffer.sample(1, 60s).ok());
  const auto full = writers.add(rows(), {}, 0s);
  CHECK((full.code() == Code::kFull && full.error().completed == 2));  // the first skips its row, the second stored it
  CHECK(buffer.sample(1, 60s).ok());
  const std::array<bool, 3> others{false, true, true};
  const auto indices = writers.add(rows(), {.reset = others}, 60s).value();
  CHECK((indices[0] >= 0 && indices[1] == -1 && indices[2] == -1));
}

TEST_CASE("extend ends episodes with their last observations") {
  const ReplayBuffer buffer = make_replay(episodes());
  const ReplayWriter writer = buffer.writer().value();
  Columns columns(0, 10);
  columns.done[3] = true;
  std::array<bool, 10> ends{};
  ends[6] = ends[9] = true;
  const std::vector<float> last{103, 106, 109};
  const Dict final{{"obs", array_ref(last.data(), {3, 1})}};
  CHECK(writer.extend(columns.rows(), {.ends = ends, .final = final}).value().size() == 10);
  const auto found = successors(buffer);
  REQUIRE(found.size() == 10);
  CHECK(found.at(2) == std::pair(3.0f, 0.5f));
  CHECK(found.at(3) == std::pair(103.0f, 0.0f));
  CHECK(found.at(6) == std::pair(106.0f, 0.5f));
  CHECK(found.at(9) == std::pair(109.0f, 0.5f));
  const Dict other{{"reward", array_ref(last.data(), {3, 1})}};
  CHECK(writer.extend(columns.rows(), {.ends = ends, .final = other}).error().message == "final[\"obs\"] is missing");
}
