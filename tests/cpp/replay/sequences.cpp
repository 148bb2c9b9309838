// Sequences: consecutive rows of one episode.
#include <map>

#include "replay/sampling/sequence_sampler.h"
#include "support/catch2.h"
#include "support/replays.h"

using namespace shmtree;
using namespace shmtree::test;
using replay::Partial;
using replay::SequenceSampler;

namespace {

struct Drawn {
  std::vector<std::uint64_t> indices, number, small, large;
  std::unique_ptr<bool[]> mask;
  std::size_t size;

  explicit Drawn(std::size_t rows)
      : indices(rows, 77), number(rows, 77), small(5 * rows), large(512 * rows), mask(new bool[rows]), size(rows) {}
  Status sample(SequenceSampler& sequences, const replay::Gather& gather) {
    const std::array<std::byte*, 3> out{reinterpret_cast<std::byte*>(number.data()),
                                        reinterpret_cast<std::byte*>(small.data()),
                                        reinterpret_cast<std::byte*>(large.data())};
    return sequences.sample(gather, indices, {mask.get(), size}, out);
  }
};

}  // namespace

// guarantee: replay-sequences
TEST_CASE("A sequence stays in one episode and is masked and padded") {
  const auto store = new_store({.capacity = 200, .rows_per_chunk = 4, .streams = 2});
  Writer one(store, 1), other(store, 2);
  for (std::uint64_t i = 1; i <= 60; ++i) {
    add(one, 1000 * (i / 7) + i, {.done = i % 7 == 6}).value();
    add(other, 1'000'000 + i).value();
  }
  const auto gather = gather_of_rows(store);
  SequenceSampler sequences(store, {.length = 5}, 3);
  Drawn sampled(5 * 100);
  std::map<std::size_t, int> lengths;
  REQUIRE(sampled.sample(sequences, gather).ok());
  for (std::size_t at = 0; at < sampled.size; at += 5) {
    std::size_t rows = 0;
    for (std::size_t row = 0; row < 5; ++row) {
      if (!sampled.mask[at + row]) {
        CHECK(sampled.number[at + row] == 0);
        CHECK(sampled.indices[at + row] == 0);
        continue;
      }
      CHECK(rows++ == row);
      CHECK(sampled.number[at + row] == sampled.number[at] + row);
      CHECK(sampled.large[512 * (at + row) + 511] == sampled.number[at + row]);
    }
    ++lengths[rows];
  }
  CHECK(lengths[5] > 50);
  CHECK(lengths[1] > 0);
}

TEST_CASE("Refusing partial sequences samples all full ones uniformly") {
  const auto store = new_store({.capacity = 200, .rows_per_chunk = 4});
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 60; ++i) add(writer, i, {.done = i % 10 == 9}).value();
  const auto gather = gather_of_rows(store);
  SequenceSampler sequences(store, {.length = 3, .stride = 4, .partial = Partial::kRefuse}, 3);
  Drawn sampled(3 * 2'000);
  REQUIRE(sampled.sample(sequences, gather).ok());
  std::map<std::uint64_t, int> first;
  for (std::size_t at = 0; at < sampled.size; at += 3) {
    CHECK((sampled.mask[at] && sampled.mask[at + 1] && sampled.mask[at + 2]));
    CHECK(sampled.number[at + 2] == sampled.number[at] + 8);
    ++first[sampled.number[at]];
  }
  CHECK(first.size() == 12);                                                      // the first two rows of each episode
  for (const auto& [number, times] : first) CHECK((100 < times && times < 240));  // 167 are expected
}

// guarantee: replay-sequences
TEST_CASE("A burn-in omits rows that lack frames of their stack") {
  const auto store = new_store({.capacity = 32, .rows_per_chunk = 4});
  Writer writer(store, 1);
  for (std::uint64_t i = 1; i <= 100; ++i) add(writer, i).value();
  const replay::Output number{.leaf = 0}, stack{.kind = replay::OutputKind::kStack, .leaf = 0, .frames = 8};
  const auto gather = replay::Gather::create(store, {.outputs = {number, stack}}).value();
  // The first seven rows of the window lack frames, and each burn-in reaches them.
  SequenceSampler sequences(store, {.length = 41, .burn_in = 40}, 3);
  std::vector<std::uint64_t> indices(41 * 50), numbers(indices.size()), stacks(8 * indices.size());
  const auto mask = std::make_unique<bool[]>(indices.size());
  const std::array<std::byte*, 2> out{reinterpret_cast<std::byte*>(numbers.data()),
                                      reinterpret_cast<std::byte*>(stacks.data())};
  REQUIRE(sequences.sample(gather, indices, {mask.get(), indices.size()}, out).ok());
  const std::uint64_t first = 100 - store->size() + 1 + 7;
  for (std::size_t at = 0; at < indices.size(); ++at) {
    const std::uint64_t chosen = numbers[at / 41 * 41 + 40], number_here = chosen - (40 - at % 41);
    const bool is_there = chosen >= first && number_here >= first && number_here <= chosen;
    CHECK(mask[at] == is_there);
    CHECK((indices[at] != 0) == is_there);
    CHECK(numbers[at] == (is_there ? number_here : 0));
    for (std::uint64_t frame = 0; frame < 8; ++frame) {
      CHECK(stacks[8 * at + frame] == (is_there ? number_here - 7 + frame : 0));
    }
  }
}

TEST_CASE("Whole episodes are sampled uniformly or distinctly") {
  const auto store = new_store({.capacity = 200, .rows_per_chunk = 8, .streams = 2});
  Writer one(store, 1), other(store, 2);
  for (std::uint64_t i = 1; i <= 30; ++i) add(one, i, {.done = i == 1 || i == 4 || i == 24}).value();  // 1, 3, 20 rows
  for (std::uint64_t i = 101; i <= 110; ++i) add(other, i, {.done = i == 110}).value();                // 10 rows
  const auto sample = [&](std::size_t n, std::uint64_t length, bool distinct) {
    std::vector<std::uint64_t> indices(n * length);
    const auto mask = std::make_unique<bool[]>(n * length);
    SequenceSampler sequences(store, {.length = length, .partial = Partial::kWhole, .distinct = distinct}, 5);
    std::map<std::uint64_t, std::size_t> rows;  // times that episodes of this many rows were sampled
    Status sampled = sequences.sample(indices, {mask.get(), n * length});
    for (std::size_t at = 0; at < n * length; at += length) {
      ++rows[static_cast<std::uint64_t>(std::count(&mask[at], &mask[at] + length, true))];
    }
    return std::pair(std::move(sampled), rows);
  };
  const auto [status, rows] = sample(4'000, 20, false);
  REQUIRE(status.ok());
  CHECK(rows.size() == 4);
  for (const std::uint64_t length : {1, 3, 10, 20}) CHECK((850 < rows.at(length) && rows.at(length) < 1'150));
  CHECK(sample(4, 20, true).second == std::map<std::uint64_t, std::size_t>{{1, 1}, {3, 1}, {10, 1}, {20, 1}});
  CHECK(sample(3, 10, true).second == std::map<std::uint64_t, std::size_t>{{1, 1}, {3, 1}, {10, 1}});
  const Status refused = sample(4, 10, true).first;
  CHECK(refused.code() == Code::kInvalid);
  CHECK(refused.error().message.find("4 different episodes of at most 10 rows: there are only 3") != std::string::npos);
}

TEST_CASE("Invalid sequences and too short episodes are refused") {
  const auto store = new_store({.capacity = 200, .rows_per_chunk = 4});
  std::vector<std::uint64_t> indices(8);
  const auto mask = std::make_unique<bool[]>(8);
  const auto sample = [&](const replay::SequenceOptions& options) {
    return SequenceSampler(store, options, 1).sample(indices, {mask.get(), 8});
  };
  CHECK(sample({.length = 0}).code() == Code::kInvalid);
  CHECK(sample({.length = 4, .stride = 0}).code() == Code::kInvalid);
  CHECK(sample({.length = 3}).code() == Code::kInvalid);
  CHECK(sample({.length = 4, .burn_in = 4}).code() == Code::kInvalid);
  CHECK(sample({.length = 4, .partial = Partial::kWhole, .burn_in = 1}).code() == Code::kInvalid);
  CHECK(sample({.length = 4, .partial = Partial::kWhole}).code() == Code::kEmpty);
  CHECK(sample({.length = 4}).code() == Code::kEmpty);
  Writer writer(store, 1);
  for (std::uint64_t i = 0; i < 30; ++i) add(writer, i, {.done = i % 3 == 2}).value();
  CHECK(sample({.length = 4}).ok());
  const Status refused = sample({.length = 4, .partial = Partial::kRefuse});
  CHECK(refused.code() == Code::kEmpty);
  CHECK(refused.error().message.find("no sequence of 4 rows") != std::string::npos);
}

// guarantee: replay-sequences
TEST_CASE("Sequences stay whole while other writers overwrite rows") {
  const auto store = new_store({.capacity = 64, .rows_per_chunk = 4, .streams = 2});
  Child child([&] {
    Writer writer(store, 1);
    for (std::uint64_t i = 0; i < 30'000; ++i) add(writer, i, {.done = i % 16 == 15}).value();
    return true;
  });
  Writer writer(store, 2);
  for (std::uint64_t i = 0; i < 16; ++i) add(writer, 1'000'000 + i, {.done = i == 15}).value();
  const auto gather = gather_of_rows(store);
  SequenceSampler sequences(store, {.length = 8}, 3);
  Drawn sampled(8 * 16);
  for (int i = 0; i < 500; ++i) {
    REQUIRE(sampled.sample(sequences, gather).ok());
    for (std::size_t at = 0; at < sampled.size; ++at) {
      const std::uint64_t first = at / 8 * 8;
      const std::uint64_t expected = sampled.mask[at] ? sampled.number[first] + (at - first) : 0;
      const bool whole = sampled.number[at] == expected && sampled.large[512 * at + 500] == expected;
      if (!whole) CHECK(whole);
      if (sampled.mask[at] && at > first) CHECK((sampled.number[at] >= 1'000'000 || sampled.number[at] % 16 != 0));
    }
    add(writer, 2'000'000 + static_cast<std::uint64_t>(i), {.done = true}).value();
  }
  REQUIRE(child.succeeded());
  CHECK(check_rows(*store).empty());
}

TEST_CASE("Sampling sequences ends if damaged words hide all rows") {
  const auto store = new_store({.capacity = 200, .rows_per_chunk = 4});
  Writer writer(store, 1);
  for (std::uint64_t i = 1; i <= 60; ++i) add(writer, i).value();
  const auto gather = gather_of_rows(store);
  SequenceSampler sequences(store, {.length = 5}, 3);
  Drawn sampled(5 * 10);
  REQUIRE(store->size() == 60);
  auto& header = header_of(*store);
  auto* progress =
      reinterpret_cast<std::atomic<std::uint64_t>*>(reinterpret_cast<std::byte*>(&header) + header.progress_offset);
  for (std::uint64_t place = 0; place < store->shape().chunks; ++place) progress[place].store(0);
  CHECK(sampled.sample(sequences, gather).code() == Code::kEmpty);
}
