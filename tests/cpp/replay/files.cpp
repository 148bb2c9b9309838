// A saved buffer can be loaded with any capacity, and the next save writes only what has changed.
#include <chrono>
#include <limits>
#include <thread>

#include "support/catch2.h"
#include "support/saved.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr ShapeOptions kPlain{.capacity = 64, .rows_per_chunk = 4, .streams = 2};
constexpr ShapeOptions kChains{.capacity = 64, .rows_per_chunk = 4, .streams = 2, .ahead = 2, .finals = true};

std::shared_ptr<Store> filled(const ShapeOptions& options, std::uint64_t rows) {
  auto store = new_store(options);
  Writer writer(store, 7);
  for (std::uint64_t i = 0; i < rows; ++i) add(writer, i).value();
  return store;
}

// Adds rows of two streams alternately, in episodes of five rows.
void add_episodes(const std::shared_ptr<Store>& store, std::uint64_t rows) {
  Writer one(store, 1), other(store, 2);
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (Writer* writer : {&one, &other}) {
      const std::uint64_t number = i + i / 5 + (writer == &other ? 1000 : 0);
      add(*writer, number, {.done = i % 5 == 4}).value();
      if (i % 5 == 4) end_with(*writer, number + 1, i % 2 == 0).value();
    }
  }
}

// Overwrites all rows during a save, before it writes them, for the given number of passes.
class Overwriting final : public platform::WaitHooks {
 public:
  Overwriting(const std::shared_ptr<Store>& store, int times) : writer_(store, 8), times_(times) {}
  void before_block() noexcept override {}
  void after_block() noexcept override {}
  bool interrupted() noexcept override {
    for (std::uint64_t i = 0; times_ > 0 && i < 4 * kPlain.capacity; ++i) add(writer_, 1000 + i).value();
    --times_;
    return false;
  }
  platform::WaitContext wait() noexcept { return {platform::Deadline::never(), this}; }

 private:
  Writer writer_;
  int times_;
};

}  // namespace

TEST_CASE("A save of overwritten rows contains the current rows") {
  const TemporaryFolder folder;
  const auto store = filled(kPlain, 50);
  Overwriting others(store, 3);
  const SaveReport report = replay::save(*store, nullptr, folder.saved(), others.wait()).value();
  CHECK(report.rows == rows_of(store).size());
  CHECK(report.save == 1);
  CHECK(rows_of(loaded(folder, kPlain).value()) == rows_of(store));
  CHECK(files_in(folder.saved()).size() == 2);  // files of earlier passes were removed
}

TEST_CASE("A save without any current row fails and keeps the last one") {
  const TemporaryFolder folder;
  const auto store = filled(kPlain, 50);
  save(store, folder);
  const auto before = rows_of(store);
  Overwriting others(store, std::numeric_limits<int>::max());
  others.interrupted();  // overwrites the rows, so that the files have none of the current ones
  auto refused = replay::save(*store, nullptr, folder.saved(), others.wait());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.code() == Code::kUnavailable);
  CHECK(refused.error().message.find("writers overwrote all rows (capacity 64)") != std::string::npos);
  CHECK(rows_of(loaded(folder, kPlain).value()) == before);
  CHECK(files_in(folder.saved()).size() == 2);
}

// guarantee: replay-incremental-save
TEST_CASE("A saved and loaded buffer has the same rows and indices") {
  const TemporaryFolder folder;
  const auto store = filled(kPlain, 50);
  const SaveReport report = save(store, folder);
  CHECK(report.rows == 50);
  CHECK(report.save == 1);
  const auto back = loaded(folder, kPlain).value();
  CHECK(rows_of(back) == rows_of(store));
  CHECK(check_rows(*back).empty());
  Writer writer(back, 9);
  CHECK(add(writer, 1000).value() > rows_of(store).rbegin()->first);  // tickets continue
  CHECK(back->note().size() == store->note().size());
}

TEST_CASE("Streams and ends and final observations survive a load") {
  const TemporaryFolder folder;
  const auto store = new_store(kChains);
  add_episodes(store, 23);
  save(store, folder);
  const auto back = loaded(folder, kChains).value();
  CHECK(rows_of(back) == rows_of(store));
  CHECK(chains_are_right(back));
  CHECK(check_rows(*back).empty());
  const auto window = store->window();
  for (std::uint64_t ticket = window.head; ticket < window.tail; ++ticket) {
    if (store->progress(ticket).ticket != ticket || store->progress(ticket).rows == 0) continue;
    const replay::ChunkInfo &then = store->info(ticket), &now = back->info(ticket);
    CHECK(load_relaxed(now.stream) == load_relaxed(then.stream));
    CHECK(load_relaxed(now.first_row) == load_relaxed(then.first_row));
    CHECK(load_relaxed(now.ends) == load_relaxed(then.ends));
    CHECK(load_relaxed(now.finals) == load_relaxed(then.finals));
    CHECK(load_relaxed(now.truncated) == load_relaxed(then.truncated));
  }
}

TEST_CASE("Each save contains the ready rows of an active writer") {
  const TemporaryFolder folder;
  const auto store = new_store(kChains);
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 7; ++i) add(writer, i).value();
  save(store, folder);
  CHECK(rows_of(loaded(folder, kChains).value()) == rows_of(store));
  for (std::uint64_t i = 7; i < 18; ++i) add(writer, i).value();
  save(store, folder);
  const auto back = loaded(folder, kChains).value();
  CHECK(rows_of(back) == rows_of(store));
  CHECK(chains_are_right(back));
}

TEST_CASE("A load keeps the newest rows that fit and their indices") {
  const TemporaryFolder folder;
  const auto store = new_store(kChains);
  add_episodes(store, 40);
  save(store, folder);
  const auto all = rows_of(store);
  for (const std::uint64_t capacity : {8u, 20u, 33u, 64u, 500u}) {
    for (const std::uint64_t rows_per_chunk : {1u, 2u, 4u}) {
      INFO(capacity << " rows in chunks of " << rows_per_chunk);
      ShapeOptions options = kChains;
      options.capacity = capacity;
      options.rows_per_chunk = rows_per_chunk;
      const auto back = loaded(folder, options).value();
      const auto some = rows_of(back);
      CHECK(check_rows(*back).empty());
      CHECK(chains_are_right(back));
      REQUIRE_FALSE(some.empty());
      for (const auto& [index, number] : some) REQUIRE(all.at(index) == number);
      CHECK(some.rbegin()->first == all.rbegin()->first);
      if (capacity >= 64) CHECK(some == all);
      if (capacity < 64) CHECK(some.size() + 2 * 4 + 2 >= std::min<std::size_t>(capacity * 4 / 5, all.size()));
      Writer writer(back, 3);
      for (std::uint64_t i = 0; i < capacity + 10; ++i) add(writer, 5000 + i).value();
      CHECK(check_rows(*back).empty());
    }
  }
  ShapeOptions larger = kChains;
  larger.rows_per_chunk = 8;
  CHECK(loaded(folder, larger).code() == Code::kInvalid);
}

// guarantee: replay-incremental-save
TEST_CASE("A save does not write unchanged chunks again") {
  const TemporaryFolder folder;
  const ShapeOptions options{.capacity = 4000, .rows_per_chunk = 16};
  const auto arena = new_arena(128 * kMiB);
  const auto store = new_store(options, arena);
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 3200; ++i) add(writer, i).value();
  const SaveReport first = save(store, folder);
  CHECK(first.written > 3200 * 4096);
  CHECK(save(store, folder).written == 0);
  for (std::uint64_t i = 0; i < 32; ++i) add(writer, 3200 + i).value();
  const SaveReport second = save(store, folder);
  CHECK(second.written >= 32 * 4144);
  CHECK(second.written < first.written / 30);
  CHECK(rows_of(loaded(folder, options, arena).value()) == rows_of(store));
}

TEST_CASE("Only the first buffer to save continues the loaded files") {
  const TemporaryFolder folder;
  save(filled(kPlain, 40), folder);
  const auto one = loaded(folder, kPlain).value(), other = loaded(folder, kPlain).value();
  Writer(one, 1).add(Row(100).leaves(), patience()).value();
  Writer(other, 1).add(Row(200).leaves(), patience()).value();
  CHECK(save(one, folder).written < 3 * 4144 + 4000);
  CHECK(rows_of(loaded(folder, kPlain).value()) == rows_of(one));
  for (const auto& another : {other, filled(kPlain, 5)}) {
    CHECK(replay::save(*another, nullptr, folder.saved(), patience()).code() == Code::kExists);
  }
  CHECK(rows_of(loaded(folder, kPlain).value()) == rows_of(one));
}

TEST_CASE("Many saves leave few files and little excess data") {
  const TemporaryFolder folder;
  const auto store = new_store({.capacity = 256, .rows_per_chunk = 4});
  Writer writer(store, 1);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < 600; ++i) {
    for (std::uint64_t row = 0; row < 5; ++row) add(writer, i).value();
    bytes = save(store, folder).bytes;
    REQUIRE(files_in(folder.saved()).size() <= 36);
  }
  CHECK(bytes < 2 * 256 * 4144 + (64 << 20));
  CHECK(rows_of(loaded(folder, {.capacity = 256, .rows_per_chunk = 4}).value()) == rows_of(store));
}

TEST_CASE("Priorities and sample counts are loaded with the rows") {
  const TemporaryFolder folder;
  const std::vector<replay::TableSpec> specs{{.kind = replay::SamplerKind::kPrioritized},
                                             {.kind = replay::SamplerKind::kUniform},
                                             {.kind = replay::SamplerKind::kFifo, .max_times = 3}};
  const ShapeOptions options{.capacity = 64, .rows_per_chunk = 4};
  const auto tables = new_tables(options, specs);
  const auto store = tables->store();
  Writer writer(store, 1, tables.get());
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < 20; ++i) indices.push_back(add_row(writer, i, static_cast<float>(i + 1)));
  CHECK((*tables)[2].take(store->slot(indices[3] / 4, indices[3] % 4), indices[3] / 4));
  save(store, folder, tables.get());
  update(*tables, {indices[5]}, {50.0}).value();
  CHECK(save(store, folder, tables.get()).written < 10'000);  // the save writes only states
  for (const std::uint64_t rows_per_chunk : {4u, 2u}) {
    const auto back = new_tables({.capacity = 64, .rows_per_chunk = rows_per_chunk}, specs);
    auto loader = Loader::open(folder.saved()).value();
    loader.load_into(*back->store(), back.get(), patience()).value();
    for (const std::uint64_t index : indices) {
      for (const std::size_t table : {0u, 2u})
        CHECK(weight_at(*back, index, table) == weight_at(*tables, index, table));
      const std::uint64_t ticket = index / rows_per_chunk, slot = back->store()->slot(ticket, index % rows_per_chunk);
      CHECK((*back)[2].state(slot, ticket).times == (index == indices[3] ? 1 : 0));
    }
    CHECK(back->max_priority(0) == 50.0);
  }
  const auto other = new_tables(options, {{.kind = replay::SamplerKind::kPrioritized, .alpha = 1.0}});
  auto loader = Loader::open(folder.saved()).value();
  loader.load_into(*other->store(), other.get(), patience()).value();
  CHECK(std::abs(weight_at(*other, indices[9]) - 10.0f) < 1e-3f);  // with another alpha, the priority is preserved
}

TEST_CASE("A folder with other files or in use is refused") {
  const TemporaryFolder folder;
  const auto store = filled(kPlain, 10);
  std::filesystem::create_directory(folder.saved());
  write_bytes(folder.saved() + "/thesis.tex", "years of work");
  CHECK(replay::save(*store, nullptr, folder.saved(), patience()).code() == Code::kExists);
  CHECK(files_in(folder.saved()).size() == 1);
  std::filesystem::remove(folder.saved() + "/thesis.tex");
  CHECK(Loader::open(folder.saved()).code() == Code::kNotFound);
  save(store, folder);
  {
    const auto reading = Loader::open(folder.saved()).value();
    CHECK(replay::save(*store, nullptr, folder.saved(), patience()).code() == Code::kUnavailable);
  }
  CHECK(save(store, folder).save == 2);
  CHECK(Loader::open(folder.saved() + "/nowhere").code() == Code::kNotFound);
}

// guarantee: replay-incremental-save
TEST_CASE("Saves during writes have whole rows with successors") {
  const TemporaryFolder folder;
  ShapeOptions options = kChains;
  options.capacity = 200;
  options.streams = 3;
  const auto store = new_store(options);
  const auto write = [&](std::uint32_t stream) -> bool {
    Writer writer(store, stream);
    for (std::uint64_t i = 0;; ++i) {
      if (!add(writer, stream * 1'000'000 + i + i / 9, {.done = i % 9 == 8})) return false;
      if (i % 9 != 8) continue;
      if (!end_with(writer, stream * 1'000'000 + i + i / 9 + 1)) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // otherwise all rows are overwritten during a save
    }
  };
  Child one([&] { return write(1); }), two([&] { return write(2); });
  for (int saves = 0; saves < 20;) {
    const auto report = replay::save(*store, nullptr, folder.saved(), patience());
    if (!report.ok()) REQUIRE(report.code() == Code::kUnavailable);
    if (!report.ok()) continue;
    ++saves;
    const auto back = loaded(folder, options).value();
    const auto rows = rows_of(back);
    REQUIRE(rows.size() == report->rows);
    for (const auto& [index, number] : rows) REQUIRE(row_at(back, index) == number);
    REQUIRE(chains_are_right(back));
    REQUIRE(check_rows(*back).empty());
  }
  one.kill_and_wait();
  two.kill_and_wait();
  CHECK((one.was_killed() && two.was_killed()));  // neither exited before
}
