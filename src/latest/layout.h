// A Latest in shared memory: docs/latest-layout.md has the bytes, the order of stores, and why a kill does no harm.
//
// What is true: `latest`, and the entries of the window. The rest says who is to be looked at, or never changes.
#pragma once

#include "memory/publishers.h"
#include "platform/atomics.h"

namespace shmtree::latest {

using memory::Event;

constexpr std::uint64_t kLatestMagic = 0x747365746c746d73;  // "smtltest"
constexpr std::uint32_t kLatestVersion = 1;
constexpr std::uint64_t kMostHistory = 1 << 16;

enum LatestFlag : std::uint32_t { kPickles = 1 };

// Changes only while `version` is 0.
struct WindowEntry {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> block;  // packed BlockRef
  std::atomic<std::uint64_t> bytes;  // of the frame, at the block's beginning
  std::uint64_t unused;
};
static_assert(sizeof(WindowEntry) == 32);

struct alignas(64) LatestHeader {
  // Written once.
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t entries;
  std::uint64_t history;
  std::uint32_t flags;
  std::uint32_t unused;

  // Changed under the arena lock.
  alignas(64) std::atomic<std::uint64_t> latest;
  std::atomic<std::uint64_t> publishing;  // not 0: a publication is under way

  Event changed;  // there is a newer version, or nobody is left who publishes

  memory::PublisherWords publishers;
};
static_assert(offsetof(LatestHeader, latest) == 64 && offsetof(LatestHeader, changed) == 128 &&
              offsetof(LatestHeader, publishers) == 192 && sizeof(LatestHeader) == 8384);

}  // namespace shmtree::latest
