// Writers are killed or stopped before each change of shared memory. No row is torn or lost, and no other process
// blocks.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <thread>
#include <utility>

#include "support/catch2.h"
#include "support/replay_survivors.h"

using namespace shmtree;
using namespace shmtree::test;

#if defined(SHMTREE_CRASH_POINTS)

namespace {

// Child process that stops before its n-th change of shared memory, or exits if it makes fewer.
class StoppedChild {
 public:
  template <class Act>
  StoppedChild(std::int64_t n, Act act) : pid_(fork()) {
    if (pid_ == 0) {
      alarm(280);
      crash_signal = SIGSTOP;
      changes_until_crash.store(n);
      act();
      _exit(0);
    }
    int status = 0;
    stopped_ = waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }
  ~StoppedChild() { end(SIGKILL); }
  StoppedChild(const StoppedChild&) = delete;
  StoppedChild& operator=(const StoppedChild&) = delete;

  int pid() const { return pid_; }
  bool is_stopped() const { return stopped_; }
  // Sends the signal and waits for the exit. After SIGCONT the child runs to its end.
  void end(int signal) {
    if (!std::exchange(stopped_, false)) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
  bool stopped_ = false;
};

}  // namespace

TEST_CASE("A writer that needs a chunk names the stopped process") {
  const int how = GENERATE(SIGKILL, SIGCONT);
  int told = 0;
  bool stopped = true;
  for (std::int64_t stores = 1; stopped; ++stores) {
    const auto store = new_store({.capacity = 12, .rows_per_chunk = 4, .streams = 3});
    Writer writer(store, 1), other(store, 3);
    std::vector<std::uint64_t> known;
    for (std::uint64_t i = 0; i < 14; ++i) known.push_back(add(writer, i).value());
    StoppedChild child(stores, [&] {
      Writer own(store, 2);
      add(own, 100).value();
    });
    stopped = child.is_stopped();
    INFO("stopped at change " << stores);
    const Row row(200);
    const auto added = other.add(row.leaves(), patience(1));
    if (!added) {
      ++told;
      REQUIRE(added.code() == Code::kTimeout);
      CHECK(added.error().message.find("process " + std::to_string(child.pid()) + " ") != std::string::npos);
    }
    known.push_back(add(writer, 14).value());  // the writer has a chunk already
    Reader reader(store, 7);
    Batch batch(16);
    CHECK((sample(reader, batch).ok() && !batch.is_torn()));
    child.end(how);
    CHECK(add(other, 201).ok());
    REQUIRE(is_whole_after_a_kill(store, known, 300));
  }
  CHECK(told > 5);
}

TEST_CASE("A writer waits for the extent of a stopped process") {
  const int how = GENERATE(SIGKILL, SIGCONT);
  int told = 0;
  bool stopped = true;
  for (std::int64_t stores = 1; stopped; ++stores) {
    const auto store = new_store({.capacity = 15'000}, new_arena(96 * kMiB));  // one extent, and no space for a second
    Writer other(store, 3);
    StoppedChild child(stores, [&] {
      Writer own(store, 2);
      add(own, 100).value();
    });
    stopped = child.is_stopped();
    INFO("stopped at change " << stores);
    const Row row(200);
    const auto added = other.add(row.leaves(), patience(1));
    if (!added) {
      ++told;
      INFO(added.error().message);
      REQUIRE(added.code() == Code::kTimeout);
      CHECK(added.error().message.find("process " + std::to_string(child.pid()) + " ") != std::string::npos);
    }
    child.end(how);
    REQUIRE(add(other, 201).ok());
  }
  CHECK(told > 2);
}

// guarantee: replay-clear
TEST_CASE("A kill during clear leaves all rows or none") {
  bool killed = true;
  for (std::int64_t stores = 1; killed; ++stores) {
    const auto store = new_store({.capacity = 12, .rows_per_chunk = 4});
    Writer writer(store, 1);
    std::vector<std::uint64_t> known;
    for (std::uint64_t i = 0; i < 8; ++i) known.push_back(add(writer, i).value());
    killed = killed_at_change(stores, [&] { store->clear(patience()).value(); });
    INFO("killed at change " << stores);
    const std::uint64_t rows = store->size();
    CHECK((rows == 0 || rows == 8));
    if (!killed) CHECK(rows == 0);
    REQUIRE(is_whole_after_a_kill(store, known, 200));
  }
}

// guarantee: replay-crash-safety
TEST_CASE("A writer killed at any store leaves whole rows behind") {
  for (const Kind& kind : kinds()) {
    std::int64_t stores = 1;
    for (bool killed = true; killed; ++stores) {
      const auto store = new_store(kind.options);
      Writer writer(store, 1);
      std::vector<std::uint64_t> known;
      for (std::uint64_t i = 0; i < 14; ++i) known.push_back(add(writer, i).value());
      killed = killed_at_change(stores, [&] {
        Writer own(store, 2);
        for (std::uint64_t i = 0; i < 2; ++i) add(own, 100 + i).value();
        add(own, 102, {.done = true}).value();
        if (kind.options.finals) end_with(own, 103).value();
        add(own, 104).value();
        add(own, 105).value();
        own.end({}, !kind.options.finals, patience()).value();
        add(own, 106, {.done = true}).value();
        std::vector<Row> rows;
        for (std::uint64_t i = 107; i < 113; ++i) rows.emplace_back(i);
        const std::array<RowInfo, 6> infos{RowInfo{}, RowInfo{.done = true}};
        own.extend({.columns = columns_of(rows), .count = rows.size(), .infos = infos.data()}, nullptr, patience())
            .value();
        own.close();
      });
      INFO(kind.name << ", killed at change " << stores);
      REQUIRE(is_whole_after_a_kill(store, known, 200));
    }
    CHECK(stores > 30);
  }
}

#endif

// guarantee: replay-crash-safety
TEST_CASE("A writer stopped in a row blocks no writer and harms no row") {
  const auto store = new_store({.capacity = 8, .rows_per_chunk = 2});
  const Gate begun, go_on;
  Child stopped([&] {
    const auto ticket = store->open_chunk(5, 0, 0, patience()).value();  // busy, as in the middle of its first row
    begun.open(ticket);
    go_on.wait();
    for (const replay::Leaf& leaf : store->shape().leaves) {
      std::memset(store->leaf(leaf, ticket, 0), 0x77, leaf.bytes);
    }
    store->leave_chunk({.ticket = ticket, .rows = 1, .ready = 1});
    Writer writer(store, 5);
    return add(writer, 1000).ok();
  });
  const std::uint64_t ticket = begun.wait();
  Writer writer(store, 1);
  std::set<std::uint64_t> tickets;
  for (std::uint64_t i = 0; i < 100; ++i) tickets.insert(add(writer, i).value() / 2);
  CHECK(tickets.count(ticket + store->shape().chunks) == 0);  // the writer skipped that ticket
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < 8; ++i) indices.push_back(add(writer, i).value());
  go_on.open();
  REQUIRE(stopped.succeeded());
  for (std::uint64_t i = 2; i < 8; ++i) CHECK(row_at(store, indices[i]) == i);
  CHECK_FALSE(row_at(store, ticket * 2));
}

TEST_CASE("Threads sample whole rows while others add") {
  const auto store = new_store({.capacity = 16, .rows_per_chunk = 4, .streams = 2});
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  for (std::uint32_t stream = 1; stream <= 2; ++stream) {
    threads.emplace_back([&, stream] {
      Writer writer(store, stream);
      for (std::uint64_t i = 0; i < 2'000; ++i) add(writer, i).value();
    });
  }
  threads.emplace_back([&] {
    Reader reader(store, 5);
    Batch batch(8);
    for (int i = 0; i < 500; ++i) {
      if (sample(reader, batch).ok()) torn += batch.is_torn();
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == 0);
  CHECK(check_rows(*store).empty());
}

TEST_CASE("A small buffer with several writers shows no torn row") {
  const auto store = new_store({.capacity = 16, .rows_per_chunk = 4, .streams = 3});
  const auto write = [&](std::uint32_t stream) {
    Writer writer(store, stream);
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      if (!add(writer, stream * 1'000'000 + i)) return false;
    }
    return true;
  };
  Child one([&] { return write(1); }), two([&] { return write(2); });
  Reader reader(store, 3);
  Batch batch(32);
  std::uint64_t read = 0;
  Writer own(store, 3);
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    add(own, i).value();
    REQUIRE(sample(reader, batch).ok());
    REQUIRE_FALSE(batch.is_torn());
    read += batch.indices.size();
  }
  REQUIRE(one.succeeded());
  REQUIRE(two.succeeded());
  CHECK(read == 64'000);
  CHECK(check_rows(*store).empty());
}
