// Calls of a replay buffer report kPeerDied when all processes that they wait for were killed.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

ReplayOptions told() {
  ReplayOptions options{.capacity = 64};
  options.columns = {{"number"}};
  options.episodes.done.reset();
  options.limits.chunk = 1;
  options.limits.on_peer_death = OnPeerDeath::kRaise;
  return options;
}
bool add(const ReplayWriter& writer, int number) {
  return writer.add(Dict{{"number", number}}, 60s).ok();
}
template <class Outcome>
bool tells_of(const Outcome& outcome, int pid) {
  return outcome.code() == Code::kPeerDied && outcome.error().pids == std::vector<int>{pid};
}
// A child that calls `act`, and then waits to be killed.
class Killed {
 public:
  template <class Act>
  explicit Killed(Act act)
      : child_([&] {
          done_.open(act());
          pause();
          return true;
        }) {
    REQUIRE(done_.wait() == 1);
  }
  int kill() {
    child_.kill_and_wait();
    return child_.pid();
  }

 private:
  const Gate done_;
  Child child_;
};

}  // namespace

TEST_CASE("sample reports that all writers died until a row is added") {
  const ReplayBuffer buffer = make_replay(told());
  CHECK(buffer.sample(1, 0s).code() == Code::kEmpty);
  std::optional<ReplayWriter> kept;
  Killed adder([&] { return add(kept.emplace(buffer.writer().value()), 1); });
  REQUIRE(buffer.clear().ok());
  const int pid = adder.kill();
  CHECK(tells_of(buffer.sample(1, 60s), pid));
  CHECK(tells_of(buffer.sample_sequences(1, 2, 60s), pid));
  CHECK(tells_of(ReplayBuffer::open(buffer.handle().value()).value().sample(1, 60s), pid));
  const ReplayWriter writer = buffer.writer().value();
  REQUIRE(add(writer, 2));
  CHECK(buffer.sample(1, 0s).value().span<std::int64_t>("number")[0] == 2);
}

TEST_CASE("a blocked add reports dead samplers once the rest detached") {
  ReplayOptions options = told();
  options.limits.rate = {.samples_per_insert = 1, .min_size = 1, .error_buffer = 1};
  const ReplayBuffer buffer = make_replay(options);
  const ReplayWriter writer = buffer.writer().value();
  REQUIRE((add(writer, 1) && add(writer, 2)));
  Killed sampler_process([&] { return buffer.sample(1, 60s).ok(); });
  REQUIRE(add(writer, 3));
  std::optional<ReplayBuffer> own = ReplayBuffer::open(buffer.handle().value()).value();
  const ReplayBatch batch = own->sample(1, 60s).value();  // which keeps the buffer
  REQUIRE(add(writer, 4));
  const int pid = sampler_process.kill();
  CHECK(writer.add(Dict{{"number", 5}}, 0s).code() == Code::kFull);  // this process draws
  own.reset();
  CHECK(tells_of(writer.add(Dict{{"number", 5}}, 60s), pid));
  REQUIRE(buffer.sample(1, 60s).ok());
  CHECK(add(writer, 5));
}

TEST_CASE("on_peer_death is kept by load and kEach is refused") {
  std::string path = (std::filesystem::temp_directory_path() / "shmtree-replay-XXXXXX").string();
  REQUIRE(mkdtemp(path.data()) != nullptr);
  REQUIRE(make_replay(told()).save(path).ok());
  const ReplayBuffer loaded = load_replay(path).value();
  const ReplayBuffer not_told =
      load_replay(path, {.limits = ReplayLimits{.on_peer_death = OnPeerDeath::kWait}}).value();
  CHECK(load_replay(path, {.limits = ReplayLimits{.on_peer_death = OnPeerDeath::kEach}}).code() == Code::kInvalid);
  std::filesystem::remove_all(path);
  std::optional<ReplayWriter> kept;
  Killed adder([&] { return add(kept.emplace(loaded.writer().value()), 1); });
  REQUIRE(loaded.clear().ok());
  const int pid = adder.kill();
  CHECK(tells_of(loaded.sample(1, 60s), pid));
  ReplayOptions each = told();
  each.limits.on_peer_death = OnPeerDeath::kEach;
  CHECK_THROWS_AS(make_replay(each), BadResult);
  each.limits.on_peer_death = OnPeerDeath::kWait;
  for (const ReplayBuffer& waits : {make_replay(each), not_told}) {
    Killed other([&] { return add(kept.emplace(waits.writer().value()), 1); });
    other.kill();
    REQUIRE(waits.clear().ok());
    CHECK(waits.sample(1, 100ms).code() == Code::kEmpty);
  }
}
