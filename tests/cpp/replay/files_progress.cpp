// A function of the program gets the progress of a save or load, and can end it.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/catch2.h"
#include "support/saved.h"

using namespace shmtree;
using namespace shmtree::test;
using replay::ProgressHook;
using replay::ProgressMeter;

namespace {

constexpr ShapeOptions kOptions{.capacity = 64, .rows_per_chunk = 4};

struct Calls {
  std::vector<std::uint64_t> done{}, total{};

  ProgressHook hook() {
    return [this](std::uint64_t bytes, std::uint64_t of) {
      done.push_back(bytes);
      total.push_back(of);
    };
  }
  bool are_right() const {
    return done.size() >= 2 && done.front() == 0 && done.back() == total.back() && total.front() > 0 &&
           std::is_sorted(done.begin(), done.end()) && std::is_sorted(total.begin(), total.end());
  }
};

// Sleeps before each part that a save or load writes or reads, so that the next piece is reported.
class Sleeping : public platform::WaitHooks {
 public:
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return false;
  }
  platform::WaitContext wait() noexcept { return {platform::Deadline::never(), this}; }
};

struct Stopped {};

// Calls `act` in the call of this number, from 0 on.
template <class Act>
ProgressHook in_call(int number, Act act) {
  return [number, act](std::uint64_t, std::uint64_t) mutable {
    if (number-- == 0) act();
  };
}

std::shared_ptr<Store> filled(std::uint64_t rows) {
  const auto store = new_store(kOptions);
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < rows; ++i) add(writer, i).value();
  return store;
}

Result<SaveReport> save_slowly(const std::shared_ptr<Store>& store, const TemporaryFolder& folder,
                               const ProgressHook& hook) {
  Sleeping sleeping;
  return replay::save(*store, nullptr, folder.saved(), sleeping.wait(), hook);
}

Status load_slowly(const TemporaryFolder& folder, const ProgressHook& hook) {
  Sleeping sleeping;
  auto loader = Loader::open(folder.saved()).value();
  const auto store = new_store(kOptions);
  return loader.load_into(*store, nullptr, sleeping.wait(), {}, hook);
}

// Returns true if `act` throws Stopped.
template <class Act>
bool stops(Act act) {
  try {
    act();
    return false;
  } catch (const Stopped&) {
    return true;
  }
}

}  // namespace

TEST_CASE("The progress of a save and load ends at the total") {
  const TemporaryFolder folder;
  const auto store = filled(20);
  Calls saving, loading, nothing;
  const SaveReport report = save_slowly(store, folder, saving.hook()).value();
  CHECK(saving.are_right());
  CHECK(saving.done.size() > 2);
  CHECK(saving.total.back() >= report.written);
  CHECK(saving.total.back() < report.written + 1000);
  load_slowly(folder, loading.hook()).value();
  CHECK(loading.are_right());
  CHECK(loading.done.size() > 2);
  CHECK(loading.total.back() >= report.bytes);
  CHECK(loading.total.back() < report.bytes + 1000);
  CHECK(save_slowly(store, folder, nothing.hook()).value().written == 0);
  CHECK(nothing.are_right());
}

TEST_CASE("The progress of an empty buffer has a total above 0") {
  const TemporaryFolder folder;
  Calls saving, loading;
  save_slowly(new_store(kOptions), folder, saving.hook()).value();
  load_slowly(folder, loading.hook()).value();
  CHECK(saving.are_right());
  CHECK(loading.are_right());
}

TEST_CASE("The progress total grows if a save starts again") {
  const TemporaryFolder folder;
  const auto store = filled(64);
  Writer writer(store, 2);
  Calls calls;
  const ProgressHook count = calls.hook();
  const ProgressHook hook = [&](std::uint64_t done, std::uint64_t total) {
    count(done, total);
    for (std::uint64_t i = 0; calls.done.size() == 1 && i < 256; ++i) add(writer, 1000 + i).value();
  };
  save_slowly(store, folder, hook).value();
  CHECK(calls.are_right());
  CHECK(calls.total.back() > calls.total.front());
  CHECK(rows_of(loaded(folder, kOptions).value()) == rows_of(store));
}

TEST_CASE("A meter reports bytes between the start and the end") {
  Calls calls;
  const ProgressHook hook = calls.hook();
  ProgressMeter meter(hook);
  meter.expect(1'000'000'000'000);
  while (calls.done.size() < 3) meter.add(1);
  meter.finish();
  CHECK(calls.are_right());
  CHECK(calls.done[1] < calls.done[2]);
  CHECK(calls.done[2] < calls.done[3]);
}

TEST_CASE("An exception of progress leaves the previous save intact") {
  const TemporaryFolder folder;
  const auto store = filled(20);
  save(store, folder);
  const auto before = rows_of(store);
  const auto files = files_in(folder.saved());
  Writer writer(store, 2);
  for (std::uint64_t i = 0; i < 8; ++i) add(writer, 100 + i).value();
  int call = 0;
  while (stops([&] { save_slowly(store, folder, in_call(call, [] { throw Stopped(); })).value(); })) {
    INFO("call " << call);
    REQUIRE(files_in(folder.saved()) == files);
    REQUIRE(rows_of(loaded(folder, kOptions).value()) == before);
    ++call;
  }
  CHECK(call > 2);
  CHECK(save(store, folder).save == 3);
  CHECK(rows_of(loaded(folder, kOptions).value()) == rows_of(store));
}

TEST_CASE("An exception of progress ends a load and unlocks the folder") {
  const TemporaryFolder folder;
  const auto store = filled(20);
  save(store, folder);
  int call = 0;
  while (stops([&] { load_slowly(folder, in_call(call, [] { throw Stopped(); })).value(); })) {
    CHECK(save(store, folder).written == 0);
    ++call;
  }
  CHECK(call > 2);
}

// guarantee: replay-files
TEST_CASE("A kill in a call of progress leaves the last save intact") {
  const TemporaryFolder folder;
  const auto store = filled(20);
  save(store, folder);
  const auto before = rows_of(store);
  Writer writer(store, 2);
  for (std::uint64_t i = 0; i < 8; ++i) add(writer, 100 + i).value();
  int call = 0;
  const auto is_killed = [&] {
    Child child([&] { return save_slowly(store, folder, in_call(call, [] { raise(SIGKILL); })).ok(); });
    return child.was_killed();
  };
  for (; is_killed(); ++call) REQUIRE(rows_of(loaded(folder, kOptions).value()) == before);
  CHECK(call > 2);
  CHECK(rows_of(loaded(folder, kOptions).value()) == rows_of(store));
  CHECK(files_in(folder.saved()).size() == 3);  // the manifest, and the rows of both saves
}

// guarantee: replay-files
TEST_CASE("A child that progress forks does not continue the save") {
  const TemporaryFolder folder;
  const auto store = filled(20);
  for (const bool throws : {true, false}) {
    pid_t child = -1;
    const pid_t parent = getpid();
    const auto fork_once = in_call(1, [&] {
      child = fork();
      if (child == 0 && throws) throw Stopped();
    });
    try {
      save_slowly(store, folder, fork_once).value();
      if (getpid() != parent) _exit(1);
    } catch (...) {
      if (getpid() != parent) _exit(0);
      throw;
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    REQUIRE(rows_of(loaded(folder, kOptions).value()) == rows_of(store));
    std::filesystem::remove_all(folder.saved());
  }
}
