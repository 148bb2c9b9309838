// Measures blocks of an arena: allocating and freeing them, and pinning them as views do.
#include <benchmark/benchmark.h>

#include <memory>

#include "memory/arena.h"

namespace shmtree::bench {
namespace {

using memory::Arena;
using memory::BlockKind;
using platform::WaitContext;

std::shared_ptr<Arena> arena;  // arena of the running measurement; all its threads use it

void make_arena(const benchmark::State&) {
  arena = Arena::create({.max_bytes = std::uint64_t{256} << 20}).value();
}
void drop_arena(const benchmark::State&) {
  arena.reset();
}

void allocate_and_free(benchmark::State& state) {
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  for (auto _ : state) {
    auto block = arena->allocate(bytes, BlockKind::kMessage, WaitContext{});
    benchmark::DoNotOptimize(block->data());
  }
}
BENCHMARK(allocate_and_free)->Arg(1 << 10)->Arg(1 << 20)->Arg(32 << 20)->Setup(make_arena)->Teardown(drop_arena);
BENCHMARK(allocate_and_free)->Arg(1 << 10)->Threads(2)->UseRealTime()->Setup(make_arena)->Teardown(drop_arena);

// Imitates an array that is created, viewed and dropped.
void hold_and_release(benchmark::State& state) {
  for (auto _ : state) {
    auto lease = arena->hold_new(arena->allocate(1024, BlockKind::kArray, WaitContext{}).value());
    benchmark::DoNotOptimize(lease->data());
  }
}
BENCHMARK(hold_and_release)->Setup(make_arena)->Teardown(drop_arena);

}  // namespace
}  // namespace shmtree::bench
