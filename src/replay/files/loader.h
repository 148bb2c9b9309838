// Loads a buffer from files, which docs/internals/replay-files.md describes. Checks every byte of every file. Returns
// Code::kCorrupt, with the file and the numbers, if a file was altered, is truncated or belongs to another buffer.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "replay/buffer/buffer.h"
#include "replay/files/manifest.h"
#include "replay/files/progress.h"
#include "replay/files/snapshot.h"
#include "replay/sampling/tables.h"

namespace shmtree::replay {

class Loader {
 public:
  // Opens a folder, and locks it against saves during the lifetime of the Loader. Returns kNotFound if nothing was
  // saved there, kIncompatible for another version, or kUnavailable while another process saves.
  static Result<Loader> open(const std::string& path);

  // Returns the note of the saved buffer.
  std::span<const std::byte> note() const noexcept { return saved_.note; }
  // Reads the specification of the buffer from note(). Returns kCorrupt, which names the manifest, if the note is
  // invalid or describes other rows than the files have. It may have been altered together with its checksum.
  Result<Spec> spec() const;
  std::span<const std::uint64_t> leaf_bytes() const noexcept { return saved_.leaf_bytes; }
  std::uint64_t capacity() const noexcept { return saved_.header.capacity; }
  std::uint64_t rows_per_chunk() const noexcept { return saved_.header.rows_per_chunk; }
  std::uint64_t ahead() const noexcept { return saved_.header.ahead; }
  bool finals() const noexcept { return saved_.header.finals != 0; }

  // Returns the size of a buffer for the saved rows. Capacity 0: as in the saved buffer. Chunk 0: chosen here, at most
  // as large as the saved chunks.
  BufferSize size_for(const BufferSize& asked) const noexcept;
  // Makes an empty buffer of size_for(asked), in the arena or, if that is null, in one of its own. Checks its size as
  // check_overhead() requires. Other errors: those of Home and Buffer::create().
  Result<std::shared_ptr<Buffer>> make_buffer(Spec spec, const BufferSize& asked, std::shared_ptr<Arena> arena,
                                              const platform::WaitContext& wait) const;
  // Checks `bytes`, the size of an empty buffer of capacity() rows. Call it if the program gives no capacity, since
  // that of the manifest is untrusted. Returns kInvalid if `bytes` is more than 256 MiB plus 16 times the size of the
  // files.
  Status check_overhead(std::uint64_t bytes) const { return saved_.check_overhead(folder_, bytes); }

  // Loads the newest rows that fit into a new store to which no other process is attached. The store needs the same
  // leaves, `ahead` and `finals`, and chunks that are no larger; its capacity may differ. kInvalid otherwise. `tables`
  // may be null; `samplers` are their names, or empty. Each table takes the priorities of the saved table with its
  // name, or with its number if there are no names. Both have to be of the same kind, or both have priorities.
  // Otherwise it takes the priorities of the first saved table of the same kind, or else of the first saved table with
  // priorities. If no saved table has priorities, all rows get the priority of new rows. `progress` gets the bytes read
  // and the size of all files. After an error or an exception of `progress`, discard the store.
  Status load_into(Store& store, const Tables* tables, const platform::WaitContext& wait,
                   std::span<const NamedSampler> samplers = {}, const ProgressHook& progress = {});

 private:
  struct LoadState;  // state of one load

  Loader(platform::Folder folder, Manifest saved) noexcept : folder_(std::move(folder)), saved_(std::move(saved)) {}

  platform::Folder folder_;
  Manifest saved_;
};

}  // namespace shmtree::replay
