// The tables of a replay buffer in shared memory: docs/replay-layout.md has the bytes and why a kill does no harm.
#pragma once

#include "memory/layout.h"
#include "platform/atomics.h"

namespace shmtree::replay {

constexpr std::uint64_t kTablesMagic = 0x656c626174746d73;  // "smttable"
constexpr std::uint32_t kMostTables = 16;

// By whom rows are sampled.
enum class SamplerKind : std::uint32_t {
  kUniform = 1,      // each as likely
  kPrioritized = 2,  // by (priority + eps)^alpha
  kFifo = 3,         // the oldest
  kLifo = 4,         // the newest
  kMaxPriority = 5,  // those of the largest priority
};

struct alignas(64) TablesHeader {
  std::uint64_t magic;
  std::uint32_t count;
  std::uint32_t has_limit;
  std::uint64_t slots;  // of the buffer: places x rows per place
  std::uint32_t has_members;
  std::uint32_t unused[9];
};
static_assert(sizeof(TablesHeader) == 64);

struct alignas(64) TableHead {
  // Written once.
  std::uint32_t kind;
  std::uint32_t max_times;  // that a row is sampled; 0: as often as it comes
  double alpha, beta, eps;
  std::uint64_t unused[4];

  alignas(64) std::atomic<double> max_priority;  // the largest that was given
  std::atomic<std::uint64_t> samples;            // rows that were sampled
};
static_assert(sizeof(TableHead) == 128 && offsetof(TableHead, max_priority) == 64);
static_assert(std::atomic<double>::is_always_lock_free);

}  // namespace shmtree::replay
