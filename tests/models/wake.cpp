// Events (src/memory/event.cpp): a waiter arms, checks its condition and sleeps; a publisher publishes and notifies. No
// waiter stays asleep once its condition holds.
#include "memory/event.cpp"
#include "sleepers.h"

namespace {

using namespace shmtree;
using namespace shmtree::memory;

Event event;
std::atomic<std::uint64_t> published;
alignas(Participants) std::byte no_participants[sizeof(Participants)];

void publish() {
  platform::store_release(published, std::uint64_t{1});
  notify(event);
}

void wait() {
  const platform::WaitContext forever;
  EventWait waiting(event, {reinterpret_cast<Participants&>(no_participants), WaitFor::kNewer}, forever);
  for (int round = 0; round < 2; ++round) {
    waiting.arm();
    if (platform::load_acquire(published) != 0) return;
    waiting.sleep();
    if (model::sleeps()) return;
  }
  MODEL_ASSERT(false && "a waiter wakes and does not see what was published");
}

}  // namespace

int main() {
  model::in_threads<publish, wait>();
  MODEL_ASSERT(model::lost() == 0 && "a waiter stays asleep after its condition holds");
}
