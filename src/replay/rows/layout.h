// A replay buffer in shared memory: docs/replay-layout.md has the bytes, the order of stores, and why a kill does no
// harm.
//
// What is true: the window [head, tail), and `progress` of each place. Everything else is derived (`reserved`), says
// who is to be looked at (`opening`, `about`), or never changes.
#pragma once

#include <bit>

#include "memory/layout.h"
#include "platform/atomics.h"
#include "platform/other_version.h"

namespace shmtree::replay {

using memory::Event;
using memory::Identity;

constexpr std::uint64_t kReplayMagic = 0x796c706572746d73;  // "smtreply"
constexpr std::uint32_t kReplayVersion = 3;
inline Error other_version(std::uint32_t version) {
  return platform::other_version("the replay buffer has layout version", version, kReplayVersion);
}
constexpr std::uint64_t kMostRowsPerPlace = 64;
constexpr std::uint64_t kMostColumns = 64;
constexpr std::uint64_t kMostExtents = 4096;
constexpr std::uint64_t kMostAhead = 1024;
constexpr std::size_t kMostOffers = 64;

// Of a place: which ticket it has, how many slots are written and how many of them may be sampled, and whether its
// owner is in the middle of a change.
struct Progress {
  std::uint64_t ticket = 0;  // 0: never opened
  std::uint32_t rows = 0;    // slots that are written, the last observations of episodes among them
  std::uint32_t ready = 0;   // the first of them, which have the successors that they need
  bool closed = false;       // no more come
  bool busy = false;

  bool operator==(const Progress&) const noexcept = default;
};
constexpr unsigned kTicketShift = 16;
constexpr std::uint64_t kMostTicket = ~std::uint64_t{0} >> kTicketShift;
constexpr std::uint64_t kNoRow = ~std::uint64_t{0};  // the index -1: a row that was not added
constexpr std::uint64_t pack(const Progress& progress) noexcept {
  return progress.ticket << kTicketShift | std::uint64_t{progress.ready} << 9 | std::uint64_t{progress.rows} << 2 |
         (progress.closed ? 2u : 0u) | (progress.busy ? 1u : 0u);
}
// Of any word: `rows` and `ready` may be more than a place has.
constexpr Progress unpack_progress(std::uint64_t word) noexcept {
  return {.ticket = word >> kTicketShift,
          .rows = static_cast<std::uint32_t>(word >> 2 & 0x7f),
          .ready = static_cast<std::uint32_t>(word >> 9 & 0x7f),
          .closed = (word & 2) != 0,
          .busy = (word & 1) != 0};
}
static_assert(unpack_progress(pack({.ticket = 7, .rows = 64, .ready = 64, .closed = true})).ready == kMostRowsPerPlace);

// Of slots, a bit each.
constexpr std::uint64_t bits_below(std::uint64_t slot) noexcept {
  return slot >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << slot) - 1;
}

// What a stream is called that began in a place which another one had left, by the index of its first row: no two of
// 2^32 rows have the same.
constexpr std::uint32_t stream_from(std::uint64_t index) noexcept {
  auto number = static_cast<std::uint32_t>(index);
  number = (number ^ number >> 16) * 0x7feb352du;
  number = (number ^ number >> 15) * 0x846ca68bu;
  return number ^ number >> 16;
}

// Means something while the place has the ticket that it was written for. Of the bits, those of a slot are right once
// the slot after it in its stream is written, or once it is ready where rows need successors.
struct alignas(64) About {
  std::atomic<Identity> owner;           // nobody: whoever takes the place's offer
  std::atomic<std::uint32_t> stream;     // of the first slot
  std::atomic<std::uint64_t> first_row;  // of the stream: how many were added to it before
  std::atomic<std::uint64_t> previous;   // ticket of the place with the stream's slots before; 0: it begins here
  std::atomic<std::uint64_t> next;       // of the one with those after; 0: none yet
  std::atomic<std::uint64_t> ends;       // a bit a slot: an episode's last row
  std::atomic<std::uint64_t> finals;     // what came after an episode's last row: never sampled
  std::atomic<std::uint64_t> truncated;  // an episode's last row, which was cut off and is no terminal one
  std::atomic<std::uint64_t> begins;     // another stream's first row, which goes on in a place that was left
};
static_assert(sizeof(About) == 64 && offsetof(About, ends) == 32);

// A stream, and how many rows it had before.
struct StreamStep {
  std::uint32_t stream = 0;
  std::uint64_t rows = 0;
};
struct PlaceStreams {
  std::uint64_t ticket, rows_per_place;
  StreamStep first;  // of the first slot
  std::uint64_t begins, finals;
};
// Of a slot of the place.
constexpr StreamStep step_of(const PlaceStreams& place, std::uint64_t slot) noexcept {
  if ((place.begins | place.finals) == 0) return {place.first.stream, place.first.rows + slot};
  const auto rows_of = [&](std::uint64_t slots) { return static_cast<unsigned>(std::popcount(slots & ~place.finals)); };
  const std::uint64_t begun = place.begins & bits_below(slot + 1);
  if (begun == 0) return {place.first.stream, place.first.rows + rows_of(bits_below(slot))};
  const auto begin = static_cast<unsigned>(std::bit_width(begun)) - 1;
  return {stream_from(place.ticket * place.rows_per_place + begin), rows_of(bits_below(slot) & ~bits_below(begin))};
}

// Who a buffer is, for its files: tickets below `inherited` have the rows that those of `parent` had.
struct Origin {
  unsigned char uuid[16];
  unsigned char parent[16];  // zeros: none
  std::uint64_t inherited;
};
static_assert(sizeof(Origin) == 40);

struct alignas(64) ReplayHeader {
  // Written once.
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rows_per_place;
  std::uint64_t capacity;
  std::uint64_t places;
  std::uint64_t record_bytes;
  std::uint32_t columns;
  std::uint16_t ahead;   // successors that a row needs before it may be sampled
  std::uint16_t finals;  // 1: an episode's end may have a slot of its own
  std::uint64_t most_extents;
  std::uint64_t places_per_extent;

  alignas(64) std::atomic<std::uint32_t> lock;
  std::atomic<std::uint32_t> extents_lock;  // of who brings an extent
  std::atomic<std::uint64_t> head, tail;    // tickets
  std::atomic<std::uint64_t> opening;       // the ticket that is being opened; 0 when `reserved` is right
  std::atomic<std::uint64_t> reserved;      // rows that the places of the window have, or may still get; derived

  Event ready;  // rows were added

  alignas(64) std::uint64_t column_bytes[kMostColumns];
  std::uint64_t note_offset, note_bytes, progress_offset, about_offset;
  std::uint64_t tables_offset, tables_bytes;

  // Written by who made it, before others have it.
  Origin origin;

  alignas(
      64) std::atomic<std::uint64_t> offers[kMostOffers];  // tickets of places that their writers have left; 0: none
};
static_assert(offsetof(ReplayHeader, lock) == 64 && offsetof(ReplayHeader, ready) == 128 &&
              offsetof(ReplayHeader, column_bytes) == 192 && offsetof(ReplayHeader, note_offset) == 704);
static_assert(offsetof(ReplayHeader, origin) == 752 && offsetof(ReplayHeader, offers) == 832 &&
              sizeof(ReplayHeader) == 1344);

}  // namespace shmtree::replay
