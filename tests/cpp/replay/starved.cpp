// Samplers whose process runs out of memory: a failed call has sampled nothing.
#include <algorithm>
#include <set>

#include "support/catch2.h"
#include "support/failing_memory.h"
#include "support/samples.h"

using namespace shmtree;
using namespace shmtree::test;
using replay::Gather;
using replay::OutputKind;

namespace {

constexpr std::size_t kFrames = 4, kRows = 32, kGone = kFrames - 1;

// A full buffer of one stream, whose rows may be sampled once. The first rows of the window lack frames of their
// stacks.
struct Full {
  std::shared_ptr<Tables> tables;
  std::unique_ptr<replay::Sampler> sampler;
  Gather gather;
  Samples samples{8};
  Status result = success();
};

Full new_full(SamplerKind kind) {
  auto tables = new_tables({.capacity = kRows, .rows_per_chunk = 1}, {{.kind = kind, .max_times = 1}});
  Writer writer(tables->store(), 1, tables.get());
  for (std::uint64_t i = 0; i < 2 * kRows; ++i) add_row(writer, i);
  auto gather =
      Gather::create(tables->store(),
                     {.outputs = {{.kind = OutputKind::kStack, .leaf = 1, .frames = kFrames, .repeats_first = true}}});
  auto sampler = new_sampler(tables);
  return {.tables = std::move(tables), .sampler = std::move(sampler), .gather = std::move(gather).value()};
}

// Returns the rows that may still be sampled.
std::set<std::uint64_t> left_in(const std::shared_ptr<Tables>& tables) {
  std::set<std::uint64_t> left;
  const auto sampler = new_sampler(tables);
  Samples one(1);
  while (one.from(*sampler).ok()) left.insert(one.indices[0]);
  return left;
}

}  // namespace

TEST_CASE("A sample that runs out of memory counts for no row") {
  for (const SamplerKind kind : {SamplerKind::kFifo, SamplerKind::kUniform, SamplerKind::kPrioritized}) {
    std::set<std::uint64_t> usable = left_in(new_full(kind).tables);
    REQUIRE(usable.size() == kRows);
    for (std::size_t i = 0; i < kGone; ++i) usable.erase(usable.begin());
    std::vector<std::byte> out(8 * kFrames * kLeafBytes[1]);
    std::byte* const places[] = {out.data()};
    const auto sample = [&](Full& full) {
      full.result = full.sampler->sample_and_copy(full.gather, full.samples.sample(), places, true, 1);
    };
    fail_each_allocation([&] { return new_full(kind); }, sample,
                         [&](Full& full, bool reached) {
                           const std::set<std::uint64_t> left = left_in(full.tables);
                           if (full.result) {
                             CHECK(left.size() <= kRows - 8);
                             for (const std::uint64_t index : full.samples.indices) CHECK(usable.contains(index));
                           } else {
                             CHECK(reached);
                             CHECK(std::ranges::includes(left, usable));
                           }
                         });
  }
}
