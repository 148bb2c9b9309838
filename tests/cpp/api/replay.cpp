// Replay buffers, as users of C++ have them.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;

namespace {

struct Step {
  std::vector<float> obs{0, 0};
  int action = 0;
  float reward = 0;
  bool done = false;
};
SHMTREE_FIELDS(Step, obs, action, reward, done)

ReplayOptions steps() {
  ReplayOptions options{.capacity = 64};
  options.columns = {
      {"obs", DType::kFloat32, {2}}, {"action", DType::kInt16}, {"reward", DType::kFloat32}, {"done", DType::kBool}};
  options.limits.chunk = 1;
  options.sampling.seed = 7;
  return options;
}
Step step(int number, bool done = false) {
  const auto value = static_cast<float>(number);
  return {.obs = {value, -value}, .action = number, .reward = value, .done = done};
}
struct Folder {
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = (std::filesystem::temp_directory_path() / "shmtree-replay-XXXXXX").string();
};
std::string refusal(const ReplayOptions& options) {
  try {
    make_replay(options);
  } catch (const BadResult& refused) {
    CHECK(refused.error().code == Code::kInvalid);
    return refused.what();
  }
  return "";
}
bool has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return true;
}

}  // namespace

TEST_CASE("rows are added as structs or dicts and sampled with metadata") {
  const ReplayBuffer buffer = make_replay(steps());
  ReplayWriter writer = buffer.writer().value();
  CHECK(buffer.sample(1, 0s).code() == Code::kEmpty);
  writer.set_version(3);
  std::set<std::int64_t> indices;
  for (int i = 0; i < 10; ++i) indices.insert(writer.add(step(i)).value());
  const std::vector<float> obs{10, -10};
  indices.insert(writer.add(Dict{{"action", 10}, {"obs", obs}, {"reward", 10}, {"done", false}}).value());
  CHECK((indices.size() == 11 && buffer.size() == 11));

  const ReplayBatch batch = buffer.sample(200, 10s).value();
  CHECK((batch.size() == 200 && batch.length() == 0 && batch.mask().empty() && batch.discount().empty()));
  CHECK(batch.paths() == std::vector<std::string>{"obs", "action", "reward", "done"});
  const auto drawn = batch.span<float>("obs");
  const auto actions = batch.span<std::int16_t>("action");
  REQUIRE((drawn.size() == 400 && actions.size() == 200));
  for (std::size_t i = 0; i < 200; ++i) {
    REQUIRE((drawn[2 * i] == actions[i] && drawn[2 * i + 1] == -actions[i]));
    REQUIRE((indices.count(batch.index()[i]) == 1 && batch.version()[i] == 3 && batch.step()[i] == actions[i]));
    REQUIRE((batch.weight()[i] == 1 && batch.priority()[i] == 1 && batch.age()[i] == 10 - actions[i]));
    REQUIRE(std::abs(batch.probability()[i] - 1.0 / 11) < 1e-12);
    REQUIRE(batch.writer()[i] == writer.stream().value());
  }
  const ArrayView view = batch.view("obs");
  CHECK((view.shape.size() == 2 && view.shape[0] == 200 && view.strides[0] == 8 && view.c_order));
}

TEST_CASE("a wrong column is named in the error and nothing is added") {
  const ReplayBuffer buffer = make_replay(steps());
  const ReplayWriter writer = buffer.writer().value();
  const std::vector<float> obs{1, 2}, three{1, 2, 3};
  const std::vector<double> doubles{1, 2};
  const auto text = [&](const Value& row) {
    const auto added = writer.add(row);
    CHECK(added.code() == Code::kInvalid);
    return added.error().message;
  };
  has(text(Dict{{"obs", obs}, {"action", 1}, {"reward", 1.0}}), "row[\"done\"] is missing");
  has(text(Dict{{"obs", obs}, {"action", 1}, {"reward", 1.0}, {"done", false}, {"more", 1}}), "row[\"more\"]");
  has(text(Dict{{"obs", three}, {"action", 1}, {"reward", 1.0}, {"done", false}}),
      "row[\"obs\"] is float32, shape (3,); the rows of the buffer have float32, shape (2,)");
  has(text(Dict{{"obs", doubles}, {"action", 1}, {"reward", 1.0}, {"done", false}}), "row[\"obs\"] is float64");
  has(text(Dict{{"obs", obs}, {"action", 40'000}, {"reward", 1.0}, {"done", false}}), "row[\"action\"] is an int");
  has(text(Dict{{"obs", obs}, {"action", 1.5}, {"reward", 1.0}, {"done", false}}), "row[\"action\"] is a float");
  has(text(Dict{{"obs", "no"}, {"action", 1}, {"reward", 1.0}, {"done", false}}), "row[\"obs\"] is a string");
  has(text(7), "row is an int");
  CHECK(buffer.size() == 0);
  CHECK(writer.add(step(1), 0s, -1.0).code() == Code::kInvalid);
  CHECK(writer.add(step(1), 0s, 0.5).ok());
}

TEST_CASE("make_replay refuses invalid options") {
  const auto changed = [](auto change) {
    ReplayOptions options = steps();
    change(options);
    return refusal(options);
  };
  has(changed([](ReplayOptions& options) { options.capacity = 0; }), "capacity is 0 rows");
  has(changed([](ReplayOptions& options) { options.columns.clear(); }), "at least one leaf");
  has(changed([](ReplayOptions& options) { options.columns.push_back({"obs"}); }),
      "\"obs\" has the path of another column");
  has(changed([](ReplayOptions& options) { options.columns.push_back({"obs/x"}); }), "\"obs/x\"");
  has(changed([](ReplayOptions& options) { options.columns.push_back({"a//x"}); }), "\"a//x\" has an empty name");
  has(changed([](ReplayOptions& options) { options.columns[0].shape = {0}; }), "\"obs\" has a dimension");
  has(changed([](ReplayOptions& options) { options.columns[0].dtype = DType::kBFloat16; }), "bfloat16");
  has(changed([](ReplayOptions& options) { options.episodes.next = {"more"}; }), "next has \"more\"");
  has(changed([](ReplayOptions& options) { options.episodes.stack = {{"more", 4}}; }), "stack has \"more\"");
  has(changed([](ReplayOptions& options) { options.episodes.reward = "more"; }), "reward has \"more\"");
  has(changed([](ReplayOptions& options) { options.capacity = std::uint64_t{1} << 35; }),
      "bytes, but this machine has only ");
  has(changed([](ReplayOptions& options) {
        options.arena = Arena::create({.max_bytes = 1 << 20}).value();
        options.capacity = 1'000'000;
      }),
      " bytes: reduce the capacity, or set max_bytes");
}

TEST_CASE("max_bytes determines the capacity of a buffer") {
  ReplayOptions options = steps();
  options.capacity = options.limits.chunk = 0;
  options.max_bytes = 4'000'000;
  const ReplayBuffer buffer = make_replay(options);
  CHECK((buffer.capacity() > 50'000 && buffer.capacity() < 4'000'000 / 15));
  options.max_bytes *= 2;
  options.arena = Arena::create({.max_bytes = 6'000'000}).value();
  has(refusal(options), "max_bytes is 8000000, but the arena has only ");
  options.max_bytes /= 2;
  CHECK(make_replay(options).capacity() == buffer.capacity());
  options.capacity = 5;
  has(refusal(options), "both capacity (5 rows) and max_bytes (4000000) were passed; pass one of them");
  options = steps();
  options.capacity = 0;
  options.max_bytes = 10;
  has(refusal(options), "max_bytes is 10; the smallest buffer has one such row and takes ");
  options.episodes.next = {"obs"};
  options.limits.rate = ReplayRateLimit{.min_size = 5000};
  has(refusal(options), "max_bytes is 10; the smallest buffer has 5000 such rows and takes ");
  options.max_bytes = 4'000'000;
  CHECK(make_replay(options).capacity() > 40'000);
  options.max_bytes = std::uint64_t{1} << 62;
  has(refusal(options), "max_bytes is 4611686018427387904, but this machine has only ");
}

TEST_CASE("samples have successors and n-step rewards and stacks") {
  ReplayOptions options = steps();
  options.episodes.next = {"obs"};
  options.episodes.n_step = 2;
  options.episodes.gamma = 0.5;
  options.episodes.stack = {{"obs", 3}};
  const ReplayBuffer buffer = make_replay(options);
  const ReplayWriter writer = buffer.writer().value();
  for (int i = 0; i < 5; ++i) writer.add(step(i)).value();
  CHECK(writer.end(nullptr, true).code() == Code::kInvalid);
  CHECK(writer.end(Dict{{"reward", 1.0}}, true).error().message.find("final[\"obs\"] is missing") == 0);
  const std::vector<float> last{100, -100};
  CHECK(writer.end(Dict{{"obs", last}}, true).ok());
  CHECK(buffer.size() == 5);
  const ReplayBatch batch = buffer.sample(100, 10s).value();
  CHECK(batch.paths().back() == "next/obs");
  const auto next = batch.view("next/obs");
  CHECK((next.shape.size() == 3 && next.shape[1] == 3 && next.shape[2] == 2));
  for (std::size_t i = 0; i < 100; ++i) {
    const int number = batch.span<std::int16_t>("action")[i];
    const float reward = number == 4 ? 4.0f : static_cast<float>(number) + 0.5f * static_cast<float>(number + 1);
    REQUIRE(batch.span<float>("reward")[i] == reward);
    REQUIRE(batch.discount()[i] == (number == 4 ? 0.5f : 0.25f));
    REQUIRE(batch.span<float>("next/obs")[6 * i + 4] == (number >= 3 ? 100.0f : static_cast<float>(number + 2)));
    REQUIRE(batch.span<float>("obs")[6 * i] == (number < 2 ? 0.0f : static_cast<float>(number - 2)));
  }
}

TEST_CASE("extend adds many rows at once") {
  const ReplayBuffer buffer = make_replay(steps());
  const ReplayWriter writer = buffer.writer().value();
  std::vector<float> obs(20), reward(10);
  std::vector<std::int16_t> action(10);
  for (int i = 0; i < 10; ++i) {
    const auto at = static_cast<std::size_t>(i);
    action[at] = static_cast<std::int16_t>(i);
    obs[2 * at] = reward[at] = static_cast<float>(i);
  }
  const std::array<bool, 10> done{};
  const Dict rows{{"obs", array_ref(obs.data(), {10, 2})},
                  {"action", action},
                  {"reward", reward},
                  {"done", array_ref(done.data(), {10})}};
  CHECK(writer.extend(rows).value().size() == 10);
  CHECK(buffer.size() == 10);
  const ReplayBatch batch = buffer.sample(10, 10s, {.replace = false}).value();
  std::set<std::int16_t> seen;
  for (std::size_t i = 0; i < 10; ++i) {
    seen.insert(batch.span<std::int16_t>("action")[i]);
    REQUIRE(batch.span<float>("obs")[2 * i] == batch.span<std::int16_t>("action")[i]);
  }
  CHECK(seen.size() == 10);
  CHECK(buffer.sample(11, 0s, {.replace = false}).code() == Code::kInvalid);
  const Dict uneven{{"obs", array_ref(obs.data(), {9, 2})},
                    {"action", action},
                    {"reward", reward},
                    {"done", array_ref(done.data(), {10})}};
  has(writer.extend(uneven).error().message, "rows[\"action\"] has 10 rows");
  const std::array<double, 2> two{};
  CHECK(writer.extend(rows, {.priorities = two}).code() == Code::kInvalid);
  CHECK(buffer.size() == 10);
}

TEST_CASE("sample writes rows into memory of the caller") {
  const ReplayBuffer buffer = make_replay(steps());
  const ReplayWriter writer = buffer.writer().value();
  for (int i = 0; i < 10; ++i) writer.add(step(i)).value();
  std::array<float, 64> obs{}, reward{};
  std::array<std::int16_t, 32> action{};
  std::array<bool, 32> done{};
  const auto bytes = [](auto& array) { return std::as_writable_bytes(std::span(array)); };
  ReplayDraw how{.out = {{"obs", bytes(obs)}, {"action", bytes(action)}, {"done", bytes(done)}}};
  has(buffer.sample(32, 10s, how).error().message, "no memory for \"reward\"");
  how.out["reward"] = bytes(reward);
  has(buffer.sample(32, 10s, how).error().message, "\"reward\" has 256 bytes");
  how.out["reward"] = bytes(reward).subspan(128);
  const ReplayBatch batch = buffer.sample(32, 10s, how).value();
  for (std::size_t i = 0; i < 32; ++i) {
    REQUIRE((obs[2 * i] == action[i] && reward[32 + i] == action[i] && batch.step()[i] == action[i]));
  }
  CHECK(batch.try_view("obs").code() == Code::kInvalid);
  CHECK(batch.try_view("more").code() == Code::kNotFound);
}

TEST_CASE("priorities control sampling and skip overwritten rows") {
  ReplayOptions options = steps();
  options.capacity = 16;
  options.sampling.samplers = {{.name = "per", .kind = ReplayKind::kPrioritized, .alpha = 1, .eps = 0},
                               {.name = "all"}};
  const ReplayBuffer buffer = make_replay(options);
  const ReplayWriter writer = buffer.writer().value();
  std::vector<std::int64_t> index;
  for (int i = 0; i < 16; ++i) index.push_back(writer.add(step(i), 10s, 1.0).value());
  std::vector<float> priorities(16, 0.0f);
  priorities[5] = 3;
  priorities[6] = 1;
  CHECK(buffer.update_priorities(index, priorities).value() == std::vector<bool>(16, true));
  CHECK(buffer.max_priority() == 3);
  const ReplayBatch batch = buffer.sample(400, 10s, {.beta = 1.0}).value();
  std::size_t fives = 0;
  for (std::size_t i = 0; i < 400; ++i) {
    const int number = batch.span<std::int16_t>("action")[i];
    REQUIRE((number == 5 || number == 6));
    fives += number == 5 ? 1u : 0u;
    REQUIRE(batch.priority()[i] == (number == 5 ? 3.0f : 1.0f));
    REQUIRE(std::abs(batch.probability()[i] - (number == 5 ? 0.75 : 0.25)) < 1e-6);
  }
  CHECK((fives > 200 && fives < 380));
  CHECK(buffer.sample(5, 10s, {.sampler = "all"}).value().weight()[0] == 1);
  has(buffer.sample(5, 10s, {.sampler = "more"}).error().message, "\"per\", \"all\"");
  writer.add(step(16)).value();
  const std::vector<bool> applied = buffer.update_priorities(index, priorities, "per").value();
  CHECK((!applied[0] && applied[15]));
  CHECK(buffer.update_priorities(index, std::vector<double>(3)).code() == Code::kInvalid);
  CHECK(buffer.update_priorities(index, std::vector<double>(16, -1.0)).code() == Code::kInvalid);
  const std::array<std::int64_t, 1> never{1 << 20}, none{-1};
  CHECK(buffer.update_priorities(never, std::vector<double>{1}).code() == Code::kInvalid);
  CHECK(buffer.update_priorities(none, std::vector<double>{1}).value() == std::vector<bool>{false});
  CHECK(buffer.stats().value().samples.at("per") == 400);
}

TEST_CASE("sequences are consecutive rows of one episode") {
  const ReplayBuffer buffer = make_replay(steps());
  const ReplayWriter writer = buffer.writer().value();
  for (int i = 0; i < 20; ++i) writer.add(step(i, i % 10 == 9)).value();
  const ReplayBatch batch = buffer.sample_sequences(30, 4, 10s).value();
  CHECK((batch.size() == 30 && batch.length() == 4 && batch.mask().size() == 120));
  const auto actions = batch.span<std::int16_t>("action");
  for (std::size_t i = 0; i < 30; ++i) {
    REQUIRE(batch.mask()[4 * i]);
    for (std::size_t k = 1; k < 4; ++k) {
      const bool is_there = actions[4 * i] % 10 + static_cast<int>(k) < 10;
      REQUIRE(batch.mask()[4 * i + k] == is_there);
      REQUIRE(actions[4 * i + k] == (is_there ? actions[4 * i] + static_cast<int>(k) : 0));
    }
  }
  const ReplayBatch whole = buffer.sample_sequences(10, 10, 10s, {.pad = false}).value();
  CHECK(std::ranges::all_of(whole.mask(), [](bool there) { return there; }));
  CHECK(buffer.sample_sequences(1, 0, 0s).code() == Code::kInvalid);
  const ReplayBatch recurrent = buffer.sample_sequences(50, 3, 10s, {.burn_in = 2}).value();
  CHECK(recurrent.length() == 5);
  for (std::size_t i = 0; i < 50; ++i) {
    const std::size_t first = recurrent.first_row(i);
    CHECK(first <= 2);
    CHECK(recurrent.mask()[5 * i + first]);
    CHECK((first == 0 || !recurrent.mask()[5 * i + first - 1]));
  }
  CHECK(recurrent.first_row(50) == 0);
  const ReplayBatch episodes = buffer.sample_sequences(2, 100, 10s, {.replace = false, .episodes = true}).value();
  CHECK(episodes.first_row(1) == 0);
  CHECK(buffer.sample_sequences(1, 5, 0s, {.burn_in = 1, .episodes = true}).code() == Code::kInvalid);
  CHECK(buffer.sample_sequences(1'000, 100, 0s, {.replace = false, .episodes = true}).code() == Code::kInvalid);
  CHECK(buffer.sample(0, 0s).code() == Code::kInvalid);
}

TEST_CASE("a rate limiter makes writers and samplers wait") {
  ReplayOptions options = steps();
  options.limits.rate = ReplayRateLimit{.samples_per_insert = 1, .min_size = 4, .error_buffer = 4};
  const ReplayBuffer buffer = make_replay(options);
  const ReplayWriter writer = buffer.writer().value();
  CHECK(buffer.sample(1, 0s).code() == Code::kEmpty);
  int added = 0;
  while (writer.add(step(added), 0s).ok()) ++added;
  CHECK((added >= 4 && added < 20));
  CHECK(writer.add(step(0), 0s).code() == Code::kFull);
  std::atomic<bool> one_more{false};
  Caller waits([&](const std::stop_token&) { one_more = writer.add(step(added), 60s).ok(); });
  CHECK(buffer.sample(2, 60s).ok());
  waits.join();
  CHECK(one_more);
  CHECK((buffer.stats().value().inserted == static_cast<std::uint64_t>(added) + 1 &&
         buffer.stats().value().sampled == 2));
}

TEST_CASE("load_replay restores a saved buffer") {
  const Folder folder;
  const std::string path = folder.path + "/rows";
  std::vector<std::int64_t> index;
  {
    const ReplayBuffer buffer = make_replay(steps());
    const ReplayWriter writer = buffer.writer().value();
    for (int i = 0; i < 10; ++i) index.push_back(writer.add(step(i)).value());
    const ReplaySaved saved = buffer.save(path).value();
    CHECK((saved.save == 1 && saved.rows == 10 && saved.written > 0));
  }
  const ReplayBuffer again = load_replay(path).value();
  CHECK((again.size() == 10 && again.capacity() == 64 && again.columns().size() == 4));
  CHECK(again.columns()[0].shape == std::vector<std::int64_t>{2});
  const ReplayBatch batch = again.sample(20, 10s).value();
  for (std::size_t i = 0; i < 20; ++i) {
    REQUIRE(batch.index()[i] == index[static_cast<std::size_t>(batch.span<std::int16_t>("action")[i])]);
  }
  CHECK(load_replay(path, {.capacity = 5}).value().size() == 5);
  CHECK(load_replay(path + "/none").code() == Code::kNotFound);
  CHECK(again.clear().ok());
  CHECK(again.size() == 0);
}

TEST_CASE("save and load_replay report their progress") {
  const Folder folder;
  const std::string path = folder.path + "/rows";
  const ReplayBuffer buffer = make_replay(steps());
  for (int i = 0; i < 10; ++i) buffer.add(step(i)).value();
  std::vector<std::uint64_t> done, total;
  const auto note = [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    done.push_back(done_bytes);
    total.push_back(total_bytes);
  };
  CHECK(buffer.save(path, {.progress = note}).value().rows == 10);
  CHECK((done.size() >= 2 && done.front() == 0 && done.back() == total.back()));
  done.clear();
  CHECK(load_replay(path, {.progress = note}).value().size() == 10);
  CHECK((done.size() >= 2 && done.front() == 0 && done.back() == total.back()));
  const auto stop = [](std::uint64_t, std::uint64_t) { throw std::runtime_error("stopped by the user"); };
  buffer.add(step(10)).value();
  CHECK_THROWS_WITH(buffer.save(path, {.progress = stop}), "stopped by the user");
  CHECK_THROWS_WITH(load_replay(path, {.progress = stop}), "stopped by the user");
  CHECK(load_replay(path).value().size() == 10);
  CHECK(buffer.save(path).value().save == 2);
}

TEST_CASE("another process adds rows by handle or name") {
  const std::string name = "test-replay-" + std::to_string(getpid());
  ReplayOptions options = steps();
  options.name = name;
  ReplayBuffer buffer = make_replay(options);
  const std::string handle = buffer.handle().value();
  Child child([&] {
    const ReplayBuffer by_handle = ReplayBuffer::open(handle).value(), by_name = open_replay(name).value();
    return by_handle.writer().value().add(step(1)).ok() && by_name.writer().value().add(step(2)).ok();
  });
  REQUIRE(child.succeeded());
  CHECK(buffer.size() == 2);
  CHECK(open_latest(name).code() == Code::kInvalid);
  CHECK_THROWS_AS(make_replay(options), BadResult);
  const ReplayWriter writer = buffer.writer().value();
  buffer.close();
  CHECK((buffer.closed() && buffer.size() == 0 && buffer.capacity() == 0));
  CHECK(buffer.sample(1, 0s).code() == Code::kClosed);
  CHECK(buffer.handle().code() == Code::kClosed);
  CHECK(open_replay(name).code() == Code::kNotFound);
  CHECK(ReplayBuffer::open("0").code() == Code::kInvalid);
  CHECK((writer.closed() && writer.add(step(3)).code() == Code::kClosed));
}

TEST_CASE("a forked writer has its own stream and close ends waits") {
  ReplayBuffer buffer = make_replay(steps());
  ReplayWriter writer = buffer.writer().value();
  writer.add(step(1)).value();
  const std::uint32_t stream = writer.stream().value();
  Child child([&] { return writer.add(step(2)).ok() && writer.stream().value() != stream; });
  REQUIRE(child.succeeded());
  CHECK(writer.add(step(3)).ok());
  CHECK((writer.stream().value() == stream && buffer.size() == 3));
  writer.close();
  CHECK((writer.closed() && writer.add(step(4)).code() == Code::kClosed));
  const ReplayBuffer other = ReplayBuffer::open(buffer.handle().value()).value();
  CHECK(other.clear().ok());
  std::atomic<Code> told{Code::kOs};
  {
    Caller waits([&](const std::stop_token&) { told = buffer.sample(1).code(); });
    buffer.close();
  }
  CHECK(told == Code::kClosed);
}
