#include "replay/saver.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "platform/checksum.h"
#include "replay/data_file.h"
#include "replay/manifest.h"
#include "replay/saved_limit.h"
#include "replay/snapshot.h"

namespace shmtree::replay {

using namespace platform;

namespace {

constexpr std::uint64_t kPartBytes = 16u << 20;  // of rows, about: written again when the window goes past them
constexpr std::uint64_t kStateSlots = 65'536;    // whose state is written again when one of them changed
constexpr std::size_t kMostFiles = 32;           // then the smaller half is put together
constexpr std::uint64_t kLeastWaste = 64u << 20;

class Saver {
 public:
  Saver(const Store& store, const Tables* tables, const Folder& folder, const WaitContext& wait)
      : store_(store), tables_(tables), folder_(folder), wait_(wait), now_(Snapshot::of(store)) {}

  Result<SaveReport> run();

 private:
  struct Known {
    std::uint64_t rows = 0;
    std::uint32_t part = 0;
  };

  Status describe();
  Status look_at_old();
  void look_at_part(std::uint32_t number, const UniqueFd& fd);
  void choose_files();
  Status write_rows();
  Status write_part(std::vector<RowsEntry>& places);
  Status write_bytes(const std::vector<RowsEntry>& places);
  Status write_states();
  Status write_state(std::uint64_t first, std::span<const StateEntry> places);
  bool keep_state(std::uint64_t first, const std::vector<std::byte>& state);
  Status begin_file();
  Status finish();
  std::uint64_t row_bytes() const noexcept { return next_.row_bytes(); }
  std::uint32_t kept_file(std::uint32_t old);

  const Store& store_;
  const Tables* tables_;
  const Folder& folder_;
  const WaitContext& wait_;
  Snapshot now_;
  Manifest old_, next_;
  std::vector<UniqueFd> old_files_;                 // none: not to be used
  std::vector<std::uint64_t> live_;                 // bytes of each that still count
  std::unordered_map<std::uint64_t, Known> known_;  // rows of tickets that are in old files
  std::vector<std::uint32_t> kept_;                 // number in the new manifest of each old file, + 1
  std::optional<DataFile> file_;
  std::uint32_t file_number_ = 0;  // in the new manifest
  std::uint64_t newest_ = 0;       // number of a file in the folder
};

// What the new manifest says whatever is in the files.
Status Saver::describe() {
  const Shape& shape = store_.shape();
  ManifestHeader& header = next_.header;
  std::memcpy(header.uuid, store_.origin().uuid, sizeof header.uuid);
  header.capacity = shape.capacity;
  header.rows_per_place = shape.rows_per_place;
  header.record_bytes = shape.record_bytes;
  header.places_per_state = kStateSlots / shape.rows_per_place;
  header.ahead = static_cast<std::uint16_t>(shape.ahead);
  header.finals = shape.finals ? 1 : 0;
  if (tables_ != nullptr && tables_->limit() != nullptr) save_limit(*tables_->limit(), header);
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
                 .message = folder_.path() + " has other files, and no replay buffer: give a folder of its own"};
  }
  return success();
}

// Which rows are in files already: of this buffer, or of that which it was loaded from.
Status Saver::look_at_old() {
  auto read = Manifest::read(folder_);
  if (!read) {
    const Code code = read.error().code;
    const bool is_replaced = code == Code::kNotFound || code == Code::kCorrupt || code == Code::kIncompatible;
    return is_replaced ? success() : Status(std::move(read).error());
  }
  const ManifestHeader &then = read->header, &header = next_.header;
  next_.header.save = then.save;
  const Origin& origin = store_.origin();
  const bool is_own = std::memcmp(then.uuid, origin.uuid, sizeof then.uuid) == 0;
  const bool is_parents = std::memcmp(then.uuid, origin.parent, sizeof then.uuid) == 0;
  if (!is_own && !is_parents) {
    return Error{.code = Code::kExists,
                 .message = folder_.path() + " has the rows of another replay buffer, which would be lost"};
  }
  if (then.rows_per_place != header.rows_per_place || then.record_bytes != header.record_bytes ||
      read->leaf_bytes != next_.leaf_bytes) {
    return success();
  }
  old_ = std::move(*read);
  live_.resize(old_.files.size());
  kept_.resize(old_.files.size());
  for (const SavedFile& file : old_.files) {
    auto fd = folder_.open_file(data_name(file.number));
    auto size = fd.ok() ? file_size(fd->get()) : Result<std::uint64_t>(0);
    const bool is_whole = fd.ok() && size.ok() && *size == file.bytes;
    old_files_.push_back(is_whole ? std::move(*fd) : UniqueFd());
  }
  for (std::uint32_t i = 0; i < old_.parts.size(); ++i) look_at_part(i, old_files_[old_.parts[i].file]);
  if (!is_own) std::erase_if(known_, [&](const auto& each) { return each.first >= origin.inherited; });
  for (const StateEntry& place : now_.places) {
    const auto found = known_.find(place.ticket);
    if (found == known_.end() || found->second.rows != place.rows) continue;
    live_[old_.parts[found->second.part].file] += place.rows * row_bytes();
  }
  return success();
}

void Saver::look_at_part(std::uint32_t number, const UniqueFd& fd) {
  const SavedPart& part = old_.parts[number];
  if (part.kind != PartKind::kRows || !fd.valid()) return;
  std::vector<RowsEntry> entries(part.places);
  if (!read_at(fd.get(), part.offset, entries.data(), entries.size() * sizeof(RowsEntry))) return;
  for (const RowsEntry& entry : entries) {
    Known& known = known_[entry.ticket];  // a place that was written again has more rows than it had
    if (entry.rows > known.rows) known = {.rows = entry.rows, .part = number};
  }
}

// Files of which little counts any more are not used, nor the smaller half of many: their rows are written again.
void Saver::choose_files() {
  std::vector<std::uint32_t> order;
  std::uint64_t bytes = 0, live = 0;
  for (std::uint32_t i = 0; i < old_files_.size(); ++i) {
    if (!old_files_[i].valid()) continue;
    order.push_back(i);
    bytes += old_.files[i].bytes;
    live += live_[i];
  }
  const auto share = [&](std::uint32_t i) {
    return static_cast<double>(live_[i]) / static_cast<double>(old_.files[i].bytes);
  };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return share(a) < share(b); });
  for (const std::uint32_t i : order) {
    if (bytes <= 2 * live + kLeastWaste) break;
    bytes -= old_.files[i].bytes;
    bytes += live_[i];
    old_files_[i] = {};
  }
  std::erase_if(order, [&](auto i) { return !old_files_[i].valid(); });
  if (order.size() <= kMostFiles) return;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return old_.files[a].bytes < old_.files[b].bytes; });
  for (std::size_t i = 0; i < kMostFiles / 2; ++i) old_files_[order[i]] = {};
}

// The file's number in the new manifest.
std::uint32_t Saver::kept_file(std::uint32_t old) {
  if (kept_[old] == 0) {
    next_.files.push_back(old_.files[old]);
    kept_[old] = static_cast<std::uint32_t>(next_.files.size());
  }
  return kept_[old] - 1;
}

Status Saver::begin_file() {
  if (file_) return success();
  auto begun = DataFile::begin(folder_, newest_ + 1, store_.origin().uuid);
  if (!begun) return std::move(begun).error();
  file_.emplace(std::move(*begun));
  next_.files.push_back({});
  file_number_ = static_cast<std::uint32_t>(next_.files.size() - 1);
  return success();
}

Status Saver::write_rows() {
  std::vector<bool> is_used(old_.parts.size());
  std::vector<RowsEntry> places;
  std::uint64_t bytes = 0;
  for (const StateEntry& place : now_.places) {
    const auto found = known_.find(place.ticket);
    if (found != known_.end() && found->second.rows == place.rows) {
      const std::uint32_t part = found->second.part;
      if (old_files_[old_.parts[part].file].valid()) {
        is_used[part] = true;
        continue;
      }
    }
    places.push_back({.ticket = place.ticket, .rows = place.rows});
    bytes += place.rows * row_bytes();
    if (bytes < kPartBytes) continue;
    if (Status done = write_part(places); !done) return done;
    bytes = 0;
  }
  if (Status done = write_part(places); !done) return done;
  for (std::uint32_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) continue;
    next_.parts.push_back(old_.parts[i]);
    next_.parts.back().file = kept_file(old_.parts[i].file);
  }
  return success();
}

// Empties `places`. Those that leave the window meanwhile are left out.
Status Saver::write_part(std::vector<RowsEntry>& places) {
  while (!places.empty()) {
    if (wait_.interrupted()) return Error{.code = Code::kInterrupted, .message = "interrupted"};
    if (Status done = begin_file(); !done) return done;
    const DataFile::Mark mark = file_->mark();
    if (Status done = write_bytes(places); !done) return done;
    fence_acquire();  // the bytes were read before this asks whose they were
    if (store_.is_in_window(places.front().ticket)) {
      next_.parts.push_back({.kind = PartKind::kRows,
                             .file = file_number_,
                             .offset = mark.bytes,
                             .bytes = file_->mark().bytes - mark.bytes,
                             .first = places.front().ticket,
                             .places = places.size(),
                             .checksum = 0,
                             .unused = 0});
      places.clear();
      return success();
    }
    file_->go_back(mark);
    std::erase_if(places, [&](const RowsEntry& place) { return !store_.is_in_window(place.ticket); });
  }
  return success();
}

Status Saver::write_bytes(const std::vector<RowsEntry>& places) {
  if (Status done = file_->append(places.data(), places.size() * sizeof(RowsEntry)); !done) return done;
  const Shape& shape = store_.shape();
  Runs runs([&](std::byte* at, std::uint64_t bytes) { return file_->append(at, bytes); });
  for (const Leaf& leaf : shape.regions()) {
    const std::uint64_t bytes = leaf.bytes;
    for (const RowsEntry& place : places) {
      std::byte* const at = store_.leaf(leaf, place.ticket, 0);
      if (at == nullptr) return no_addresses();
      if (Status done = runs.add(at, place.rows * bytes); !done) return done;
    }
  }
  return runs.flush();
}

Status Saver::write_states() {
  const std::uint64_t per_state = next_.header.places_per_state;
  const std::span<const StateEntry> places = now_.places;
  for (std::size_t begin = 0; begin < places.size();) {
    const std::uint64_t state = places[begin].ticket / per_state;
    std::size_t end = begin;
    while (end < places.size() && places[end].ticket / per_state == state) ++end;
    if (Status done = write_state(state * per_state, places.subspan(begin, end - begin)); !done) return done;
    begin = end;
  }
  return success();
}

Status Saver::write_state(std::uint64_t first, std::span<const StateEntry> places) {
  const std::uint64_t rows = store_.shape().rows_per_place;
  std::vector<std::byte> state(next_.state_bytes(places.size()));
  std::memcpy(state.data(), places.data(), places.size_bytes());
  std::byte* at = state.data() + places.size_bytes();
  for (std::size_t i = 0; i < next_.tables.size(); ++i) {
    const std::uint64_t words = next_.words_of(next_.tables[i]);
    std::byte* const weights = at;
    std::byte* const times = at + places.size() * rows * 4;
    at += words * places.size() * rows * 4;
    for (std::size_t place = 0; words != 0 && place < places.size(); ++place) {
      const std::uint64_t ticket = places[place].ticket;
      for (std::uint64_t row = 0; row < places[place].ready; ++row) {
        const LeafState leaf = (*tables_)[i].state(store_.slot(ticket, row), ticket);
        std::memcpy(weights + (place * rows + row) * 4, &leaf.weight, 4);
        if (words == 2) std::memcpy(times + (place * rows + row) * 4, &leaf.times, 4);
      }
    }
  }
  if (keep_state(first, state)) return success();
  if (Status done = begin_file(); !done) return done;
  const std::uint64_t offset = file_->mark().bytes;
  next_.parts.push_back({.kind = PartKind::kState,
                         .file = file_number_,
                         .offset = offset,
                         .bytes = state.size(),
                         .first = first,
                         .places = places.size(),
                         .checksum = crc32c(0, state.data(), state.size()),
                         .unused = 0});
  return file_->append(state.data(), state.size());
}

// Whether a file that stays has the same.
bool Saver::keep_state(std::uint64_t first, const std::vector<std::byte>& state) {
  for (const SavedPart& part : old_.parts) {
    if (part.kind != PartKind::kState || part.first != first || part.bytes != state.size()) continue;
    if (!old_files_[part.file].valid()) continue;
    if (kept_[part.file] == 0 && old_.files[part.file].bytes > kLeastWaste) continue;  // not for its state alone
    std::vector<std::byte> then(part.bytes);
    if (!read_at(old_files_[part.file].get(), part.offset, then.data(), then.size()) || then != state) continue;
    next_.parts.push_back(part);
    next_.parts.back().file = kept_file(part.file);
    return true;
  }
  return false;
}

Status Saver::finish() {
  if (file_) {
    auto ended = file_->end();
    if (!ended) return std::move(ended).error();
    next_.files[file_number_] = *ended;
  }
  next_.header.head = now_.window.head;
  next_.header.tail = now_.window.tail;
  ++next_.header.save;
  Status done = next_.write(folder_);
  if (done) done = folder_.rename(kNextManifestName, kManifestName);
  if (!done) {
    folder_.remove(kNextManifestName);
    if (file_) folder_.remove(data_name(file_->number()));
    return done;
  }
  if (Status there = folder_.sync(); !there) return there;
  auto names = folder_.names();
  if (!names) return success();  // the next save removes them
  for (const std::string& name : *names) {
    const std::uint64_t number = number_of(name);
    const auto is_it = [&](const SavedFile& file) { return file.number == number; };
    const bool is_named = std::any_of(next_.files.begin(), next_.files.end(), is_it);
    if (number != 0 && !is_named) folder_.remove(name);
  }
  return success();
}

Result<SaveReport> Saver::run() {
  if (Status done = describe(); !done) return std::move(done).error();
  if (Status done = look_at_old(); !done) return std::move(done).error();
  choose_files();
  if (Status done = write_rows(); !done) return std::move(done).error();
  now_.forget_before(store_.window().head);
  if (Status done = write_states(); !done) return std::move(done).error();
  if (Status done = finish(); !done) return std::move(done).error();
  SaveReport report{.save = next_.header.save, .rows = 0, .written = file_ ? file_->mark().bytes : 0, .bytes = 0};
  for (const StateEntry& place : now_.places) {
    report.rows += place.ready - static_cast<unsigned>(std::popcount(place.finals & bits_below(place.ready)));
  }
  for (const SavedFile& file : next_.files) report.bytes += file.bytes;
  return report;
}

}  // namespace

Result<SaveReport> save(const Store& store, const Tables* tables, const std::string& path,
                        const WaitContext& wait) try {
  auto folder = Folder::make(path);
  if (!folder) return std::move(folder).error();
  auto locked = folder->lock(false);
  if (!locked) return std::move(locked).error();
  if (!*locked) {
    return Error{.code = Code::kUnavailable, .message = path + " is being saved to or loaded from by somebody else"};
  }
  return Saver(store, tables, *folder, wait).run();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
