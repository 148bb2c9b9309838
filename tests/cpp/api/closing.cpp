// close() releases resources even while other handles of the closed object exist.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace std::chrono_literals;

namespace {

std::string name_of(int i) {
  return "api-closing-" + std::to_string(getpid()) + "-" + std::to_string(i);
}

struct Footprint {
  std::size_t names = 0, descriptors = 0, mappings = 0;
  bool operator==(const Footprint&) const = default;

  static Footprint now() {
    Footprint found;
    const std::string user = "shmtree-" + std::to_string(geteuid());
    for (const std::string& folder : {"/dev/shm/" + user, "/tmp/" + user}) {
      if (!std::filesystem::is_directory(folder)) continue;
      for (const auto& each : std::filesystem::directory_iterator(folder)) {
        found.names += each.path().filename().string().starts_with(name_of(0).substr(0, name_of(0).size() - 1));
      }
    }
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) ++found.descriptors;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) found.mappings += line.find("memfd:shmtree") != std::string::npos;
    return found;
  }
};

template <class T>
bool is_closed(const Result<T>& result) {
  return !result && result.code() == Code::kClosed;
}
// Waits until `count` other threads of this process sleep in the kernel.
void wait_until_others_sleep(std::size_t count) {
  for (std::size_t asleep = 0; asleep < count; std::this_thread::yield()) {
    asleep = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string line;
      std::getline(std::ifstream(task.path() / "stat"), line);
      asleep += line.find(") S ") != line.npos;
    }
  }
}

// Creates the resources that a process creates only once.
void warm_up() {
  auto [sender, receiver] = make_pair({});
  receiver.fileno().value();
  sender.put(Value(1)).value();
  receiver.get().value();
}

}  // namespace

// guarantee: close-releases
TEST_CASE("Closed named pairs leave no name or descriptor or mapping") {
  warm_up();
  const Footprint before = Footprint::now();
  std::vector<std::pair<Sender, Receiver>> pairs;
  for (int i = 0; i < 100; ++i) {
    PairOptions options;
    options.name = name_of(i);
    options.arena = Arena::create().value();
    pairs.push_back(make_pair(options));
    pairs.back().second.fileno().value();
    pairs.back().first.put(Value(i)).value();
    pairs.back().second.get().value();
  }
  REQUIRE(Footprint::now().names == before.names + 100);
  for (auto& [sender, receiver] : pairs) {
    sender.close();
    REQUIRE(receiver.stats().value().senders == 0);
    receiver.close();
    receiver.close();
  }
  REQUIRE(Footprint::now() == before);
}

TEST_CASE("The last item of a closed pair frees its resources") {
  warm_up();
  const Footprint before = Footprint::now();
  auto [sender, receiver] = make_pair({.arena = Arena::create().value()});
  sender.put(Value(std::string(100'000, 'x'))).value();
  {
    const Item item = receiver.get().value();
    sender.close();
    receiver.close();
    REQUIRE(Footprint::now().mappings > before.mappings);
  }
  REQUIRE(Footprint::now() == before);
}

// guarantee: close-releases
TEST_CASE("Ends closed during calls of eight threads are released") {
  warm_up();
  for (int round = 0; round < 20; ++round) {
    const Footprint before = Footprint::now();
    auto [sender, receiver] = make_pair({.capacity = 4, .arena = Arena::create().value()});
    std::atomic<int> moved{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, from = receiver] {
        while (!is_closed(from.get(20ms))) ++moved;
      });
      threads.emplace_back([&, to = sender] {
        while (!is_closed(to.put(Value(std::string(3'000, 'x')), 20ms))) {
        }
      });
    }
    while (moved < 50) std::this_thread::yield();
    sender.close();
    receiver.close();
    for (std::thread& thread : threads) thread.join();
    REQUIRE(Footprint::now() == before);
  }
}

// guarantee: close-in-child
TEST_CASE("A forked child frees closed ends that its parent waits on") {
  warm_up();
  const Footprint before = Footprint::now();
  auto [to_empty, from_empty] = make_pair({.capacity = 4, .name = name_of(0), .arena = Arena::create().value()});
  auto [to_full, from_full] = make_pair({.capacity = 1, .name = name_of(1), .arena = Arena::create().value()});
  for (const auto& [to, from] : {std::pair(to_empty, from_empty), std::pair(to_full, from_full)}) {
    to.put(Value(0)).value();  // the process uses both ends of both channels
    from.get().value();
  }
  to_full.put(Value(1)).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([from = from_empty] { from.get().value(); });
  threads.emplace_back([to = to_full] { to.put(Value(2)).value(); });
  threads.emplace_back([to = to_full] { to.wait_for_all_ack().value(); });
  wait_until_others_sleep(threads.size());

  shmtree::test::Child child(
      [&, &to_empty = to_empty, &from_empty = from_empty, &to_full = to_full, &from_full = from_full] {
        to_empty.close();
        from_empty.close();
        to_full.close();
        from_full.close();
        Footprint now = Footprint::now();
        now.names = before.names;  // the parent still has the names
        return now == before;
      });
  CHECK(child.succeeded());
  for (int i = 0; i < 3; ++i) to_empty.put(Value(i)).value();
  for (int i = 0; i < 2; ++i) from_full.get().value();
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("put_many reports its count when a thread closes its object") {
  Broadcast broadcast = make_broadcast({.capacity = 1});
  const Subscriber subscriber = broadcast.subscribe().value();
  const std::vector<Value> messages{1, 2, 3};
  Error ended;
  std::thread thread([&] { ended = broadcast.put_many(messages).error(); });
  while (broadcast.stats().value().put == 0) std::this_thread::yield();
  broadcast.close();
  thread.join();
  CHECK(ended.code == Code::kClosed);
  CHECK(ended.completed == 1);
}

// guarantee: close-during-put
TEST_CASE("No version is lost when a thread closes a Latest") {
  for (int round = 0; round < 50; ++round) {
    Latest latest = make_latest();
    const std::vector<float> value(round % 2 == 0 ? 5 : 60'000);
    shmtree::test::Gate begun;
    shmtree::test::Child reader([&] {
      for (std::uint64_t version = 0;;) {
        const auto newer = latest.get(version, 60s);
        if (!newer) return newer.code() == Code::kClosed && latest.version() == version;
        if (version == 0) begun.open();
        version = newer->version;
      }
    });
    std::atomic<std::uint64_t> published{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (latest.publish(Value(value))) ++published;
      });
    }
    begun.wait();
    latest.close();
    for (std::thread& thread : threads) thread.join();
    CAPTURE(round);
    REQUIRE(reader.succeeded());
  }
}

// guarantee: close-during-get
TEST_CASE("No message is lost when a thread closes the receiver") {
  for (int round = 0; round < 50; ++round) {
    auto [sender, receiver] = make_pair({.capacity = 0});
    auto left = Receiver::open(receiver.handle().value()).value();
    constexpr std::size_t kMessages = 2'000;
    for (std::size_t i = 0; i < kMessages; ++i) sender.put(Value(std::string(i % 2 == 0 ? 10 : 3'000, 'x'))).value();
    std::atomic<std::size_t> received{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, from = receiver] {
        while (from.get()) ++received;
      });
    }
    while (received < static_cast<std::size_t>(round * 20)) std::this_thread::yield();
    receiver.close();
    for (std::thread& thread : threads) thread.join();
    CAPTURE(round);
    REQUIRE(received + left.size() == kMessages);
  }
}
