// Shared-memory layout of the tables of a replay buffer. docs/internals/replay-layout.md describes the bytes and the
// recovery.
#pragma once

#include "memory/layout.h"
#include "platform/atomics.h"

namespace shmtree::replay {

constexpr std::uint64_t kTablesMagic = 0x656c626174746d73;  // "smttable"
constexpr std::uint32_t kMaxTables = 16;

// Rule by which a table samples rows.
enum class SamplerKind : std::uint32_t {
  kUniform = 1,      // all rows with the same probability
  kPrioritized = 2,  // in proportion to (priority + eps)^alpha
  kFifo = 3,         // the oldest rows first
  kLifo = 4,         // the newest rows first
  kMaxPriority = 5,  // the rows of the largest priority first
};

struct alignas(64) TablesHeader {
  std::uint64_t magic;        // "smttable"
  std::uint32_t count;        // of tables
  std::uint32_t has_limit;    // 1: there is a rate limit
  std::uint64_t slots;        // Shape::slots() of the buffer
  std::uint32_t has_members;  // 1: there are members
  std::uint32_t unused[9];
};
static_assert(sizeof(TablesHeader) == 64);

struct alignas(64) TableHead {
  // Constant after creation.
  std::uint32_t kind;       // SamplerKind
  std::uint32_t max_times;  // maximum number of samples per row; 0: no limit
  double alpha, beta, eps;
  std::uint64_t unused[4];

  alignas(64) std::atomic<double> max_priority;  // largest priority that any row was given
  std::atomic<std::uint64_t> samples;            // number of rows sampled
};
static_assert(sizeof(TableHead) == 128 && offsetof(TableHead, max_priority) == 64);
static_assert(std::atomic<double>::is_always_lock_free);

}  // namespace shmtree::replay
