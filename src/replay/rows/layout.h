// Shared-memory layout of a replay buffer. docs/internals/replay-layout.md describes the bytes, the order of stores,
// and what recovery finds after a kill at each step. Rows are stored in chunks.
//
// Primary state: the window [head, tail), and `progress` of each chunk. `reserved` is derived state. `opening` and
// `ChunkInfo` tell recovery what to check. All other fields are constant.
#pragma once

#include <bit>

#include "memory/layout.h"
#include "platform/atomics.h"
#include "platform/dcheck.h"
#include "platform/other_version.h"

namespace shmtree::replay {

using memory::Event;
using memory::Identity;

constexpr std::uint64_t kReplayMagic = 0x796c706572746d73;  // "smtreply"
constexpr std::uint32_t kReplayVersion = 4;
inline Error other_version(std::uint32_t version) {
  return platform::other_version("the replay buffer has layout version", version, kReplayVersion);
}
constexpr std::uint64_t kMaxRowsPerChunk = 64;
constexpr std::uint64_t kMaxColumns = 64;
constexpr std::uint64_t kMaxExtents = 4096;
constexpr std::uint64_t kMaxAhead = 1024;
constexpr std::size_t kMaxOffers = 64;

// State of one chunk, packed into one word.
struct Progress {
  std::uint64_t ticket = 0;  // 0: never opened.
  std::uint32_t rows = 0;    // Slots written, including the last observations of episodes.
  std::uint32_t ready = 0;   // Slots, from the first, that have all successors that they need.
  bool closed = false;       // The chunk gets no more slots.
  bool busy = false;         // The owner is changing the chunk.

  bool operator==(const Progress&) const noexcept = default;
};
constexpr unsigned kTicketShift = 16;
constexpr std::uint64_t kMaxTicket = ~std::uint64_t{0} >> kTicketShift;
constexpr std::uint64_t kNoRow = ~std::uint64_t{0};  // index -1: the row was not added
constexpr std::uint64_t pack(const Progress& progress) noexcept {
  SHMTREE_DCHECK(progress.rows <= 0x7f && progress.ready <= 0x7f);
  return progress.ticket << kTicketShift | std::uint64_t{progress.ready} << 9 | std::uint64_t{progress.rows} << 2 |
         (progress.closed ? 2u : 0u) | (progress.busy ? 1u : 0u);
}
// Accepts any word: `rows` and `ready` may exceed the slots of a chunk.
constexpr Progress unpack_progress(std::uint64_t word) noexcept {
  return {.ticket = word >> kTicketShift,
          .rows = static_cast<std::uint32_t>(word >> 2 & 0x7f),
          .ready = static_cast<std::uint32_t>(word >> 9 & 0x7f),
          .closed = (word & 2) != 0,
          .busy = (word & 1) != 0};
}
static_assert(unpack_progress(pack({.ticket = 7, .rows = 64, .ready = 64, .closed = true})).ready == kMaxRowsPerChunk);

// Returns a mask with one bit for each slot before `slot`.
constexpr std::uint64_t bits_below(std::uint64_t slot) noexcept {
  return slot >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << slot) - 1;
}

// Returns the number of a stream that was given none, from the index of its first row. The mapping is a bijection of
// the low 32 bits, so two streams share a number only if their indices are 2^32 or more rows apart.
constexpr std::uint32_t stream_from(std::uint64_t index) noexcept {
  auto number = static_cast<std::uint32_t>(index);
  number = (number ^ number >> 16) * 0x7feb352du;
  number = (number ^ number >> 15) * 0x846ca68bu;
  return number ^ number >> 16;
}

// Metadata of one chunk, valid while the chunk has the ticket for which it was written. The bits of a slot are valid
// once the next slot of its stream is written or, if rows need successors, once the slot is ready.
struct alignas(64) ChunkInfo {
  std::atomic<Identity> owner;  // kNoIdentity: the chunk is offered, and the writer that takes it becomes its owner
  std::atomic<std::uint32_t> stream;     // stream of the first slot
  std::atomic<std::uint64_t> first_row;  // Number of rows that the stream had before this chunk.
  std::atomic<std::uint64_t> previous;   // Ticket of the chunk with the stream's preceding slots; 0: it begins here.
  std::atomic<std::uint64_t> next;       // Ticket of the chunk with the slots that follow; 0: none yet.
  std::atomic<std::uint64_t> ends;       // One bit per slot, as in the next three words: last row of an episode.
  std::atomic<std::uint64_t> finals;     // Observation after the last row of an episode; never sampled.
  std::atomic<std::uint64_t> truncated;  // Last row of an episode that was cut off, so not terminal.
  std::atomic<std::uint64_t> begins;     // First row of another stream, after its writer took over the chunk.
};
static_assert(sizeof(ChunkInfo) == 64 && offsetof(ChunkInfo, ends) == 32);

// A position in a stream: the stream's number, and the number of its earlier rows.
struct StreamStep {
  std::uint32_t stream = 0;
  std::uint64_t rows = 0;
};
struct ChunkStreams {
  std::uint64_t ticket, rows_per_chunk;
  StreamStep first;  // position of the first slot
  std::uint64_t begins, finals;
};
// Returns the stream position of a slot of the chunk.
constexpr StreamStep step_of(const ChunkStreams& chunk, std::uint64_t slot) noexcept {
  SHMTREE_DCHECK(slot < kMaxRowsPerChunk);
  if ((chunk.begins | chunk.finals) == 0) return {chunk.first.stream, chunk.first.rows + slot};
  const auto rows_of = [&](std::uint64_t slots) { return static_cast<unsigned>(std::popcount(slots & ~chunk.finals)); };
  const std::uint64_t begun = chunk.begins & bits_below(slot + 1);
  if (begun == 0) return {chunk.first.stream, chunk.first.rows + rows_of(bits_below(slot))};
  const auto begin = static_cast<unsigned>(std::bit_width(begun)) - 1;
  return {stream_from(chunk.ticket * chunk.rows_per_chunk + begin), rows_of(bits_below(slot) & ~bits_below(begin))};
}

// Identity of a buffer, for its files. Tickets below `inherited` have the same rows as in the buffer `parent`.
struct Origin {
  unsigned char uuid[16];
  unsigned char parent[16];  // zeros: none
  std::uint64_t inherited;   // tickets below have the rows of the parent
};
static_assert(sizeof(Origin) == 40);

struct alignas(64) ReplayHeader {
  // Constant after creation.
  std::uint64_t magic;              // "smtreply"
  std::uint32_t version;            // kReplayVersion
  std::uint32_t rows_per_chunk;     // slots of a chunk: L
  std::uint64_t capacity;           // in slots
  std::uint64_t chunks;             // number of chunks
  std::uint64_t record_bytes;       // of a row, for all small leaves
  std::uint32_t columns;            // number of large leaves
  std::uint16_t ahead;              // successors that a row needs before it may be sampled
  std::uint16_t finals;             // 1: an episode's end may have a slot of its own
  std::uint64_t max_extents;        // maximum number of extents
  std::uint64_t chunks_per_extent;  // chunks of an extent

  alignas(64) std::atomic<std::uint32_t> lock;  // a lock word; guards head, tail, opening and reserved
  std::atomic<std::uint32_t> extents_lock;      // held by the process that adds an extent
  std::atomic<std::uint64_t> head, tail;        // first ticket of the window; the one after its last
  std::atomic<std::uint64_t> opening;           // ticket that a process is opening; 0: `reserved` is valid
  std::atomic<std::uint64_t> reserved;          // rows that the window's chunks have or may still get; derived state

  Event ready;  // signalled when rows become ready

  alignas(64) std::uint64_t column_bytes[kMaxColumns];  // bytes of an entry of each column
  std::uint64_t note_offset, note_bytes, progress_offset, info_offset;
  std::uint64_t tables_offset, tables_bytes;

  // Written by the creator before it publishes the buffer.
  Origin origin;

  // Tickets of chunks that their writers left before they were full; 0: none.
  alignas(64) std::atomic<std::uint64_t> offers[kMaxOffers];
};
static_assert(offsetof(ReplayHeader, lock) == 64 && offsetof(ReplayHeader, ready) == 128 &&
              offsetof(ReplayHeader, column_bytes) == 192 && offsetof(ReplayHeader, note_offset) == 704);
static_assert(offsetof(ReplayHeader, origin) == 752 && offsetof(ReplayHeader, offers) == 832 &&
              sizeof(ReplayHeader) == 1344);

}  // namespace shmtree::replay
