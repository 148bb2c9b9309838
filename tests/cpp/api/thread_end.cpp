// Calls in destructors that run after the library's variables of the thread were destroyed.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

// Allocates memory in place of memory that was freed. The library must not write to it.
class Junk {
 public:
  Junk() {
    for (std::size_t i = 0; i < 64; ++i) blocks_.emplace_back(std::size_t{64} << (i % 8), kFill);
  }
  bool is_whole() const {
    for (const auto& block : blocks_) {
      for (const unsigned char byte : block) {
        if (byte != kFill) return false;
      }
    }
    return true;
  }

 private:
  static constexpr unsigned char kFill = 0xee;
  std::vector<std::vector<unsigned char>> blocks_;
};

Dict message(int n) {
  return {{"text", std::string(200, 'x')}, {"n", n}, {"big", std::vector<double>(300, n)}};
}
bool is_message(const Item& item, int n) {
  return item["text"].as<std::string>() == std::string(200, 'x') && item["n"].as<int>() == n &&
         item["big"].as<std::vector<double>>() == std::vector<double>(300, n);
}

// Calls `act` when the thread ends. If it is made before the thread's first call, it is destroyed after the library's
// variables.
template <class Act>
struct AtEnd {
  Act act;
  ~AtEnd() { act(); }
};
template <class Act>
void at_thread_end(Act act) {
  thread_local const AtEnd<Act> at_end{std::move(act)};
}

bool puts_and_gets(const Sender& sender, const Receiver& receiver) {
  const Junk junk;
  for (int n = 0; n < 20; ++n) {
    if (!sender.put(message(n), 60s)) return false;
    const auto got = receiver.get(60s);
    if (!got || !is_message(*got, n)) return false;
    if (!sender.put_bytes(std::as_bytes(std::span("some bytes")), 60s) || !receiver.get_bytes(60s)) return false;
  }
  return junk.is_whole();
}

}  // namespace

TEST_CASE("put and get work in a destructor at the end of their thread") {
  auto [sender, receiver] = make_pair({.capacity = 8});
  bool worked = false;
  std::thread([&, &sender = sender, &receiver = receiver] {
    at_thread_end([&] { worked = puts_and_gets(sender, receiver); });
    sender.put(message(0)).value();
    receiver.get(60s).value();
  }).join();
  CHECK(worked);
}

TEST_CASE("put and get work in the destructor of a static object") {
  const Gate destroyed;  // a destructor cannot change what exit() returns, and may not run at all
  Child child([&destroyed] {
    auto [sender, receiver] = make_pair({.capacity = 8});
    const auto work = [sender, receiver, &destroyed] { destroyed.open(puts_and_gets(sender, receiver) ? 1 : 0); };
    static const AtEnd<decltype(work)> at_exit{work};
    sender.put(message(0)).value();
    receiver.get(60s).value();
    std::exit(0);
    return true;
  });
  CHECK(child.succeeded());
  REQUIRE(destroyed.is_open());
  CHECK(destroyed.wait() == 1);
}

TEST_CASE("replay add works in a destructor at the end of its thread") {
  const ReplayBuffer buffer = make_replay({.capacity = 10'000, .columns = {{"x"}}});
  for (int i = 0; i < 2; ++i) {
    bool worked = false;
    std::thread([&] {
      at_thread_end([&] {
        const Junk junk;
        worked = true;
        for (int n = 0; n < 10; ++n) worked = buffer.add(Dict{{"x", n}}, 60s).ok() && worked;
        worked = worked && junk.is_whole();
      });
      buffer.add(Dict{{"x", 1}}, 60s).value();
    }).join();
    CHECK(worked);
  }
  CHECK(buffer.stats().value().rows == 22);
}
