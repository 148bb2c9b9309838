// Random operations compared with plain models: one process step by step, and several processes with continual kills.
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "support/arenas.h"
#include "support/catch2.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Makes calls in an arena, and compares the result with plain containers.
class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed), channel_(Window::create(*arena_)) {}

  void step() {
    switch (random_() % 10) {
      case 0:
      case 1: hold_new(); break;
      case 2: hold_again(); break;
      case 3:
      case 4: drop(); break;
      case 5: send(); break;
      case 6: receive(); break;
      case 7: inherit_and_kill(); break;
      case 8: arena_->allocator().trim(); break;
      default: memory::request_recovery(arena_->header()); REQUIRE(arena_->reconcile(patience()).ok());
    }
  }

  void compare() {
    REQUIRE(check_arena(*arena_) == "");
    std::set<std::uint64_t> kept{memory::pack(channel_.ref())};
    for (const Held& held : held_) keep(memory::pack(held.lease.ref()), kept);
    for (const std::uint64_t block : queued_) keep(block, kept);
    REQUIRE(arena_->inspector().stats().blocks == kept.size());
    for (const std::uint64_t block : kept) REQUIRE(arena_->blocks().is_current(memory::unpack(block)));
    for (const Held& held : held_) REQUIRE(std::to_integer<int>(held.lease.data()[0]) == held.mark);
    REQUIRE(arena_->holders().lease_count() == held_.size() + 1);
    REQUIRE(Window::of(*arena_, channel_.ref()).queued() == queued_.size());
  }

 private:
  struct Held {
    Lease lease;
    int mark;
  };

  void keep(std::uint64_t block, std::set<std::uint64_t>& kept) {
    if (!kept.insert(block).second) return;
    for (const std::uint64_t next : lists_[block]) keep(next, kept);
  }
  std::size_t any_held() { return static_cast<std::size_t>(random_() % held_.size()); }
  std::uint64_t any_size() { return random_() % 3 == 0 ? random_() % 300'000 + 1 : random_() % 5000 + 1; }

  void hold_new() {
    if (held_.size() > 20) return drop();
    Lease lease = new_lease(*arena_, any_size());
    const int mark = static_cast<int>(random_() % 256);
    lease.data()[0] = static_cast<std::byte>(mark);
    lists_[memory::pack(lease.ref())].clear();
    held_.push_back({std::move(lease), mark});
  }
  void hold_again() {
    if (held_.empty()) return;
    Held& held = held_[any_held()];
    const auto kind = static_cast<BlockKind>(arena_->blocks().entry(held.lease.ref().id)->kind.load());
    Lease lease = arena_->hold_existing(held.lease.ref(), kind, patience()).value();
    const int mark = held.mark;
    held_.push_back({std::move(lease), mark});
  }
  void drop() {
    if (held_.empty()) return;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(any_held()));
  }
  void send() {
    if (queued_.size() > 10) return receive();
    OwnedBlock block = new_block(*arena_, any_size() + 64);
    const std::uint64_t name = memory::pack(block.ref());
    const int mark = static_cast<int>(random_() % 256);
    block.data()[0] = static_cast<std::byte>(mark);
    std::vector<std::uint64_t>& list = lists_[name];
    list.clear();
    std::vector<BlockRef> referred;
    for (std::uint64_t i = random_() % 4; i > 0 && !held_.empty(); --i) {
      referred.push_back(held_[any_held()].lease.ref());
      list.push_back(memory::pack(referred.back()));
    }
    if (!referred.empty()) REQUIRE(arena_->holders().refer(block, referred, patience()).ok());
    REQUIRE(Window::of(*arena_, channel_.ref()).put(*arena_, std::move(block)));
    queued_.push_back(name);
    marks_[name] = mark;
  }
  void receive() {
    const BlockRef ref = Window::of(*arena_, channel_.ref()).get(*arena_);
    if (queued_.empty()) {
      REQUIRE_FALSE(arena_->blocks().is_current(ref));
      return;
    }
    const std::uint64_t name = memory::pack(ref);
    REQUIRE(name == queued_.front());
    queued_.erase(queued_.begin());
    if (random_() % 2 == 0) {
      arena_->holders().drop(ref);
    } else {
      held_.push_back({adopt_hold(*arena_, ref).value(), marks_[name]});
    }
  }
  // Runs a child that inherits all our pins, takes some of its own, and is killed.
  void inherit_and_kill() {
    const std::uint64_t what = random_() % 4;
    Gate done;
    Child child([&] {
      std::vector<Lease> own;
      if (what > 0) own.push_back(new_lease(*arena_, 5000));
      if (what > 1) held_.clear();
      OwnedBlock written = new_block(*arena_, 5000);
      done.open();
      pause();
      return true;
    });
    done.wait();
    child.kill_and_wait();
    REQUIRE(arena_->participants().check(0));
    REQUIRE(arena_->reconcile(patience()).ok());
  }

  std::shared_ptr<Arena> arena_ = new_arena(64 * kMiB);
  std::mt19937_64 random_;
  Lease channel_;
  std::vector<Held> held_;
  std::vector<std::uint64_t> queued_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> lists_;  // referenced blocks of every block that was ever sent
  std::map<std::uint64_t, int> marks_;
};

// Shared by the workers of the kill test, in a pinned block.
struct Progress {
  std::atomic<std::uint64_t> rounds;
  std::atomic<std::uint64_t> damaged;
};

// Fills messages with one value, sends them, receives some, pins a few, and checks the pinned ones.
bool work(Arena& arena, const Lease& channel, Progress& progress, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Window& window = Window::of(arena, channel.ref());
  std::vector<Lease> held;
  const auto is_whole = [](const Lease& lease) {
    for (std::uint64_t i = 1; i < lease.bytes() - 64; ++i) {
      if (lease.data()[i] != lease.data()[0]) return false;
    }
    return true;
  };
  while (true) {
    const std::uint64_t bytes = random() % 20'000 + 200;
    if (auto block = arena.allocate(bytes, BlockKind::kMessage, patience(100))) {
      std::memset(block->data(), static_cast<int>(random() % 256), bytes - 64);
      if (!held.empty() && random() % 3 == 0) {
        const BlockRef list[] = {held[random() % held.size()].ref()};
        if (!arena.holders().refer(*block, list, patience()).ok()) return false;
      }
      window.put(arena, std::move(*block));
    }
    if (random() % 4 != 0) {
      const BlockRef ref = window.get(arena);
      if (ref.id.value != 0) {
        auto lease = adopt_hold(arena, ref);
        if (lease) held.push_back(std::move(*lease));
      }
    }
    for (const Lease& lease : held) {
      if (!is_whole(lease)) progress.damaged.fetch_add(1);
    }
    while (held.size() > random() % 8) held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
    if (random() % 50 == 0) arena.allocator().trim();
    progress.rounds.fetch_add(1);
  }
}

}  // namespace

TEST_CASE("Random operations agree with a model at every step") {
  const int steps = kThreadSanitizer || kAddressSanitizer || under_valgrind() ? 300 : 1500;
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{2}}) {
    INFO("seed " << seed);
    Model model(seed);
    for (int i = 0; i < steps; ++i) {
      model.step();
      model.compare();
    }
  }
}

// guarantee: views-never-change
TEST_CASE("Random kills of workers neither damage nor leak blocks") {
  std::mt19937_64 random(3);
  auto arena = new_arena(4 * kMiB);
  const Lease channel = Window::create(*arena);
  const Lease shared = new_lease(*arena);
  Progress& progress = *new (shared.data()) Progress{};
  std::vector<std::unique_ptr<Child>> workers(4);
  const int kills = under_valgrind() ? 8 : kThreadSanitizer || kAddressSanitizer ? 30 : 150;
  for (int kill = 0; kill < kills; ++kill) {
    for (auto& worker : workers) {
      if (worker == nullptr) {
        worker = std::make_unique<Child>([&, own = random()] { return work(*arena, channel, progress, own); });
      }
    }
    // The survivors must make progress before the next kill.
    const std::uint64_t until = progress.rounds + 5 + random() % 200;
    const std::int64_t began = monotonic_ns();
    while (progress.rounds < until) {
      REQUIRE(monotonic_ns() - began < 60'000'000'000);
      std::this_thread::yield();
    }
    workers[random() % workers.size()].reset();
  }
  workers.clear();
  CHECK(progress.damaged == 0);
  arena->participants().check(0);
  REQUIRE(arena->reconcile(patience()).ok());
  Window& window = Window::of(*arena, channel.ref());
  while (window.queued() != 0) arena->holders().drop(window.get(*arena));
  CHECK(check_arena(*arena) == "");
  CHECK(arena->inspector().stats().blocks == 2);
}
