// Adds to a replay buffer that Python named and draws from it, and makes one of its own that Python opens.
//
//   replay_peer <name of Python's> <name of its own>, until its standard input ends
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

// Rows {"obs": {"image": uint8 (2, 3), "pair": (int64, float64)}, "reward": float32, "done": bool}.
bool add_to(const ReplayBuffer& buffer) {
  const auto columns = buffer.columns();
  if (columns.size() != 5 || columns[0].path != "obs/image" || columns[2].path != "obs/pair/1") return false;
  ReplayWriter writer = buffer.writer().value();
  writer.set_version(7);
  for (int i = 0; i < 10; ++i) {
    const std::vector<std::uint8_t> image(6, static_cast<std::uint8_t>(i));
    const Dict obs{{"image", array_ref(image.data(), {2, 3})}, {"pair", Tuple{i, 0.5 * i}}};
    writer.add(Dict{{"obs", obs}, {"reward", i}, {"done", false}}, 60s, 1.0 + i).value();
  }
  const std::vector<std::uint8_t> last(6, 200);
  const Dict final{{"obs", Dict{{"image", array_ref(last.data(), {2, 3})}, {"pair", Tuple{200, 0.0}}}}};
  writer.end(final, true, 60s).value();
  const ReplayBatch batch = buffer.sample(50, 60s).value();
  for (std::size_t i = 0; i < 50; ++i) {
    const auto number = batch.span<std::int64_t>("obs/pair/0")[i];
    const auto next = number == 9 ? 200 : number + 1;
    if (batch.span<std::uint8_t>("obs/image")[6 * i + 5] != number) return false;
    if (batch.span<std::uint8_t>("next/obs/image")[6 * i] != next) return false;
  }
  const std::vector<double> priorities(batch.index().size(), 4.0);
  const std::vector<bool> applied = buffer.update_priorities(batch.index(), priorities).value();
  return std::find(applied.begin(), applied.end(), false) == applied.end();
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 64;
  if (!add_to(open_replay(arguments[1]).value())) return 1;
  const double still = 0;
  const Dict example{{"info", Dict{{"speed", array_ref(&still, {})}}}, {"obs", std::vector<float>(2)}};
  const ReplayBuffer own =
      make_replay({.capacity = 100,
                   .sampling = {.samplers = {{.name = "old", .kind = ReplayKind::kFifo}, {.name = "all"}}},
                   .episodes = {.n_step = 1, .stack = {{"obs", 2}}, .done = std::nullopt},
                   .limits = {.chunk = 1},
                   .name = arguments[2],
                   .example = example});
  std::vector<double> speeds;
  std::vector<float> obs;
  for (int i = 0; i < 20; ++i) {
    speeds.push_back(2.5 * i);
    obs.insert(obs.end(), 2, static_cast<float>(i));
  }
  own.extend(Dict{{"info", Dict{{"speed", speeds}}}, {"obs", array_ref(obs.data(), {20, 2})}}).value();
  std::puts("made");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return own.size() == 25 ? 0 : 2;  // Python added five
}
