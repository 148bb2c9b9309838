#include "replay/files/saver.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "platform/checksum.h"
#include "platform/clock.h"
#include "replay/files/data_file.h"
#include "replay/files/kept_files.h"
#include "replay/files/manifest.h"
#include "replay/files/snapshot.h"

namespace shmtree::replay {

using namespace platform;

namespace {

constexpr std::uint64_t kPartBytes = 16u << 20;  // approximate size of a part; the unit of a rewrite
constexpr std::uint64_t kStateSlots = 65'536;    // slots per state part; the unit of a rewrite
// If less than 1 / kMinShare of the rows remain after a pass, the save starts again: for at least kMinPasses passes
// and kRetryNs.
constexpr std::uint64_t kMinShare = 8;
constexpr int kMinPasses = 4;
constexpr std::int64_t kRetryNs = 1'000'000'000;

class Saver {
 public:
  Saver(const Store& store, const Tables* tables, const Folder& folder, const WaitContext& wait,
        ProgressMeter& progress)
      : store_(store), tables_(tables), folder_(folder), wait_(wait), progress_(progress), now_(Snapshot::of(store)) {}

  // Runs one pass. Returns nullopt, and leaves the folder unchanged, if most rows were overwritten meanwhile and
  // `may_retry` is true.
  Result<std::optional<SaveReport>> run(bool may_retry);

 private:
  std::uint64_t bytes_to_write() const;
  SaveReport report() const;
  Status describe();
  Status write_rows();
  Status write_part(std::vector<RowsEntry>& chunks);
  Status write_bytes(const std::vector<RowsEntry>& chunks);
  Status write_states();
  Status write_state(std::uint64_t first, std::span<const StateEntry> chunks);
  Status begin_file();
  Status finish();
  std::uint64_t row_bytes() const noexcept { return next_.row_bytes(); }

  const Store& store_;
  const Tables* tables_;
  const Folder& folder_;
  const WaitContext& wait_;
  ProgressMeter& progress_;
  Snapshot now_;
  Manifest next_;
  KeptFiles kept_{next_};
  std::optional<DataFile> file_;
  std::uint32_t file_number_ = 0;  // position of file_ in the new manifest
  std::uint64_t newest_ = 0;       // largest number of a file in the folder
};

// Fills in the part of the new manifest that does not depend on the files.
Status Saver::describe() {
  const Shape& shape = store_.shape();
  ManifestHeader& header = next_.header;
  std::memcpy(header.uuid, store_.origin().uuid, sizeof header.uuid);
  header.capacity = shape.capacity;
  header.rows_per_chunk = shape.rows_per_chunk;
  header.record_bytes = shape.record_bytes;
  header.chunks_per_state = kStateSlots / shape.rows_per_chunk;
  header.ahead = static_cast<std::uint16_t>(shape.ahead);
  header.finals = shape.finals ? 1 : 0;
  if (tables_ != nullptr && tables_->limiter() != nullptr) save_limit(*tables_->limiter(), header);
  for (const Leaf& leaf : shape.leaves) next_.leaf_bytes.push_back(leaf.bytes);
  next_.note.assign(store_.note().begin(), store_.note().end());
  for (std::size_t i = 0; tables_ != nullptr && i < tables_->size(); ++i) {
    const Table& table = (*tables_)[i];
    const TableSpec& spec = table.spec();
    next_.tables.push_back({.kind = static_cast<std::uint32_t>(spec.kind),
                            .max_times = spec.max_times,
                            .alpha = spec.alpha,
                            .beta = spec.beta,
                            .eps = spec.eps,
                            .max_priority = table.max_priority(),
                            .samples = table.samples(),
                            .has_leaves = spec.has_leaves() ? 1u : 0u,
                            .unused = 0,
                            .unused_too = 0});
  }
  auto names = folder_.names();
  if (!names) return std::move(names).error();
  bool has_others = false, has_manifest = false;
  for (const std::string& name : *names) {
    newest_ = std::max(newest_, number_of(name));
    has_manifest = has_manifest || name == kManifestName;
    has_others = has_others || (number_of(name) == 0 && name != kManifestName && name != kNextManifestName);
  }
  if (has_others && !has_manifest) {
    return Error{.code = Code::kExists,
                 .message = folder_.path() + " has other files and no replay buffer: save to an empty folder"};
  }
  return success();
}

Status Saver::begin_file() {
  if (file_) return success();
  auto begun = DataFile::begin(folder_, newest_ + 1, store_.origin().uuid, progress_);
  if (!begun) return std::move(begun).error();
  file_.emplace(std::move(*begun));
  next_.files.push_back({});
  file_number_ = static_cast<std::uint32_t>(next_.files.size() - 1);
  return success();
}

Status Saver::write_rows() {
  std::vector<bool> is_used(kept_.parts());
  std::vector<RowsEntry> chunks;
  std::uint64_t bytes = 0;
  for (const StateEntry& chunk : now_.chunks) {
    if (const auto part = kept_.part_with(chunk)) {
      is_used[*part] = true;
      continue;
    }
    chunks.push_back({.ticket = chunk.ticket, .rows = chunk.rows});
    bytes += chunk.rows * row_bytes();
    if (bytes < kPartBytes) continue;
    if (Status done = write_part(chunks); !done) return done;
    bytes = 0;
  }
  if (Status done = write_part(chunks); !done) return done;
  for (std::uint32_t i = 0; i < is_used.size(); ++i) {
    if (is_used[i]) kept_.keep(i);
  }
  return success();
}

// Writes the rows of `chunks` as one part, without chunks that leave the window meanwhile. Empties `chunks`.
Status Saver::write_part(std::vector<RowsEntry>& chunks) {
  while (!chunks.empty()) {
    if (wait_.interrupted()) return Error{.code = Code::kInterrupted, .message = "interrupted"};
    if (Status done = begin_file(); !done) return done;
    const DataFile::Mark mark = file_->mark();
    if (Status done = write_bytes(chunks); !done) return done;
    fence_acquire();  // reads the bytes before `head`
    if (store_.is_in_window(chunks.front().ticket)) {
      next_.parts.push_back({.kind = PartKind::kRows,
                             .file = file_number_,
                             .offset = mark.bytes,
                             .bytes = file_->mark().bytes - mark.bytes,
                             .first = chunks.front().ticket,
                             .chunks = chunks.size(),
                             .checksum = 0,
                             .unused = 0});
      chunks.clear();
      return success();
    }
    file_->go_back(mark);
    std::erase_if(chunks, [&](const RowsEntry& chunk) { return !store_.is_in_window(chunk.ticket); });
    for (const RowsEntry& chunk : chunks) progress_.expect(sizeof chunk + chunk.rows * row_bytes());
  }
  return success();
}

Status Saver::write_bytes(const std::vector<RowsEntry>& chunks) {
  if (Status done = file_->append(chunks.data(), chunks.size() * sizeof(RowsEntry)); !done) return done;
  const Shape& shape = store_.shape();
  Runs runs([&](std::byte* at, std::uint64_t bytes) { return file_->append(at, bytes); });
  for (const Leaf& leaf : shape.regions()) {
    const std::uint64_t bytes = leaf.bytes;
    for (const RowsEntry& chunk : chunks) {
      std::byte* const at = store_.leaf(leaf, chunk.ticket, 0);
      if (at == nullptr) return store_.arena()->unmapped("rows of a replay buffer");
      if (Status done = runs.add(at, chunk.rows * bytes); !done) return done;
    }
  }
  return runs.flush();
}

Status Saver::write_states() {
  const std::uint64_t per_state = next_.header.chunks_per_state;
  const std::span<const StateEntry> chunks = now_.chunks;
  for (std::size_t begin = 0; begin < chunks.size();) {
    const std::uint64_t state = chunks[begin].ticket / per_state;
    std::size_t end = begin;
    while (end < chunks.size() && chunks[end].ticket / per_state == state) ++end;
    if (Status done = write_state(state * per_state, chunks.subspan(begin, end - begin)); !done) return done;
    begin = end;
  }
  return success();
}

Status Saver::write_state(std::uint64_t first, std::span<const StateEntry> chunks) {
  const std::uint64_t rows = store_.shape().rows_per_chunk;
  std::vector<std::byte> state(next_.state_bytes(chunks.size()));
  std::memcpy(state.data(), chunks.data(), chunks.size_bytes());
  std::byte* at = state.data() + chunks.size_bytes();
  for (std::size_t i = 0; i < next_.tables.size(); ++i) {
    const std::uint64_t words = next_.words_of(next_.tables[i]);
    std::byte* const weights = at;
    std::byte* const times = at + chunks.size() * rows * 4;
    at += words * chunks.size() * rows * 4;
    for (std::size_t chunk = 0; words != 0 && chunk < chunks.size(); ++chunk) {
      const std::uint64_t ticket = chunks[chunk].ticket;
      for (std::uint64_t row = 0; row < chunks[chunk].ready; ++row) {
        const LeafState leaf = (*tables_)[i].state(store_.slot(ticket, row), ticket);
        std::memcpy(weights + (chunk * rows + row) * 4, &leaf.weight, 4);
        if (words == 2) std::memcpy(times + (chunk * rows + row) * 4, &leaf.times, 4);
      }
    }
  }
  if (kept_.keep_state(first, state)) return success();
  if (Status done = begin_file(); !done) return done;
  const std::uint64_t offset = file_->mark().bytes;
  next_.parts.push_back({.kind = PartKind::kState,
                         .file = file_number_,
                         .offset = offset,
                         .bytes = state.size(),
                         .first = first,
                         .chunks = chunks.size(),
                         .checksum = crc32c(0, state.data(), state.size()),
                         .unused = 0});
  return file_->append(state.data(), state.size());
}

Status Saver::finish() {
  if (file_) {
    auto ended = file_->end();
    if (!ended) return std::move(ended).error();
    next_.files[file_number_] = *ended;
  }
  progress_.finish();  // before the commit point, so that its exception cancels the save
  next_.header.head = now_.window.head;
  next_.header.tail = now_.window.tail;
  ++next_.header.save;
  Status done = next_.write(folder_);
  if (done) done = folder_.rename(kNextManifestName, kManifestName);
  if (!done) {
    folder_.remove(kNextManifestName);
    return done;
  }
  if (file_) file_->keep();
  if (Status there = folder_.sync(); !there) return there;
  auto names = folder_.names();
  if (!names) return success();  // the next save removes the old files
  for (const std::string& name : *names) {
    const std::uint64_t number = number_of(name);
    const auto is_it = [&](const SavedFile& file) { return file.number == number; };
    const bool is_named = std::any_of(next_.files.begin(), next_.files.end(), is_it);
    if (number != 0 && !is_named) folder_.remove(name);
  }
  return success();
}

// Returns the size of the rows that the kept files lack, of all states, and of the header of the manifest.
std::uint64_t Saver::bytes_to_write() const {
  std::uint64_t bytes = sizeof(ManifestHeader) + next_.state_bytes(now_.chunks.size());
  for (const StateEntry& chunk : now_.chunks) {
    if (!kept_.part_with(chunk)) bytes += sizeof(RowsEntry) + chunk.rows * row_bytes();
  }
  return bytes;
}

SaveReport Saver::report() const {
  SaveReport report{.save = next_.header.save, .rows = now_.rows(), .written = file_ ? file_->mark().bytes : 0};
  for (const SavedFile& file : next_.files) report.bytes += file.bytes;
  return report;
}

Result<std::optional<SaveReport>> Saver::run(bool may_retry) {
  const std::uint64_t rows = now_.rows();
  if (Status done = describe(); !done) return std::move(done).error();
  if (Status done = kept_.choose_parts(folder_, store_, now_); !done) return std::move(done).error();
  kept_.choose();
  if (progress_.is_on()) progress_.expect(bytes_to_write());
  if (Status done = write_rows(); !done) return std::move(done).error();
  now_.forget_before(store_.window().head);
  const std::uint64_t left = now_.rows();
  // A small buffer may have had no row at the moment of the snapshot.
  const bool lost_all_rows = left == 0 && (rows != 0 || store_.size() != 0);
  if (lost_all_rows || (may_retry && left < rows / kMinShare)) {
    if (may_retry) return std::optional<SaveReport>();
    return Error{.code = Code::kUnavailable,
                 .message = "could not save to " + folder_.path() + ": writers overwrote all rows (capacity " +
                            std::to_string(store_.shape().capacity) +
                            ") faster than they were saved, in every attempt; the folder is unchanged"};
  }
  if (Status done = write_states(); !done) return std::move(done).error();
  if (Status done = finish(); !done) return std::move(done).error();
  return std::optional(report());
}

}  // namespace

Result<SaveReport> save(const Store& store, const Tables* tables, const std::string& path, const WaitContext& wait,
                        const ProgressHook& hook) try {
  auto folder = Folder::make(path);
  if (!folder) return std::move(folder).error();
  auto locked = folder->lock(false);
  if (!locked) return std::move(locked).error();
  if (!*locked) {
    return Error{.code = Code::kUnavailable,
                 .message = path + " is locked: another save to it, or load from it, is in progress"};
  }
  ProgressMeter progress(hook);
  const std::int64_t until = monotonic_ns() + kRetryNs;
  for (int pass = 1;; ++pass) {
    auto saved = Saver(store, tables, *folder, wait, progress).run(pass < kMinPasses || monotonic_ns() < until);
    if (!saved) return std::move(saved).error();
    if (*saved) return **saved;
  }
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
