// C++ replay buffers: creation from an example, memory of their batches, statistics.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

struct Info {
  double speed = 0;
  std::vector<std::int16_t> lidar = std::vector<std::int16_t>(3);
};
SHMTREE_FIELDS(Info, speed, lidar)
struct Step {
  std::vector<float> obs{0, 0};
  Info info{};
  int action = 0;
  bool done = false;
};
SHMTREE_FIELDS(Step, obs, info, action, done)

std::string refusal(const ReplayOptions& options) {
  try {
    make_replay(options);
  } catch (const BadResult& refused) {
    return refused.what();
  }
  return "";
}
constexpr ReplayRateLimit kRate{.samples_per_insert = 1, .min_size = 1, .error_buffer = 2};

// Rows with the numbers 0 to 19, in two episodes. All priorities are 1 except that of row 5.
ReplayBuffer numbers(ReplayOptions options = {}) {
  options.capacity = 64;
  options.columns = {{"n"}, {"done", DType::kBool}};
  options.limits.chunk = 1;
  options.sampling.samplers = {{.name = "per", .kind = ReplayKind::kPrioritized, .alpha = 1, .eps = 0},
                               {.name = "all"}};
  ReplayBuffer buffer = make_replay(options);
  for (int i = 0; i < 20; ++i) {
    buffer.add(Dict{{"n", i}, {"done", i % 10 == 9}}, 60s, i == 5 ? 19.0 : 1.0).value();
  }
  return buffer;
}
struct Folder {
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = (std::filesystem::temp_directory_path() / "shmtree-replay-XXXXXX").string();
};

}  // namespace

TEST_CASE("a buffer is made from an example of a row") {
  const ReplayBuffer buffer = make_replay({.capacity = 100, .example = Step{}});
  const std::vector<ReplayColumn> columns = buffer.columns();
  REQUIRE(columns.size() == 5);
  const std::vector<std::pair<std::string, DType>> expected{{"obs", DType::kFloat32},
                                                            {"info/speed", DType::kFloat32},
                                                            {"info/lidar", DType::kInt16},
                                                            {"action", DType::kInt64},
                                                            {"done", DType::kBool}};
  for (std::size_t i = 0; i < 5; ++i)
    CHECK((columns[i].path == expected[i].first && columns[i].dtype == expected[i].second));
  CHECK((columns[0].shape == std::vector<std::int64_t>{2} && columns[2].shape == std::vector<std::int64_t>{3}));
  Step step{.obs = {1, 2}, .action = 3, .done = true};
  step.info.speed = 0.5;
  buffer.add(step).value();
  CHECK(buffer.sample(1, 60s).value().span<float>("info/speed")[0] == 0.5f);

  const Value nest = Dict{{"pair", Tuple{1, std::complex<double>(1, 2)}}, {"list", List{true, 7u}}};
  const ReplayBuffer other = make_replay({.capacity = 100, .example = nest});
  other.add(nest).value();
  const ReplayBatch batch = other.sample(1, 60s).value();
  CHECK(batch.paths() == std::vector<std::string>{"pair/0", "pair/1", "list/0", "list/1"});
  CHECK(batch.span<std::complex<double>>("pair/1")[0] == std::complex<double>(1, 2));
  CHECK(batch.span<std::uint64_t>("list/1")[0] == 7);
}

TEST_CASE("an invalid example row is refused with its path") {
  CHECK(refusal({.capacity = 9, .example = Dict{{"a", List{1, "no"}}}}) ==
        "row[\"a\"][1] is a string; rows consist of numbers and arrays");
  CHECK(refusal({.capacity = 9, .example = Dict{{"a", nullptr}}}).find("row[\"a\"] is None") == 0);
  CHECK(refusal({.capacity = 9, .example = Dict{{"a", std::vector<float>()}}}).find("row[\"a\"] has a dimension") == 0);
  CHECK(refusal({.capacity = 9, .example = Dict{}}).find("at least one leaf") != std::string::npos);
  CHECK(refusal({.capacity = 9, .columns = {{"n"}}, .example = 1}).find("both columns and an example") == 0);
}

// guarantee: read-only-arrays
TEST_CASE("a batch in the arena is sent without a copy, then read-only") {
  const Arena arena = Arena::create({.max_bytes = 64 << 20}).value();
  const ReplayBuffer buffer = numbers({.arena = arena});
  auto [sender, receiver] = make_pair({.arena = arena});
  const ReplayBatch batch = buffer.sample(50'000, 60s, {.sampler = "all", .in_arena = true}).value();
  const auto span = batch.span<std::int64_t>("n");
  const std::vector<std::int64_t> drawn(span.begin(), span.end());
  CHECK(std::ranges::all_of(drawn, [](std::int64_t n) { return n >= 0 && n < 20; }));
  const void* const place = span.data();
  sender.put(Dict{{"n", batch.array_ref("n").value()}, {"done", batch.array_ref("done").value()}}).value();
  CHECK_THROWS_AS(batch.span<std::int64_t>("n"), BadResult);  // it would change what the receiver has
  CHECK((batch.view("n").read_only && batch.span<const std::int64_t>("n").data() == place));
  const Item item = receiver.get(60s).value();
  CHECK(item["n"].view().data == place);
  CHECK(item["n"].as<std::vector<std::int64_t>>() == drawn);
  CHECK(buffer.sample(5, 60s, {.out = {{"n", {}}}, .in_arena = true}).code() == Code::kInvalid);

  // Also works if the process opened the buffer and the end by their handles, because all handles of an arena share one
  // list of its objects.
  const ReplayBuffer opened = ReplayBuffer::open(buffer.handle().value()).value();
  auto [to, from] = make_pair({.arena = opened.arena().value()});
  const Sender again = Sender::open(to.handle().value()).value();
  const ReplayBatch sequences = opened.sample_sequences(5'000, 4, 60s, {.in_arena = true}).value();
  const void* const there = sequences.view("n").data;
  again.put(sequences.array_ref("n").value()).value();
  const Item received = from.get(60s).value();
  CHECK((received.view().data == there && received.view().shape.size() == 2));
}

TEST_CASE("sequences start at rows of a sampler and can be distinct") {
  const ReplayBuffer buffer = numbers();
  const ReplayBatch batch = buffer.sample_sequences(400, 3, 60s, {.sampler = "per", .beta = 1.0}).value();
  std::size_t fives = 0;
  for (std::size_t i = 0; i < 400; ++i) {
    const std::int64_t first = batch.span<std::int64_t>("n")[3 * i];
    fives += first == 5 ? 1u : 0u;
    for (std::size_t k = 3 * i; k < 3 * i + 3; ++k) {
      REQUIRE(std::abs(batch.probability()[k] - (first == 5 ? 0.5 : 0.5 / 19)) < 1e-6);
      REQUIRE(std::abs(batch.weight()[k] - (first == 5 ? 1.0f / 19 : 1.0f)) < 1e-5);
      REQUIRE(batch.priority()[k] == (first == 5 ? 19.0f : 1.0f));
    }
  }
  CHECK((fives > 100 && fives < 300));
  for (const char* sampler : {"", "per", "all"}) {
    const ReplaySequences how{.pad = false, .sampler = sampler, .replace = false};
    const ReplayBatch all = buffer.sample_sequences(14, 4, 60s, how).value();
    std::set<std::int64_t> firsts;
    for (std::size_t i = 0; i < 14; ++i) firsts.insert(all.span<std::int64_t>("n")[4 * i]);
    CHECK((firsts.size() == 14 && !firsts.contains(7)));
    CHECK(std::ranges::all_of(all.mask(), [](bool there) { return there; }));
    CHECK(buffer.sample_sequences(15, 4, 0s, how).code() == Code::kInvalid);
  }
  CHECK(buffer.sample_sequences(1, 11, 0s, {.pad = false, .sampler = "per"}).code() == Code::kEmpty);
  CHECK(buffer.sample_sequences(1, 2, 0s, {.sampler = "no"}).code() == Code::kInvalid);
  std::array<std::int64_t, 8> n{};
  std::array<bool, 8> done{};
  const auto bytes = [](auto& array) { return std::as_writable_bytes(std::span(array)); };
  CHECK(buffer.sample_sequences(2, 4, 60s, {.pad = false, .out = {{"n", bytes(n)}, {"done", bytes(done)}}}).ok());
  CHECK((n[1] == n[0] + 1 && n[7] == n[4] + 3));
}

TEST_CASE("stats report totals and rates since the last call") {
  const ReplayBuffer buffer = numbers();
  buffer.sample(30, 60s, {.sampler = "all"}).value();
  const ReplayStats stats = buffer.stats().value();
  CHECK((stats.rows == 20 && stats.capacity == 64 && stats.chunk == 1 && stats.row_bytes == 17));
  CHECK((stats.added == 20 && stats.samples.at("all") == 30 && stats.samples_per_insert == 1.5));
  CHECK((stats.max_bytes >= 64 * 17 && stats.drawn == 30 && stats.age_max <= 19 && stats.age_mean > 0));
  CHECK((stats.added_per_s == 0 && stats.sampled_per_s == 0));
  buffer.sample(10, 60s).value();
  const ReplayStats later = buffer.stats().value();
  CHECK((later.drawn == 10 && later.sampled_per_s > 0 && later.added_per_s == 0));
}

TEST_CASE("load_replay can replace samplers and limit and name") {
  const Folder folder;
  const std::string path = folder.path + "/rows", name = "test-replay-load-" + std::to_string(getpid());
  CHECK(numbers().save(path).ok());
  const ReplayBuffer again =
      load_replay(path, {.capacity = 16,
                         .name = name,
                         .sampling = ReplaySampling{.samplers = {{.name = "newest", .kind = ReplayKind::kLifo}}},
                         .limits = ReplayLimits{.rate = kRate},
                         .arena = Arena::create({.max_bytes = 32 << 20}).value()})
          .value();
  CHECK((again.size() == 16 && open_replay(name).value().capacity() == 16));
  CHECK(again.sample(1, 60s, {.sampler = "newest"}).value().span<std::int64_t>("n")[0] == 19);
  CHECK(again.stats().value().inserted == 16);
  const ReplayBuffer seeded = load_replay(path, {.sampling = ReplaySampling{.seed = 3}}).value();  // keeps the samplers
  CHECK(seeded.sample(1, 60s, {.sampler = "all"}).ok());
  CHECK(load_replay(path, {.gamma = -1.0}).code() == Code::kInvalid);
  CHECK(load_replay(path, {.limits = ReplayLimits{.chunk = 16}}).code() == Code::kInvalid);
}

TEST_CASE("load_replay continues, replaces or removes the rate limit") {
  const Folder folder;
  const std::string first = folder.path + "/first", path = folder.path + "/rows";
  CHECK(numbers().save(first).ok());
  const ReplayBuffer limited = load_replay(first, {.limits = ReplayLimits{.rate = kRate}}).value();
  limited.sample(1, 60s).value();
  CHECK(limited.save(path).ok());
  const auto counts = [](const ReplayBuffer& buffer) {
    const ReplayStats stats = buffer.stats().value();
    return std::pair(stats.inserted, stats.sampled);
  };
  CHECK(counts(load_replay(path).value()) == std::pair<std::uint64_t, std::uint64_t>(20, 20));
  CHECK(counts(load_replay(path, {.limits = ReplayLimits{.rate = kRate, .streams = 4}}).value()) == counts(limited));
  const ReplayRateLimit other{.samples_per_insert = 4, .min_size = 5};
  CHECK(counts(load_replay(path, {.limits = ReplayLimits{.rate = other}}).value()).second == 60);
  CHECK(counts(load_replay(path, {.limits = ReplayLimits{}}).value()).first == 0);
}
