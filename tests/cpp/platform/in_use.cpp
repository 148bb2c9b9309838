// Tracking of the objects that threads use in calls.
#include "platform/in_use.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "platform/fork.h"
#include "support/catch2.h"
#include "support/process.h"

using shmtree::platform::InUse;
using shmtree::platform::is_in_use;

TEST_CASE("An object is in use while a thread is in a call of it") {
  const int object = 0, other = 0;
  const shmtree::test::Gate inside, leave;
  std::thread thread([&] {
    const InUse use(&object);
    inside.open();
    leave.wait();
  });
  inside.wait();
  CHECK(is_in_use(&object));
  CHECK_FALSE(is_in_use(&other));
  leave.open();
  thread.join();
  CHECK_FALSE(is_in_use(&object));
}

TEST_CASE("An object is in use while a call uses a part of it") {
  struct {
    int before = 0, first = 0, second = 0;
  } objects;
  const InUse use(&objects.second);
  CHECK(is_in_use(&objects.first, 2 * sizeof(int)));
  CHECK_FALSE(is_in_use(&objects.first));
  CHECK_FALSE(is_in_use(&objects.before, 2 * sizeof(int)));
}

TEST_CASE("Nested calls are seen at any depth") {
  const int objects[10]{}, other = 0;
  {
    std::vector<std::unique_ptr<InUse>> uses;
    for (const int& object : objects) uses.push_back(std::make_unique<InUse>(&object));
    for (const int& object : objects) CHECK(is_in_use(&object));
    CHECK_FALSE(is_in_use(&other));
    while (!uses.empty()) uses.pop_back();
  }
  for (const int& object : objects) CHECK_FALSE(is_in_use(&object));
}

// guarantee: close-during-calls
TEST_CASE("Calls that end out of order are seen until each ends") {
  const int objects[3]{};
  for (int round = 0; round < 10; ++round) {
    std::optional<InUse> first(&objects[0]), second(&objects[1]);
    first.reset();
    CHECK_FALSE(is_in_use(&objects[0]));
    CHECK(is_in_use(&objects[1]));
    std::optional<InUse> third(&objects[2]);
    second.reset();
    CHECK_FALSE(is_in_use(&objects[1]));
    CHECK(is_in_use(&objects[2]));
  }
  CHECK_FALSE(is_in_use(&objects[2]));
}

// guarantee: close-during-calls
TEST_CASE("A part freed when not in use is never seen by a caller") {
  struct Object {
    std::atomic<bool> closed{false};
    std::unique_ptr<int> part = std::make_unique<int>(7);
  };
  for (int round = 0; round < 300; ++round) {
    Object object;
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (;;) {
          const InUse use(&object);
          if (object.closed.load(std::memory_order_acquire)) return;
          if (*object.part != 7) std::abort();
          ++calls;
        }
      });
    }
    while (calls < 3) std::this_thread::yield();
    object.closed = true;
    while (is_in_use(&object)) std::this_thread::yield();
    object.part.reset();
    for (std::thread& thread : threads) thread.join();
  }
}

// guarantee: close-in-child
TEST_CASE("A forked child sees only the calls of its own thread") {
  const int objects[10]{}, others[10]{};
  const shmtree::test::Gate inside, leave;
  static shmtree::platform::ForkHandlers none;
  shmtree::platform::add_fork_handlers(none);
  std::thread thread([&] {
    std::vector<std::unique_ptr<InUse>> uses;
    for (const int& object : others) uses.push_back(std::make_unique<InUse>(&object));
    inside.open();
    leave.wait();
    while (!uses.empty()) uses.pop_back();
  });
  inside.wait();
  std::vector<std::unique_ptr<InUse>> uses;
  for (const int count : {1, 10}) {
    while (uses.size() < static_cast<std::size_t>(count))
      uses.push_back(std::make_unique<InUse>(&objects[uses.size()]));
    shmtree::test::Child child([&] {
      for (std::size_t i = 0; i < uses.size(); ++i) {
        if (!is_in_use(&objects[i])) return false;
      }
      while (!uses.empty()) uses.pop_back();
      for (const int& object : objects) {
        if (is_in_use(&object)) return false;
      }
      bool seen = false;
      std::thread([&] {
        const InUse use(&objects[0]);
        seen = is_in_use(&objects[0]) && !is_in_use(&objects[1]);
      }).join();
      return seen && !is_in_use(&objects[0]) && !is_in_use(&others[0]);
    });
    CHECK(child.succeeded());
    CHECK(is_in_use(&others[0]));
  }
  while (!uses.empty()) uses.pop_back();
  leave.open();
  thread.join();
}

TEST_CASE("is_in_use works in a forked child") {
  const int object = 0;
  std::optional<InUse> use(&object);
  shmtree::test::Child child([&] {
    const bool seen = is_in_use(&object);
    use.reset();
    return seen && !is_in_use(&object);
  });
  CHECK(child.succeeded());
}
