// A buffer from files: docs/replay-files.md has the bytes. Every byte of every file is checked; what was altered, cut
// off or is another buffer's is Code::kCorrupt with the file and the numbers.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "replay/buffer/spec.h"
#include "replay/files/manifest.h"
#include "replay/files/snapshot.h"
#include "replay/sampling/tables.h"

namespace shmtree::replay {

class Loader {
 public:
  // Nobody saves there as long as it lives. kNotFound where there is nothing, kIncompatible for another version,
  // kUnavailable while somebody saves.
  static Result<Loader> open(const std::string& path);

  // What the buffer was made with, as its note says.
  std::span<const std::byte> note() const noexcept { return saved_.note; }
  // Returns the specification of the buffer, from note(). kCorrupt, which names the manifest, if the note cannot be
  // read, or describes other rows than the files have: it may have been altered together with its checksum.
  Result<Spec> spec() const;
  std::span<const std::uint64_t> leaf_bytes() const noexcept { return saved_.leaf_bytes; }
  std::uint64_t capacity() const noexcept { return saved_.header.capacity; }
  std::uint64_t rows_per_place() const noexcept { return saved_.header.rows_per_place; }
  std::uint64_t ahead() const noexcept { return saved_.header.ahead; }
  bool finals() const noexcept { return saved_.header.finals != 0; }

  // Checks `bytes`, the size of an empty buffer of capacity() rows. Call it if the program gives no capacity, so that
  // only the manifest says it. kInvalid if `bytes` is more than 256 MiB plus 16 times the size of the files.
  Status check_overhead(std::uint64_t bytes) const { return saved_.check_overhead(folder_, bytes); }

  // The newest rows that have room, into a store that was just made and that nobody else has: with the same leaves,
  // `ahead` and `finals`, any capacity, and chunks that are no larger (kInvalid otherwise). `tables`: null where there
  // are none; `samplers`: what they are called, or nothing. Rows have the priorities that they had in the table of the
  // same name (without names: of the same number); where there is none that has priorities too, in the first of the
  // same kind, or else in the first with priorities; and else that of new ones. After an error the store is of no use.
  Status load_into(Store& store, const Tables* tables, const platform::WaitContext& wait,
                   std::span<const NamedSampler> samplers = {});

 private:
  struct Way;  // of one load

  Loader(platform::Folder folder, Manifest saved) noexcept : folder_(std::move(folder)), saved_(std::move(saved)) {}

  platform::Folder folder_;
  Manifest saved_;
};

}  // namespace shmtree::replay
