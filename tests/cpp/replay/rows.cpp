// Every attached process can read and sample the rows of a replay buffer until they leave the window.
#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "support/catch2.h"
#include "support/replays.h"
#include "support/versions.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("A row is readable by its index as soon as it was added") {
  const auto store = new_store({.capacity = 100, .rows_per_chunk = 4});
  Writer writer(store, 1);
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < 10; ++i) indices.push_back(add(writer, i).value());
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(row_at(store, indices[i]) == i);
  CHECK(store->size() == 10);
  CHECK_FALSE(row_at(store, 0));
  CHECK_FALSE(row_at(store, indices.back() + 1));
  CHECK(check_rows(*store).empty());
}

TEST_CASE("With one row per chunk a buffer holds exactly its capacity") {
  const auto store = new_store({.capacity = 10, .rows_per_chunk = 1});
  Writer writer(store, 1);
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < 35; ++i) {
    indices.push_back(add(writer, i).value());
    CHECK(store->size() == std::min<std::uint64_t>(i + 1, 10));
    for (std::uint64_t old = 0; old <= i; ++old) {
      CHECK(row_at(store, indices[old]).has_value() == (old + 10 > i));
    }
  }
  CHECK(check_rows(*store).empty());
}

TEST_CASE("Each open chunk leaves at most one chunk of capacity unused") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8, .streams = 2});
  Writer one(store, 1), other(store, 2);
  for (std::uint64_t i = 0; i < 500; ++i) {
    add(i % 3 == 0 ? one : other, i).value();
    CHECK(store->size() <= 64);
    if (i > 64) CHECK(store->size() >= 64 - 2 * 8);
  }
  CHECK(check_rows(*store).empty());
}

TEST_CASE("Chunks that are closed early still hold their rows") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8});
  for (std::uint64_t i = 0; i < 40; ++i) {
    Writer writer(store, 1);
    add(writer, i).value();
  }
  CHECK(check_rows(*store).empty());
  CHECK(store->size() >= 9);  // the number of chunks
}

TEST_CASE("The window is valid at all times while chunks are opened") {
  const auto store = new_store({.capacity = 8, .rows_per_chunk = 4});
  std::atomic<bool> over{false};
  std::thread adds([&] {
    for (std::uint64_t number = 0; number < 20'000; ++number) {
      Writer writer(store, 1);
      add(writer, number).value();  // its chunk closes with one row, so that all chunks are in the window
    }
    over = true;
  });
  std::uint64_t last = 0;
  bool is_there = true;
  while (!over) {
    const replay::Window found = store->window();
    is_there = is_there && found.tail >= std::max<std::uint64_t>(last, 1) && found.head <= found.tail;
    last = found.tail;
  }
  adds.join();
  CHECK(is_there);
}

TEST_CASE("Rows are sampled uniformly") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8});
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 50; ++i) add(writer, i).value();
  Reader reader(store, 42);
  std::map<std::uint64_t, int> sampled;
  Batch batch(100);
  for (int i = 0; i < 500; ++i) {
    REQUIRE(sample(reader, batch).ok());
    REQUIRE_FALSE(batch.is_torn());
    for (const std::uint64_t number : batch.number) ++sampled[number];
  }
  REQUIRE(sampled.size() == 50);
  // The expected number for each row is 1,000; the standard deviation is 31.
  for (const auto& [number, times] : sampled) CHECK((800 < times && times < 1200));
}

TEST_CASE("Sampling from an empty buffer reports kEmpty") {
  const auto store = new_store({.capacity = 64});
  Reader reader(store, 1);
  Batch batch(4);
  CHECK(sample(reader, batch).code() == Code::kEmpty);
}

TEST_CASE("A row with too few columns is refused and not added") {
  const auto store = new_store({.capacity = 64});
  Writer writer(store, 1);
  const Row row(3);
  const std::array<replay::Column, 2> fewer{row.number.data(), row.small.data()};
  CHECK(writer.add(fewer, patience()).code() == Code::kInvalid);
  CHECK(store->size() == 0);
}

TEST_CASE("An invalid shape is refused with its numbers") {
  const auto refused = [](std::vector<std::uint64_t> leaves, const ShapeOptions& options, const std::string& number) {
    const auto shape = replay::shape_of(leaves, options);
    return shape.code() == Code::kInvalid && shape.error().message.find(number) != std::string::npos;
  };
  CHECK(refused({8}, {.capacity = 0}, "0"));
  CHECK(refused({8}, {.capacity = 100, .rows_per_chunk = 12}, "12"));
  CHECK(refused({8}, {.capacity = 100, .rows_per_chunk = 128}, "128"));
  CHECK(refused({8}, {.capacity = 100, .streams = std::uint64_t{1} << 60}, "1152921504606846976"));
  CHECK(refused({8}, {.capacity = 100, .streams = std::uint64_t{1} << 40}, "exceed the largest arena"));
  CHECK(refused({8, 0}, {.capacity = 100}, "0 bytes"));
  CHECK(refused({}, {.capacity = 100}, "at least one leaf"));
  CHECK(refused(std::vector<std::uint64_t>(65, 1000), {.capacity = 100}, "65"));
  CHECK(refused({std::uint64_t{1} << 30}, {.capacity = 1 << 20}, "1048576"));
}

TEST_CASE("A buffer grows by extents and frees them on last detach") {
  const auto arena = new_arena(256 * kMiB);
  const std::uint64_t before = used_bytes(*arena);
  {
    const auto store = new_store({.capacity = 40'000}, arena);
    const std::uint64_t empty = used_bytes(*arena);
    Writer writer(store, 1);
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < 20'000; ++i) last = add(writer, i).value();
    CHECK(row_at(store, last) == 19'999);
    CHECK(used_bytes(*arena) > empty + 20'000 * 4096);
    arena->reconcile(patience()).value();  // keeps the extents, which the buffer's list of references names
    CHECK(row_at(store, last) == 19'999);
  }
  CHECK(used_bytes(*arena) == before);
}

TEST_CASE("Another process opens a buffer by its block and adds rows") {
  const auto arena = new_arena();
  const auto store = new_store({.capacity = 100, .rows_per_chunk = 4}, arena);
  Writer writer(store, 1);
  const std::uint64_t first = add(writer, 1).value();
  Child child([&] {
    auto opened = Store::open(arena, store->block(), kLeafBytes, patience());
    if (!opened || (*opened)->note().size() != 13) return false;
    Writer own(*opened, 2);
    return row_at(*opened, first) == 1 && add(own, 2).ok();
  });
  REQUIRE(child.succeeded());
  CHECK(store->size() == 2);
  CHECK(Store::open(arena, store->block(), std::array<std::uint64_t, 1>{8}, patience()).code() == Code::kIncompatible);
  const auto array = filled_lease(*arena, 4096, 0);
  CHECK(Store::open(arena, array.ref(), kLeafBytes, patience()).code() == Code::kIncompatible);
  const memory::BlockRef gone = new_lease(*arena).ref();
  CHECK(Store::open(arena, gone, kLeafBytes, patience()).code() == Code::kNotFound);
}

TEST_CASE("open and note_at name both versions of a replay buffer") {
  const auto arena = new_arena();
  const auto store = new_store({.capacity = 100}, arena);
  header_of(*store).version = 77;
  const auto opened = Store::open(arena, store->block(), kLeafBytes, patience());
  CHECK(names_versions(opened.error(), 77, replay::kReplayVersion));
  CHECK(names_versions(Store::note_at(arena, store->block(), patience()).error(), 77, replay::kReplayVersion));
}

TEST_CASE("A writer in a forked child opens its own chunk") {
  const auto store = new_store({.capacity = 100, .rows_per_chunk = 8});
  Writer writer(store, 1);
  const std::uint64_t before = add(writer, 1).value();
  Child child([&] { return add(writer, 2).value() / 8 != before / 8; });
  REQUIRE(child.succeeded());
  CHECK(add(writer, 3).value() == before + 1);
  CHECK(store->size() == 3);
}

TEST_CASE("The tables area is zeroed and shared and of the given size") {
  const auto arena = new_arena();
  const auto shape = replay::shape_of(kLeafBytes, {.capacity = 100}).value();
  const auto store = Store::create(arena, shape, {}, patience(), 1000).value();
  const std::span<std::byte> area = store->tables_area();
  REQUIRE(area.size() == 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(area.data()) % 64 == 0);
  CHECK(std::ranges::all_of(area, [](std::byte at) { return at == std::byte{0}; }));
  area[999] = std::byte{7};
  const auto opened = Store::open(arena, store->block(), kLeafBytes, patience()).value();
  REQUIRE(opened->tables_area().size() == 1000);
  CHECK(opened->tables_area()[999] == std::byte{7});
  header_of(*store).tables_bytes = std::uint64_t{1} << 40;
  CHECK(Store::open(arena, store->block(), kLeafBytes, patience()).code() == Code::kIncompatible);
}

// guarantee: replay-clear
TEST_CASE("A cleared buffer is empty and later rows get larger indices") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 8, .streams = 2, .ahead = 1});
  Writer one(store, 1), other(store, 2);
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < 50; ++i) last = std::max(add(i % 3 == 0 ? one : other, i).value(), last);
  REQUIRE(store->clear(patience()).ok());
  CHECK(store->size() == 0);
  CHECK(check_rows(*store).empty());
  Reader reader(store, 1);
  Batch batch(8);
  CHECK(sample(reader, batch).code() == Code::kEmpty);
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(add(one, 100 + i).value() > last);
  CHECK(store->size() == 9);
  REQUIRE(sample(reader, batch).ok());
  for (const std::uint64_t number : batch.number) CHECK(number >= 100);
  for (std::uint64_t i = 0; i < 200; ++i) add(other, 200 + i).value();
  CHECK(store->size() >= 64 - 2 * 8 - 1);
  CHECK(check_rows(*store).empty());
}

TEST_CASE("Row counts are right in every opened buffer at any time") {
  const auto store = new_store({.capacity = 30, .rows_per_chunk = 2, .streams = 3, .ahead = 1, .finals = true});
  Writer one(store, 1), other(store, 2);
  const auto again = Store::open(store->arena(), store->block(), kLeafBytes, patience()).value();
  for (std::uint64_t i = 0; i < 600; ++i) {
    Writer& writer = i % 5 == 0 ? other : one;
    add(writer, i, {.done = i % 7 == 0}).value();
    if (i % 7 == 0) end_with(writer, i).value();
    if (i % 50 == 49) other.close();
    if (i == 300) store->clear(patience()).value();
    const std::uint64_t rows = replay::RowCount().count_all(*store);
    if (i % 3 != 0) CHECK(store->size() == rows);
    if (i % 40 == 0 || i > 590) CHECK(again->size() == rows);
  }
}

TEST_CASE("A buffer with a thousand streams uses most of its capacity") {
  const auto store =
      Store::create(new_arena(64 * kMiB),
                    replay::shape_of(std::array<std::uint64_t, 1>{8}, {.capacity = 100'000, .streams = 1'000}).value(),
                    {}, patience())
          .value();
  std::vector<std::unique_ptr<Writer>> writers;
  for (std::uint32_t i = 0; i < 1'000; ++i) writers.push_back(std::make_unique<Writer>(store, i));
  const std::uint64_t row = 7;
  const std::array<replay::Column, 1> leaves{&row};
  for (std::uint64_t i = 0; i < 150'000; ++i) writers[i % 1'000]->add(leaves, patience()).value();
  CHECK(store->size() >= 95'000);
  CHECK(store->size() <= 100'000);
  for (auto& writer : writers) writer->close();
  CHECK(check_rows(*store).empty());
}
