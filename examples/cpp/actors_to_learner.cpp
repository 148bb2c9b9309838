// Two actors send samples, which are aggregates with an array, to a learner that receives until both are done.
#include <shmtree/shmtree.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>

struct Sample {
  std::vector<float> obs;
  double reward = 0;
  std::string actor;
  std::optional<std::string> note;  // None in Python if empty
};
SHMTREE_FIELDS(Sample, obs, reward, actor, note)

constexpr int kActors = 2, kSteps = 100;

void act(const shmtree::Sender& sender, const std::string& name) {
  Sample sample{.obs = std::vector<float>(84 * 84), .reward = 0, .actor = name, .note = std::nullopt};
  for (int step = 0; step < kSteps; ++step) {
    std::iota(sample.obs.begin(), sample.obs.end(), static_cast<float>(step));
    sample.reward = step;
    if (step == kSteps - 1) sample.note = "the last of " + name;
    sender.put(sample).value();  // blocks while eight are in flight; then the sample may be reused
  }
}

int main() {
  auto [sender, receiver] = shmtree::make_pair({.capacity = 8});
  for (int i = 0; i < kActors; ++i) {
    if (fork() != 0) continue;
    receiver.close();
    act(sender, "actor " + std::to_string(i));
    sender.close();  // without it, the exit would count as the death of the actor
    _exit(0);
  }
  sender.close();  // the stream ends with the last actor

  int samples = 0, notes = 0;
  double rewards = 0;
  for (const shmtree::Item& item : receiver) {
    const std::span<const float> obs = item["obs"].span<const float>();  // in shared memory, zero-copy
    const auto sample = item.as<Sample>();                               // a copy
    if (obs.size() != sample.obs.size() || static_cast<double>(obs[0]) != sample.reward) return 1;
    ++samples;
    notes += sample.note ? 1 : 0;
    rewards += sample.reward;
  }
  while (wait(nullptr) > 0) {
  }
  std::printf("%d samples, rewards of %g, %d notes\n", samples, rewards, notes);
  return samples == kActors * kSteps && notes == kActors ? 0 : 1;
}
