// A row that needs successors becomes ready when these are written, or when its episode has ended.
#include "support/catch2.h"
#include "support/replays.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

const std::vector<std::uint64_t> kRowsPerChunk{1, 2, 4, 64};

ShapeOptions options(std::uint64_t rows_per_chunk, std::uint64_t ahead, bool finals = false) {
  return {.capacity = 128, .rows_per_chunk = rows_per_chunk, .ahead = ahead, .finals = finals};
}

}  // namespace

// guarantee: replay-successors
TEST_CASE("A row is ready once all its successors were added") {
  for (const std::uint64_t rows_per_chunk : kRowsPerChunk) {
    for (const std::uint64_t ahead : {0u, 1u, 3u, 5u}) {
      const auto store = new_store(options(rows_per_chunk, ahead));
      Writer writer(store, 1);
      std::vector<std::uint64_t> indices;
      for (std::uint64_t i = 0; i < 20; ++i) {
        indices.push_back(add(writer, i).value());
        CHECK(store->size() == (i + 1 > ahead ? i + 1 - ahead : 0));
        for (std::uint64_t row = 0; row <= i; ++row) {
          CHECK(row_at(store, indices[row]).has_value() == (row + ahead <= i));
        }
      }
      CHECK(chains_are_right(store));
      CHECK(check_rows(*store).empty());
    }
  }
}

TEST_CASE("A done row is ready at once without final observations") {
  for (const std::uint64_t rows_per_chunk : kRowsPerChunk) {
    const auto store = new_store(options(rows_per_chunk, 3));
    Writer writer(store, 1);
    for (std::uint64_t i = 0; i < 4; ++i) add(writer, i).value();
    CHECK(store->size() == 1);
    const std::uint64_t last = add(writer, 4, {.done = true, .truncated = true}).value();
    CHECK(store->size() == 5);
    const Slot at{last / rows_per_chunk, last % rows_per_chunk};
    CHECK(at.bit(store->info(at.ticket).ends) == 1);
    CHECK(at.bit(store->info(at.ticket).truncated) == 1);
    add(writer, 10).value();
    CHECK(store->size() == 5);
    CHECK(writer.end({}, false, patience()).ok());
    CHECK(store->size() == 6);
    CHECK(chains_are_right(store));
    CHECK(check_rows(*store).empty());
  }
}

TEST_CASE("A final observation follows the last row and is no row") {
  for (const std::uint64_t rows_per_chunk : kRowsPerChunk) {
    const auto store = new_store(options(rows_per_chunk, 2, true));
    Writer writer(store, 1);
    for (std::uint64_t i = 0; i < 3; ++i) add(writer, i).value();
    const std::uint64_t last = add(writer, 3, {.done = true}).value();
    CHECK(store->size() == 2);
    REQUIRE(end_with(writer, 4).ok());
    CHECK(store->size() == 4);
    CHECK(writer.added() == 4);
    const Slot at{last / rows_per_chunk, last % rows_per_chunk}, final = at.next(*store);
    CHECK(number_in(*store, final) == 4);
    CHECK(final.bit(store->info(final.ticket).finals) == 1);
    CHECK_FALSE(store->has_row(final.ticket, final.slot));
    CHECK(at.bit(store->info(at.ticket).truncated) == 0);

    const std::uint64_t cut = add(writer, 10).value();
    REQUIRE(end_with(writer, 11, true).ok());
    CHECK(store->size() == 5);
    const Slot row{cut / rows_per_chunk, cut % rows_per_chunk};
    CHECK(row.bit(store->info(row.ticket).truncated) == 1);
    CHECK(chains_are_right(store));
    CHECK(check_rows(*store).empty());
  }
}

TEST_CASE("A done row without its final is ready at the next call") {
  for (const std::uint64_t rows_per_chunk : kRowsPerChunk) {
    const auto store = new_store(options(rows_per_chunk, 1, true));
    Writer writer(store, 1);
    add(writer, 0).value();
    add(writer, 1, {.done = true}).value();
    CHECK(store->size() == 1);
    add(writer, 10, {.done = true}).value();
    CHECK(store->size() == 2);
    REQUIRE(writer.end({}, false, patience()).ok());
    CHECK(store->size() == 3);
    add(writer, 20, {.done = true}).value();
    CHECK(store->size() == 3);
    writer.close();
    CHECK(store->size() == 4);
    CHECK(chains_are_right(store));
    CHECK(check_rows(*store).empty());
  }
}

// guarantee: replay-successors
TEST_CASE("Rows that lack successors stay hidden after close or exit") {
  const auto store = new_store(options(4, 2));
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 10; ++i) add(writer, i).value();
  writer.close();
  CHECK(store->size() == 8);
  Child child([&] {
    Writer own(store, 2);
    for (std::uint64_t i = 0; i < 10; ++i) add(own, 100 + i).value();
    _exit(0);
    return true;
  });
  REQUIRE(child.succeeded());
  CHECK(store->size() == 16);
  add(writer, 200).value();
  CHECK(store->size() == 16);
  CHECK(check_rows(*store).empty());
}

TEST_CASE("An end without rows does nothing and bad finals are refused") {
  const auto store = new_store(options(4, 1, true));
  Writer writer(store, 1);
  CHECK(end_with(writer, 1).ok());
  CHECK(store->window().tail == 1);
  add(writer, 0).value();
  CHECK(writer.end({}, true, patience()).code() == Code::kInvalid);
  const Row row(1);
  CHECK(writer.end(std::array<replay::Column, 1>{row.number.data()}, false, patience()).code() == Code::kInvalid);
  CHECK(store->size() == 0);
  // Leaves that the last observation lacks are zeros.
  CHECK(writer.end(std::array<replay::Column, 3>{row.number.data(), nullptr, nullptr}, false, patience()).ok());
  CHECK(store->size() == 1);
  const auto plain = new_store(options(4, 0));
  Writer other(plain, 1);
  add(other, 0).value();
  CHECK(end_with(other, 1).code() == Code::kInvalid);
}

TEST_CASE("A forked child continues with a stream of its own") {
  const auto store = new_store(options(4, 2));
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 3; ++i) add(writer, i).value();
  Child child([&] {
    for (std::uint64_t i = 0; i < 6; ++i) add(writer, 100 + i).value();
    writer.end({}, false, patience()).value();
    return store->size() == 1 + 6;
  });
  REQUIRE(child.succeeded());
  for (std::uint64_t i = 3; i < 6; ++i) add(writer, i).value();
  CHECK(store->size() == 4 + 6);
  CHECK(chains_are_right(store));
  CHECK(check_rows(*store).empty());
}

TEST_CASE("A slow writer leaves its chunk before the window passes it") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 4, .streams = 2, .ahead = 1});
  Writer slow(store, 1), fast(store, 2);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const std::uint64_t index = add(slow, 1000 + i).value();
    for (std::uint64_t j = 0; j < 20; ++j) add(fast, 20 * i + j).value();
    add(slow, 1000 + ++i).value();
    CHECK(row_at(store, index) == 1000 + i - 1);
    for (std::uint64_t j = 0; j < 20; ++j) add(fast, 20 * i + j).value();
  }
  CHECK(chains_are_right(store));
  CHECK(check_rows(*store).empty());
}

namespace {

struct Told : replay::RowObserver {
  const Store* store = nullptr;
  std::vector<std::uint64_t> indices;
  std::vector<float> priorities;
  std::uint64_t ready = 0;
  bool early = true;

  void before_ready(std::uint64_t first, std::span<const float> given) noexcept override {
    for (std::size_t i = 0; i < given.size(); ++i) {
      indices.push_back(first + i);
      priorities.push_back(given[i]);
      const std::uint64_t rows = store->shape().rows_per_chunk;
      early = early && !store->has_row((first + i) / rows, (first + i) % rows);
    }
  }
  void after_ready(std::uint64_t rows) noexcept override { ready += rows; }
};

}  // namespace

TEST_CASE("Observers see each row once before it can be sampled") {
  for (const std::uint64_t rows_per_chunk : kRowsPerChunk) {
    for (const bool finals : {false, true}) {
      const auto store = new_store(options(rows_per_chunk, 2, finals));
      Told told;
      told.store = store.get();
      Writer writer(store, 1, &told);
      std::vector<std::uint64_t> indices;
      std::vector<float> priorities;
      for (std::uint64_t i = 0; i < 12; ++i) {
        const auto priority = static_cast<float>(i);
        indices.push_back(add(writer, i, {.done = i % 4 == 3, .priority = priority}).value());
        priorities.push_back(priority);
        if (finals && i == 7) REQUIRE(end_with(writer, 8).ok());
        CHECK(told.ready == store->size());
      }
      writer.close();
      CHECK(told.ready == 12);
      CHECK(told.early);
      std::sort(told.indices.begin(), told.indices.end());
      std::sort(told.priorities.begin(), told.priorities.end());
      CHECK(told.indices == indices);
      CHECK(told.priorities == priorities);
    }
  }
}

TEST_CASE("Rows added at once are observed like rows added singly") {
  for (const std::uint64_t rows_per_chunk : kRowsPerChunk) {
    const auto store = new_store(options(rows_per_chunk, 2));
    Told told;
    told.store = store.get();
    Writer writer(store, 1, &told);
    std::vector<Row> rows;
    std::vector<float> priorities;
    std::vector<RowInfo> infos;
    for (std::uint64_t i = 0; i < 100; ++i) {
      rows.emplace_back(i);
      priorities.push_back(static_cast<float>(i));
      infos.push_back({.priority = priorities.back()});
    }
    const auto columns = columns_of(rows);
    std::vector<std::uint64_t> indices(100);
    REQUIRE(writer.extend({.columns = columns, .count = 100, .infos = infos.data()}, indices.data(), patience()).ok());
    CHECK(told.ready == 98);
    CHECK(told.early);
    REQUIRE(writer.end({}, false, patience()).ok());
    CHECK(store->size() == 100);
    for (std::uint64_t i = 0; i < 100; ++i) CHECK(row_at(store, indices[i]) == i);
    std::sort(told.indices.begin(), told.indices.end());
    std::sort(told.priorities.begin(), told.priorities.end());
    CHECK(told.indices == indices);
    CHECK(told.priorities == priorities);
    CHECK(check_rows(*store).empty());
    CHECK(writer.extend({.columns = std::span(columns).first(2), .count = 1}, nullptr, patience()).code() ==
          Code::kInvalid);
  }
}
