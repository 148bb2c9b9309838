// Readers check every byte of rows and of their successors, while writers are killed continuously.
#include <cmath>
#include <random>

#include "replay/rows/gather.h"
#include "replay/sampling/random.h"
#include "support/catch2.h"
#include "support/replays.h"

#if defined(SHMTREE_CRASH_POINTS)

using namespace shmtree;
using namespace shmtree::test;
using replay::OutputKind;

namespace {

constexpr std::uint32_t kSteps = 3;

// Writes episodes of random lengths, with all kinds of ends, until the process is killed. Numbers increase by one
// within an episode.
void write_until_killed(const std::shared_ptr<Store>& store, std::uint32_t stream, unsigned seed) {
  std::mt19937 random(seed);
  changes_until_crash.store(1 + static_cast<std::int64_t>(random() % 4'000));
  Writer writer(store, stream);
  for (std::uint64_t number = std::uint64_t{stream} << 40;; number += 1'000) {
    const std::uint64_t length = 1 + random() % 12;
    for (std::uint64_t i = 0; i + 1 < length; ++i) add(writer, number + i).value();
    const bool done = random() % 2 == 0;
    add(writer, number + length - 1, {.done = done}).value();
    if (!done || random() % 2 == 0) end_with(writer, number + length, !done).value();
    if (random() % 20 == 0) writer.close();
  }
}

struct Looker {
  static constexpr std::size_t kRows = 64;
  std::shared_ptr<Store> store;
  replay::Gather gather;
  replay::Random random{5};
  std::vector<std::uint64_t> indices = std::vector<std::uint64_t>(kRows);
  std::vector<std::uint64_t> number = indices, after = indices;
  std::vector<std::uint64_t> large = std::vector<std::uint64_t>(512 * kRows), large_after = large;
  std::vector<double> discount = std::vector<double>(kRows);
  std::array<bool, kRows> gone{};

  explicit Looker(const std::shared_ptr<Store>& of)
      : store(of),
        gather(replay::Gather::create(of, {.outputs = {{.leaf = 0},
                                                       {.leaf = 2},
                                                       {.kind = OutputKind::kSuccessor, .leaf = 0},
                                                       {.kind = OutputKind::kSuccessor, .leaf = 2},
                                                       {.kind = OutputKind::kDiscount, .is_double = true}},
                                           .n_step = kSteps,
                                           .gamma = 0.5})
                   .value()) {}

  bool is_whole(std::size_t at) const {
    for (std::size_t i = 0; i < 512; ++i) {
      if (large[512 * at + i] != number[at] || large_after[512 * at + i] != after[at]) return false;
    }
    if (discount[at] == 0) return after[at] - number[at] <= kSteps;  // the episode terminated within kSteps
    return after[at] - number[at] == static_cast<std::uint64_t>(std::lround(-std::log2(discount[at])));
  }
  // Samples rows and adds their number to `seen`. Returns false if a row differs from what was written.
  bool look(std::uint64_t& seen) {
    for (std::uint64_t& index : indices) index = replay::random_row(*store, random);
    const auto to = [](auto& from) { return reinterpret_cast<std::byte*>(from.data()); };
    const std::array<std::byte*, 5> out{to(number), to(large), to(after), to(large_after), to(discount)};
    gather.read(indices, out, gone).value();
    for (std::size_t at = 0; at < kRows; ++at) {
      if (!gone[at] && !is_whole(at)) return false;
      seen += !gone[at];
    }
    return true;
  }
};

}  // namespace

// guarantee: replay-crash-safety
TEST_CASE("Sampled rows and successors stay whole while writers die") {
  for (const std::uint64_t rows_per_chunk : {1u, 4u}) {
    const auto store =
        new_store({.capacity = 48, .rows_per_chunk = rows_per_chunk, .streams = 3, .ahead = kSteps, .finals = true});
    Looker looker(store);
    std::uint64_t seen = 0;
    std::uint32_t stream = 0;
    for (unsigned round = 0; round < 60; ++round) {
      const unsigned seed = 2 * round + 1;
      Child one([&, writer_stream = ++stream] { return write_until_killed(store, writer_stream, seed), true; });
      Child other([&, writer_stream = ++stream] { return write_until_killed(store, writer_stream, seed + 1), true; });
      for (int i = 0; i < 20; ++i) {
        INFO("round " << round);
        REQUIRE(looker.look(seen));
      }
      REQUIRE(one.was_killed());
      REQUIRE(other.was_killed());
      REQUIRE(looker.look(seen));
    }
    CHECK(seen > 10'000);
    // The next writer finds a consistent buffer.
    store->arena()->participants().check(0);
    store->arena()->reconcile(patience()).value();
    Writer writer(store, 1);
    for (std::uint64_t i = 0; i < 100; ++i) add(writer, i).value();
    CHECK(check_rows(*store).empty());
    CHECK(chains_are_right(store));
  }
}

#endif
