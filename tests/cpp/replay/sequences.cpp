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
