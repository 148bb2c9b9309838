// A call that waits for rows or for the rate limiter fails with the pids once all of its peers were killed, at any
// instruction.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>

#include "support/caller.h"
#include "support/catch2.h"
#include "support/replay_survivors.h"
#include "support/stepped_child.h"
#include "support/tables.h"

using namespace shmtree;
using namespace shmtree::test;
using replay::Members;
using replay::Membership;
using replay::RateLimit;
using replay::RateLimiter;

namespace {

constexpr RateLimit kOneEach{.samples_per_insert = 1, .min_size = 1, .error_buffer = 1};

std::shared_ptr<Tables> with_members(const RateLimit* limit = nullptr) {
  return new_tables({.capacity = 100, .rows_per_chunk = 4}, {{.kind = SamplerKind::kUniform}}, new_arena(), kLeafBytes,
                    limit, true);
}
WaitContext at_once() {
  return {Deadline::immediate()};
}
// Returns the pids in a kPeerDied error; empty for any other outcome.
template <class Outcome>
std::vector<int> told_by(const Outcome& outcome) {
  if (outcome.ok() || outcome.code() != Code::kPeerDied) return {};
  std::vector<int> pids = outcome.error().pids;
  std::ranges::sort(pids);
  return pids;
}
using Pids = std::vector<int>;

}  // namespace

TEST_CASE("A wait for rows reports dead writers after their last rows") {
  const auto tables = with_members(&kOneEach);
  RateLimiter& limit = *tables->limiter();
  const Gate added;
  CHECK(limit.take_samples(1, at_once()).code() == Code::kEmpty);  // no process was killed
  Child child([&] {
    Writer writer(tables->store(), 2, tables.get());
    added.open(add_row(writer, 1));
    pause();
    return true;
  });
  added.wait();
  CHECK(limit.take_samples(2, at_once()).code() == Code::kEmpty);
  std::atomic<bool> told{false};
  Caller waiting(
      [&](const std::stop_token&) { told = told_by(limit.take_samples(2, patience())) == Pids{child.pid()}; });
  child.kill_and_wait();
  waiting.join();
  CHECK(told);
  CHECK(limit.samples() == 0);
  CHECK(limit.take_samples(1, patience()).ok());  // the dead writer's row can be sampled
  limit.use_samples(1);
  CHECK(told_by(limit.take_samples(1, patience())) == Pids{child.pid()});
}

TEST_CASE("A wait for space reports dead samplers until one returns") {
  const auto tables = with_members(&kOneEach);
  RateLimiter& limit = *tables->limiter();
  const auto sample = [&] {
    const bool sampled = limit.take_samples(1, patience()).ok();
    limit.use_samples(1);
    return sampled;
  };
  const Gate sampled;
  Writer writer(tables->store(), 1, tables.get());
  add_row(writer, 1);
  add_row(writer, 2);
  Child child([&] {
    Membership sampling(tables->samplers());
    sampled.open(sampling.begin().ok() && sample());
    pause();
    return true;
  });
  REQUIRE(sampled.wait() == 1);
  add_row(writer, 3);
  const Row row(4);
  std::atomic<bool> told{false};
  Caller waiting(
      [&](const std::stop_token&) { told = told_by(writer.add(row.leaves(), patience())) == Pids{child.pid()}; });
  child.kill_and_wait();
  waiting.join();
  CHECK(told);
  CHECK(tables->store()->size() == 3);
  Membership sampling(tables->samplers());
  REQUIRE(sampling.begin().ok());
  CHECK(told_by(writer.add(row.leaves(), at_once())).empty());
  REQUIRE(sample());
  CHECK(writer.add(row.leaves(), patience()).ok());
}

TEST_CASE("Dead members are reported once the last live one closes") {
  const auto tables = with_members();
  Members& writers = *tables->writers();
  Child closer([&] {
    Writer writer(tables->store(), 2, tables.get());
    add_row(writer, 1);
    writer.close();
    return true;
  });
  REQUIRE(closer.succeeded());
  CHECK(writers.check().ok());
  Writer own(tables->store(), 1, tables.get()), other(tables->store(), 3, tables.get());
  add_row(own, 2);
  add_row(other, 2);
  const Gate added;
  Child child([&] {
    Writer writer(tables->store(), 2, tables.get());
    added.open(add_row(writer, 1));
    pause();
    return true;
  });
  added.wait();
  child.kill_and_wait();
  CHECK(writers.check().ok());
  own.close();
  CHECK(writers.check().ok());
  other.close();
  CHECK(told_by(writers.check()) == Pids{child.pid()});
  add_row(own, 3);  // a writer that was closed joins again
  CHECK(writers.check().ok());
  own.close();
  CHECK(writers.check().ok());
}

TEST_CASE("A forked child is a member separate from its parent") {
  const auto tables = with_members();
  Members& writers = *tables->writers();
  auto writer = std::make_unique<Writer>(tables->store(), 1, tables.get());
  add_row(*writer, 1);
  Child dropper([&] {
    writer.reset();
    return true;
  });
  REQUIRE(dropper.succeeded());
  const Gate added;
  Child child([&] {
    added.open(add_row(*writer, 2));
    pause();
    return true;
  });
  added.wait();
  Child leaver([&] {
    add_row(*writer, 3);
    writer->close();
    return true;
  });
  REQUIRE(leaver.succeeded());
  child.kill_and_wait();
  CHECK(writers.check().ok());
  writer->close();
  CHECK(told_by(writers.check()) == Pids{child.pid()});
}

TEST_CASE("All objects of a process are one member of a buffer") {
  const auto tables = with_members();
  const auto again = opened_tables(tables);
  REQUIRE(again->has_members());
  CHECK(again->writers() == tables->writers());
  Membership one(tables->samplers()), other(again->samplers());
  REQUIRE(one.begin().ok());
  REQUIRE(other.begin().ok());
  one.end();
  const Gate sampled;
  Child child([&] {
    Membership sampling(tables->samplers());
    sampled.open(sampling.begin().ok());
    pause();
    return true;
  });
  REQUIRE(sampled.wait() == 1);
  child.kill_and_wait();
  CHECK(tables->samplers()->check().ok());
  other.end();
  CHECK(told_by(tables->samplers()->check()) == Pids{child.pid()});
}

TEST_CASE("A process that exits normally is not reported as dead") {
  const auto tables = with_members();
  Child child([&]() -> bool {
    Writer writer(tables->store(), 2, tables.get());
    Membership sampling(tables->samplers());
    add_row(writer, 1);
    const bool begun = sampling.begin().ok();
    replay::BufferMembers::leave_all();
    Writer late(tables->store(), 3, tables.get());
    add_row(late, 2);
    _exit(begun ? 0 : 1);
  });
  REQUIRE(child.succeeded());
  CHECK(tables->writers()->check().ok());
  CHECK(tables->samplers()->check().ok());
}

TEST_CASE("A buffer without death reports has no member words") {
  const auto tables = new_tables({.capacity = 100, .rows_per_chunk = 4}, {{.kind = SamplerKind::kUniform}});
  CHECK_FALSE(tables->has_members());
  CHECK((tables->writers() == nullptr && tables->samplers() == nullptr));
  CHECK(tables->store()->tables_area().size() + sizeof(replay::BufferMemberWords) ==
        with_members()->store()->tables_area().size());
}

TEST_CASE("Corrupt member words give an answer and accept new members") {
  const auto tables = with_members();
  auto& words = *reinterpret_cast<replay::BufferMemberWords*>(tables->store()->tables_area().data() + 64 + 128);
  replay::Random random(11);
  Membership adding(tables->writers());
  for (int round = 0; round < 50; ++round) {
    for (auto& word : words.writers.by_slot) store_relaxed(word, random.next() >> random.below(64));
    const Status checked = tables->writers()->check();
    CHECK((checked.ok() || checked.code() == Code::kPeerDied));
    REQUIRE(adding.begin().ok());
    CHECK(tables->writers()->check().ok());
    adding.end();
  }
}

namespace {

// Process that joins and parts on command.
class Attendant {
 public:
  explicit Attendant(Members& members)
      : child_([this, &members] {
          Membership attending(&members);
          for (;;) {
            bool good = true;
            if (told_.wait() == 1) {
              good = attending.begin().ok();
            } else {
              attending.end();
            }
            done_.open(good);
          }
          return true;
        }) {}
  bool tell(bool joins) const {
    told_.open(joins ? 1 : 0);
    return done_.wait() == 1;
  }
  int kill() {
    child_.kill_and_wait();
    return child_.pid();
  }
  int pid() const { return child_.pid(); }

 private:
  const Gate told_, done_;
  Child child_;
};

}  // namespace

// guarantee: replay-deaths
TEST_CASE("Reported deaths match a model for random joins and kills") {
  const auto seed = GENERATE(1u, 2u, 3u);
  INFO("seed " << seed);
  replay::Random random(seed);
  const auto tables = with_members();
  Members& members = *tables->writers();
  std::vector<std::unique_ptr<Attendant>> all(4);
  for (auto& each : all) each = std::make_unique<Attendant>(members);
  std::set<int> living, killed;
  for (int step = 0; step < 300; ++step) {
    auto& each = all[random.below(all.size())];
    switch (random.below(5)) {
      case 0:
      case 1:
        REQUIRE(each->tell(true));
        if (living.insert(each->pid()).second) killed.clear();
        break;
      case 2:
      case 3:
        REQUIRE(each->tell(false));
        living.erase(each->pid());
        break;
      default:
        const int pid = each->kill();
        if (living.erase(pid) != 0) killed.insert(pid);
        each = std::make_unique<Attendant>(members);
    }
    INFO("step " << step);
    if (living.empty()) {
      REQUIRE(told_by(members.check()) == Pids(killed.begin(), killed.end()));
    } else {
      REQUIRE(members.check().ok());
    }
  }
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: replay-deaths
TEST_CASE("A writer killed at any store is reported if it had begun") {
  bool killed = true;
  std::int64_t stores = 1;
  for (; killed; ++stores) {
    const auto tables = with_members();
    killed = killed_at_change(stores, [&] {
      Writer writer(tables->store(), 2, tables.get());
      add_row(writer, 0);
      add_row(writer, 1);
    });
    INFO("killed at change " << stores);
    Members& writers = *tables->writers();
    const std::size_t told = told_by(writers.check()).size();
    CHECK(told <= (killed ? 1u : 0u));
    if (killed && tables->store()->size() != 0) CHECK(told == 1);
    REQUIRE(is_whole_after_a_kill(tables->store(), {}, 200));
    Writer writer(tables->store(), 1, tables.get());
    add_row(writer, 0);
    CHECK(writers.check().ok());
    writer.close();
    CHECK(writers.check().ok());
  }
  CHECK(stores > 8);
}

TEST_CASE("A kill during cleanup still reports a dead member") {
  bool killed = true;
  std::int64_t stores = 1;
  for (; killed; ++stores) {
    const auto tables = with_members();
    Members& writers = *tables->writers();
    const auto begin_and_stay = [&](const Gate& begun) {
      Membership adding(&writers);
      begun.open(adding.begin().ok());
      pause();
      return true;
    };
    const Gate first, second;
    Child one([&] { return begin_and_stay(first); }), two([&] { return begin_and_stay(second); });
    REQUIRE((first.wait() == 1 && second.wait() == 1));
    one.kill_and_wait();
    two.kill_and_wait();
    killed = killed_at_change(stores, [&] {
      Membership adding(&writers);
      adding.begin().value();
      adding.end();
    });
    INFO("killed at change " << stores);
    CHECK(told_by(writers.check()).empty() != killed);
  }
  CHECK(stores > 4);
}

namespace {

Stepped kill_before_sleep(std::int64_t change, int instructions) {
  INFO("killed " << instructions << " instructions after change " << change);
  const auto tables = with_members();
  Members& writers = *tables->writers();
  SteppedChild child(change, [&] {
    Membership adding(&writers);
    adding.begin().value();
    adding.end();
  });
  const Stepped stepped = child.step(instructions);
  child.kill_now();
  CHECK((writers.check().ok() || told_by(writers.check()).size() == 1));
  Membership adding(&writers);
  REQUIRE(adding.begin().ok());
  CHECK(writers.check().ok());
  adding.end();
  CHECK(writers.check().ok());
  return stepped;
}

}  // namespace

TEST_CASE("A member can be killed at any instruction of join and leave") {
  if (!can_step()) return;
  CHECK(kill_everywhere(20, kill_before_sleep) > 10);
}

#endif
