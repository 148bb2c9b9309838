// Chunks that were left before they were full go to writers of new streams, one writer at a time.
#include <array>
#include <set>
#include <thread>

#include "replay/rows/chain.h"
#include "support/catch2.h"
#include "support/replay_survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Writes a stream of `rows` rows and leaves its chunk to the next stream. Returns the indices of the rows.
std::vector<std::uint64_t> short_stream(const std::shared_ptr<Store>& store, std::uint64_t first, std::uint64_t rows) {
  Writer writer(store, std::nullopt);
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < rows; ++i) indices.push_back(add(writer, first + i).value());
  return indices;
}

}  // namespace

// guarantee: replay-chunk-reuse
TEST_CASE("Streams of one row each fill chunks one after another") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8});
  for (std::uint64_t i = 0; i < 50; ++i) CHECK(short_stream(store, i, 1).front() == 8 + i);
  CHECK(store->size() == 50);
  CHECK(store->window().tail == 1 + 7);
  CHECK(check_rows(*store).empty());
}

TEST_CASE("A stream in a shared chunk excludes earlier rows") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8});
  const auto before = short_stream(store, 10, 3), after = short_stream(store, 20, 7);
  CHECK(after.front() == before.back() + 1);
  const replay::Chain chain(*store);
  const Shape& shape = store->shape();
  const auto position = [&](std::uint64_t index) {
    return replay::Position{shape.ticket_of(index), static_cast<std::uint32_t>(shape.slot_of(index))};
  };
  std::array<std::uint64_t, 16> found{};
  CHECK(chain.follow(position(before.front()), 1, found) == 3);
  CHECK(chain.follow(position(after.front()), 1, found) == 7);
  CHECK(found[6] == after.back());  // in the next chunk
  replay::Position at = position(after.front());
  CHECK(chain.step_back(at) == replay::Before::kBegin);
}

TEST_CASE("A chunk is not reused while pending or old or numbered") {
  const auto store = new_store({.capacity = 32, .rows_per_chunk = 8, .ahead = 1});
  short_stream(store, 0, 2);  // the second row waits for a successor
  CHECK(short_stream(store, 10, 2).front() == 16);
  {
    Writer writer(store, 7);
    add(writer, 20).value();
    writer.end({}, true, patience()).value();
  }
  CHECK(short_stream(store, 30, 1).front() == 32);

  const auto other = new_store({.capacity = 32, .rows_per_chunk = 4});
  short_stream(other, 0, 1);
  Writer writer(other, 1);
  for (std::uint64_t i = 0; i < 24; ++i) add(writer, 100 + i).value();
  CHECK(short_stream(other, 1, 1).front() >= other->window().tail * 4 - 4);
  CHECK(check_rows(*other).empty());
}

// guarantee: replay-chunk-reuse
TEST_CASE("Abandoned chunks go to one stream each under concurrency") {
  const auto store = new_store({.capacity = 2048, .rows_per_chunk = 16});
  const auto work = [&](std::uint64_t first) {
    for (std::uint64_t i = 0; i < 100; ++i) short_stream(store, first + 2 * i, 2);
    return true;
  };
  Child one([&] { return work(0); }), two([&] { return work(200); });
  std::thread three([&] { work(400); }), four([&] { work(600); });
  three.join();
  four.join();
  REQUIRE(one.succeeded());
  REQUIRE(two.succeeded());
  CHECK(store->size() == 800);
  CHECK(check_rows(*store).empty());
  std::set<std::uint64_t> rows;
  const replay::Window window = store->window();
  for (std::uint64_t index = window.head * 16; index < window.tail * 16; ++index) {
    if (const auto row = row_at(store, index)) rows.insert(*row);
  }
  CHECK(rows.size() == 800);
}

TEST_CASE("Corrupt offers never give a chunk to two streams") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8});
  const auto rows = short_stream(store, 10, 3);
  Writer busy(store, 1);
  const std::uint64_t of_other = add(busy, 20).value();
  std::uint64_t word = 1;
  for (auto& offer : header_of(*store).offers) offer = word = word < 4 ? word + 1 : word * 3;
  header_of(*store).offers[9] = 1;
  header_of(*store).offers[10] = 1;
  Writer one(store, std::nullopt), two(store, std::nullopt);
  CHECK(add(one, 30).value() == rows.back() + 1);
  CHECK(add(two, 40).value() / 8 > 2);
  add(busy, 21).value();
  CHECK(row_at(store, of_other) == 20);
  CHECK(row_at(store, of_other + 1) == 21);
  CHECK(add(one, 31).value() == rows.back() + 2);
  CHECK(check_rows(*store).empty());
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: replay-chunk-reuse
TEST_CASE("A kill while taking or leaving a chunk leaves whole rows") {
  for (const Kind& kind : kinds()) {
    bool killed = true;
    for (std::int64_t stores = 1; killed; ++stores) {
      const auto store = new_store(kind.options);
      std::vector<std::uint64_t> known = short_stream(store, 0, 1);
      killed = killed_at_change(stores, [&] {
        short_stream(store, 100, 1);
        short_stream(store, 101, 1);
      });
      INFO(kind.name << ", killed at change " << stores);
      short_stream(store, 300, 1);
      REQUIRE(is_whole_after_a_kill(store, known, 200));
    }
  }
}

#endif
