// A replay buffer in shared memory: docs/replay-layout.md has the bytes, the order of stores, and why a kill does no
// harm.
//
// What is true: the window [head, tail), and `progress` of each place. Everything else is derived (`reserved`), says
// who is to be looked at (`opening`, `about`), or never changes.
#pragma once

#include "memory/layout.h"
#include "platform/atomics.h"

namespace shmtree::replay {

using memory::Event;
using memory::Identity;

constexpr std::uint64_t kReplayMagic = 0x796c706572746d73;  // "smtreply"
constexpr std::uint32_t kReplayVersion = 1;
constexpr std::uint64_t kMostRowsPerPlace = 64;
constexpr std::uint64_t kMostColumns = 64;
constexpr std::uint64_t kMostExtents = 4096;

// Of a place: which ticket it has, how many rows are there, and whether its owner is in the middle of one.
struct Progress {
  std::uint64_t ticket = 0;  // 0: never opened
  std::uint32_t rows = 0;
  bool closed = false;  // no more rows come
  bool busy = false;

  bool operator==(const Progress&) const noexcept = default;
};
constexpr unsigned kTicketShift = 9;
constexpr std::uint64_t kMostTicket = ~std::uint64_t{0} >> kTicketShift;
constexpr std::uint64_t pack(const Progress& progress) noexcept {
  return progress.ticket << kTicketShift | std::uint64_t{progress.rows} << 2 | (progress.closed ? 2u : 0u) |
         (progress.busy ? 1u : 0u);
}
// Of any word: `rows` may be more than a place has.
constexpr Progress unpack_progress(std::uint64_t word) noexcept {
  return {.ticket = word >> kTicketShift,
          .rows = static_cast<std::uint32_t>(word >> 2 & 0x7f),
          .closed = (word & 2) != 0,
          .busy = (word & 1) != 0};
}
static_assert(unpack_progress(pack({.ticket = 7, .rows = 64, .closed = true})).rows == kMostRowsPerPlace);

// Means something while the place has the ticket that it was written for.
struct About {
  std::atomic<Identity> owner;
  std::atomic<std::uint32_t> stream;
  std::atomic<std::uint64_t> first_row;  // of the stream
  std::uint64_t unused[2];
};
static_assert(sizeof(About) == 32);

struct alignas(64) ReplayHeader {
  // Written once.
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rows_per_place;
  std::uint64_t capacity;
  std::uint64_t places;
  std::uint64_t record_bytes;
  std::uint32_t columns;
  std::uint32_t unused;
  std::uint64_t most_extents;
  std::uint64_t places_per_extent;

  alignas(64) std::atomic<std::uint32_t> lock;
  std::uint32_t unused_too;
  std::atomic<std::uint64_t> head, tail;  // tickets
  std::atomic<std::uint64_t> opening;     // the ticket that is being opened; 0 when `reserved` is right
  std::atomic<std::uint64_t> reserved;    // rows that the places of the window have, or may still get; derived

  Event ready;  // rows were added

  alignas(64) std::uint64_t column_bytes[kMostColumns];
  std::uint64_t note_offset, note_bytes, progress_offset, about_offset;
};
static_assert(offsetof(ReplayHeader, lock) == 64 && offsetof(ReplayHeader, ready) == 128 &&
              offsetof(ReplayHeader, column_bytes) == 192 && offsetof(ReplayHeader, note_offset) == 704);
static_assert(sizeof(ReplayHeader) == 768);

}  // namespace shmtree::replay
