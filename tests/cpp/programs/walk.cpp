// Puts and gets a dict with an array of 100 KB, and a small dict, for `./dev structure --walk`. Callgrind counts only
// what walk() calls.
#include <cstdint>
#include <vector>

#include "shmtree/shmtree.h"

using namespace shmtree;

extern "C" {
[[gnu::noipa]] void walk(void (*act)(void*), void* state) {
  act(state);
  asm volatile("" ::: "memory");  // prevents a tail call, which would exit before the act
}
}

namespace {

// The first calls allocate memory, so they are not counted.
void walk_to(const Sender& sender, const Receiver& receiver, const Value& value) {
  auto act = [&] {
    sender.put(value).value();
    receiver.get().value();
  };
  for (int i = 0; i < 5; ++i) act();
  walk([](void* state) { (*static_cast<decltype(act)*>(state))(); }, &act);
}

}  // namespace

int main() {
  auto [sender, receiver] = make_pair();
  const std::vector<float> numbers(25'000, 0.5f);
  walk_to(sender, receiver, Dict{{"obs", numbers}, {"reward", 1.0}});
  walk_to(sender, receiver, Dict{{"step", 3}, {"reward", 1.0}});
}
