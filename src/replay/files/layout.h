// Layout of the files of a saved replay buffer. docs/internals/replay-files.md describes the bytes, and the effects of
// a kill or a full disk.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "replay/rows/layout.h"

namespace shmtree::replay {

static_assert(std::endian::native == std::endian::little, "files have the machine's numbers");

constexpr std::uint64_t kManifestMagic = 0x6465766173746d73;  // "smtsaved"
constexpr std::uint64_t kDataMagic = 0x73776f72746d7373;      // "ssmtrows"
constexpr std::uint32_t kSavedVersion = 2;

struct ManifestHeader {
  std::uint64_t magic;                     // "smtsaved"
  std::uint32_t version;                   // kSavedVersion
  std::uint32_t checksum;                  // checksum of the file, with 0 in this word
  std::uint64_t bytes;                     // size of the file
  std::uint64_t save;                      // number of the save, from 1 on
  unsigned char uuid[16];                  // uuid of the buffer
  std::uint64_t capacity, rows_per_chunk;  // in slots; slots of a chunk
  std::uint64_t head, tail;                // first ticket of the window; the one after its last
  std::uint64_t record_bytes;
  std::uint64_t chunks_per_state;              // chunks of a part of kind kState
  std::uint32_t leaves, tables, files, parts;  // number of leaves; of tables; of files; of parts
  std::uint64_t note_bytes;
  std::uint16_t ahead, finals;
  std::uint32_t unused;

  // The rate limit and its counts; all 0 if there is none.
  double samples_per_insert, error_buffer;
  std::uint64_t min_size;
  std::uint64_t inserts, samples;
  std::uint64_t unused_too[3];
};
static_assert(sizeof(ManifestHeader) == 192);

// After the header: the size of each leaf (8 bytes each), the tables, the files, the parts, the note.

struct SavedTable {
  std::uint32_t kind;
  std::uint32_t max_times;
  double alpha, beta, eps;
  double max_priority;
  std::uint64_t samples;
  std::uint32_t has_leaves;  // 1: parts of kind kState have its weights
  std::uint32_t unused;
  std::uint64_t unused_too;
};
static_assert(sizeof(SavedTable) == 64);

struct SavedFile {
  std::uint64_t number;  // in its name
  std::uint64_t bytes;
  std::uint32_t checksum;  // checksum of the whole file
  std::uint32_t unused;
};
static_assert(sizeof(SavedFile) == 24);

enum class PartKind : std::uint32_t { kRows = 1, kState = 2 };

struct SavedPart {
  PartKind kind;       // rows, or states
  std::uint32_t file;  // position of the file in the manifest
  std::uint64_t offset, bytes;
  std::uint64_t first;     // kState: first ticket of its range
  std::uint64_t chunks;    // number of chunks in the part
  std::uint32_t checksum;  // kState only, since states are used before the whole file was read
  std::uint32_t unused;
};
static_assert(sizeof(SavedPart) == 48);

struct DataHeader {
  std::uint64_t magic;     // "ssmtrows"
  std::uint32_t version;   // kSavedVersion
  std::uint32_t checksum;  // checksum of the header, with 0 in this word
  std::uint64_t number;    // in the name of the file
  unsigned char uuid[16];  // uuid of the buffer that wrote it
  std::uint64_t unused[3];
};
static_assert(sizeof(DataHeader) == 64);

// Entry for a chunk in a part of kind kRows. After all entries: the records of the chunks, then the entries of each
// column.
struct RowsEntry {
  std::uint64_t ticket;
  std::uint64_t rows;  // slots written
};

// Entry for a chunk in a part of kind kState. After all entries: the weights of each table's leaves (float32,
// `rows_per_chunk` per chunk). In a table with `max_times`, the number of samples of each row follows (4 bytes each).
struct StateEntry {
  std::uint64_t ticket, first_row, previous, ends, finals, truncated;
  std::uint32_t stream;
  std::uint16_t rows, ready;  // slots written; slots ready
  std::uint64_t begins;

  bool operator==(const StateEntry&) const noexcept = default;
};
static_assert(sizeof(RowsEntry) == 16 && sizeof(StateEntry) == 64);

constexpr ChunkStreams streams_of(const StateEntry& chunk, std::uint64_t rows_per_chunk) noexcept {
  return {chunk.ticket, rows_per_chunk, {chunk.stream, chunk.first_row}, chunk.begins, chunk.finals};
}

}  // namespace shmtree::replay
