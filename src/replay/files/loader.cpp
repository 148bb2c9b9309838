#include "replay/files/loader.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "platform/checksum.h"
#include "platform/text.h"
#include "replay/buffer/home.h"
#include "replay/files/data_file.h"
#include "replay/files/manifest.h"

namespace shmtree::replay {

using namespace platform;

namespace {

// Converts a saved weight to a table that may have another alpha or kind. 0 stays 0.
float converted(const SavedTable& then, const Table& table, float weight) {
  const TableSpec& now = table.spec();
  const auto kind = static_cast<SamplerKind>(then.kind);
  if (weight == 0 || (kind == now.kind && then.alpha == now.alpha && then.eps == now.eps)) return weight;
  if (!now.has_priorities()) return 1;
  const bool is_prioritized = kind == SamplerKind::kPrioritized && then.alpha != 0;
  if (!is_prioritized && kind != SamplerKind::kMaxPriority) return table.weight_of(table.max_priority());
  const double priority =
      is_prioritized ? std::pow(static_cast<double>(weight), 1 / then.alpha) - then.eps : static_cast<double>(weight);
  return table.weight_of(std::clamp(priority, 0.0, table.priority_limit()));
}

bool has_priorities(const SavedTable& table) noexcept {
  return TableSpec{.kind = static_cast<SamplerKind>(table.kind)}.has_priorities();
}

}  // namespace

// State of one load. A saved chunk becomes `ratio` chunks of the store, so that its rows keep their indices.
struct Loader::LoadState {
  const Folder& folder;
  const Manifest& saved;
  Store& store;
  const Tables* tables;
  const WaitContext& wait;
  std::span<const NamedSampler> samplers;        // names of the tables
  std::span<const NamedSampler> saved_samplers;  // names of the saved tables; empty: they have no names
  ProgressMeter& progress;
  std::uint64_t ratio;
  std::vector<StateEntry> chunks{};                                // Saved chunks, by ticket.
  std::vector<std::pair<const SavedPart*, std::size_t>> states{};  // State parts, with position of first chunk.
  std::unordered_map<std::uint64_t, std::size_t> chunk_of{};       // Position in `chunks`, by ticket.
  std::vector<bool> is_loaded{};                                   // True for each chunk after its rows were read.
  Window window{};                                                 // Window of the store; older chunks do not fit.

  std::uint64_t rows_here() const noexcept { return store.shape().rows_per_chunk; }
  // Returns the number of the store's chunks that the rows of a saved chunk need.
  std::uint64_t parts_of(const StateEntry& chunk) const noexcept {
    return (chunk.rows + rows_here() - 1) / rows_here();
  }

  Status fits() const;
  Status read_states();
  Status choose();
  std::size_t count_fitting(const std::vector<std::size_t>& order) noexcept;
  Status describe(const StateEntry& chunk);
  Status read_file(std::uint32_t number);
  Status read_part(DataReader& file, const SavedPart& part);
  Status read_rows(DataReader& file, const std::vector<RowsEntry>& entries);
  Status restore_tables();
  const SavedTable* source_of(std::size_t number) const noexcept;
  void restore_table(const Table& table, const SavedTable* then, const SavedPart& part, std::size_t begin,
                     std::span<const std::byte> words);
  void finish();
};

Status Loader::LoadState::fits() const {
  const Shape& shape = store.shape();
  std::vector<std::uint64_t> leaves;
  for (const Leaf& leaf : shape.leaves) leaves.push_back(leaf.bytes);
  const bool is_same = leaves == saved.leaf_bytes && shape.record_bytes == saved.header.record_bytes &&
                       shape.ahead == saved.header.ahead && shape.finals == (saved.header.finals != 0);
  if (!is_same) {
    return Error{.code = Code::kIncompatible, .message = folder.path() + " has a replay buffer with other columns"};
  }
  if (shape.rows_per_chunk > saved.header.rows_per_chunk) {
    return Error{.code = Code::kInvalid,
                 .message = "chunk is " + std::to_string(shape.rows_per_chunk) + " rows; it must be at most " +
                            std::to_string(saved.header.rows_per_chunk) + ", the chunk of the rows in " +
                            folder.path()};
  }
  return success();
}

Status Loader::LoadState::read_states() {
  for (const SavedPart& part : saved.parts) {
    if (part.kind != PartKind::kState) continue;
    auto reader = DataReader::begin(folder, saved.files[part.file]);
    if (!reader) return std::move(reader).error();
    std::vector<std::byte> bytes(part.bytes);
    if (Status done = reader->peek(part.offset, bytes); !done) return done;
    if (const std::uint32_t sum = crc32c(0, bytes.data(), bytes.size()); sum != part.checksum) {
      return reader->error("was altered: the " + std::to_string(part.bytes) + " bytes at " +
                           std::to_string(part.offset) + " have the checksum " + std::to_string(sum) + "; it must be " +
                           std::to_string(part.checksum));
    }
    states.emplace_back(&part, chunks.size());
    chunks.resize(chunks.size() + part.chunks);
    std::memcpy(chunks.data() + states.back().second, bytes.data(), part.chunks * sizeof(StateEntry));
  }
  return success();
}

// Checks the states, and chooses the newest chunks that fit.
Status Loader::LoadState::choose() {
  const ManifestHeader& header = saved.header;
  if (header.tail > kMaxTicket / ratio) return corrupt(folder, kManifestName, "has tickets out of range");
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const StateEntry& chunk = chunks[i];
    const bool is_right = chunk.ticket >= header.head && chunk.ticket < header.tail && chunk.rows != 0 &&
                          chunk.rows <= header.rows_per_chunk && chunk.ready <= chunk.rows &&
                          chunk_of.emplace(chunk.ticket, i).second;
    if (is_right) continue;
    return corrupt(folder, kManifestName,
                   "has an invalid entry: chunk " + std::to_string(chunk.ticket) + " with " +
                       std::to_string(chunk.rows) + " rows");
  }
  std::vector<std::size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return chunks[a].ticket < chunks[b].ticket; });
  window.tail = header.tail * ratio;
  if (ratio > 1 && !order.empty()) {  // the last saved chunk may need fewer than `ratio` chunks
    const StateEntry& last = chunks[order.back()];
    window.tail = last.ticket * ratio + parts_of(last);
  }
  window.head = window.tail;
  const std::size_t chosen = order.size() - count_fitting(order);
  for (std::size_t i = 0; i < chosen; ++i) chunk_of.erase(chunks[order[i]].ticket);
  std::vector<StateEntry> newest;
  for (std::size_t i = chosen; i < order.size(); ++i) newest.push_back(chunks[order[i]]);
  correct_ready(newest, header.ahead);
  is_loaded.assign(chunks.size(), false);
  if (Status done = saved.check_rows(folder, newest); !done) return done;
  for (std::size_t i = 0; i < newest.size(); ++i) {
    chunks[order[chosen + i]] = newest[i];
    if (Status done = describe(newest[i]); !done) return done;
  }
  return success();
}

// Returns how many of the newest saved chunks fit; the oldest of them may fit in part. Sets the window's head.
std::size_t Loader::LoadState::count_fitting(const std::vector<std::size_t>& order) noexcept {
  std::uint64_t rows = 0;
  for (std::size_t count = 0; count < order.size(); ++count) {
    const StateEntry& chunk = chunks[order[order.size() - 1 - count]];
    for (std::uint64_t part = parts_of(chunk); part-- != 0;) {
      const std::uint64_t ticket = chunk.ticket * ratio + part;
      rows += std::min(rows_here(), chunk.rows - part * rows_here());
      if (rows > store.shape().capacity || window.tail - ticket > store.shape().chunks) {
        return part + 1 < parts_of(chunk) ? count + 1 : count;
      }
      window.head = ticket;
    }
  }
  return order.size();
}

// Creates the store's chunks for a saved chunk, closed, as if their rows were there already.
Status Loader::LoadState::describe(const StateEntry& chunk) {
  const std::uint64_t here = rows_here(), parts = parts_of(chunk);
  for (std::uint64_t part = 0; part < parts; ++part) {
    const std::uint64_t ticket = chunk.ticket * ratio + part, begin = part * here;
    if (ticket < window.head) continue;
    if (Status done = store.prepare_chunk(ticket, wait); !done) return done;
    const auto of_part = [&](std::uint64_t rows) { return std::clamp(rows, begin, begin + here) - begin; };
    std::uint64_t previous = ticket - 1, next = part + 1 < parts ? ticket + 1 : 0;
    if (part == 0) {
      const auto found = chunk_of.find(chunk.previous);
      const std::uint64_t last = found == chunk_of.end() ? ratio - 1 : (chunks[found->second].rows - 1u) / here;
      previous = chunk.previous == 0 ? 0 : chunk.previous * ratio + last;
      if (found != chunk_of.end() && previous >= window.head) store_relaxed(store.info(previous).next, ticket);
    }
    ChunkInfo& info = store.info(ticket);
    store_relaxed(info.owner, memory::kNoIdentity);
    const StreamStep first = step_of(streams_of(chunk, saved.header.rows_per_chunk), begin);
    store_relaxed(info.stream, first.stream);
    store_relaxed(info.first_row, first.rows);
    store_relaxed(info.previous, previous);
    store_relaxed(info.next, next);
    store_relaxed(info.ends, chunk.ends >> begin & bits_below(here));
    store_relaxed(info.finals, chunk.finals >> begin & bits_below(here));
    store_relaxed(info.truncated, chunk.truncated >> begin & bits_below(here));
    store_relaxed(info.begins, chunk.begins >> begin & bits_below(here));
    store.leave_chunk({.ticket = ticket,
                       .rows = static_cast<std::uint32_t>(of_part(chunk.rows)),
                       .ready = static_cast<std::uint32_t>(of_part(chunk.ready)),
                       .closed = true});
  }
  return success();
}

Status Loader::LoadState::read_file(std::uint32_t number) {
  auto file = DataReader::begin(folder, saved.files[number], &progress);
  if (!file) return std::move(file).error();
  if (Status done = file->read_header(); !done) return done;
  std::vector<const SavedPart*> parts;
  for (const SavedPart& part : saved.parts) {
    if (part.file == number && part.kind == PartKind::kRows) parts.push_back(&part);
  }
  std::sort(parts.begin(), parts.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (const SavedPart* part : parts) {
    if (wait.interrupted()) return Error{.code = Code::kInterrupted, .message = "interrupted"};
    if (part->offset < file->at()) return file->error("has parts that overlap");
    if (Status done = file->skip(part->offset - file->at()); !done) return done;
    if (Status done = read_part(*file, *part); !done) return done;
  }
  return file->end();
}

Status Loader::LoadState::read_part(DataReader& file, const SavedPart& part) {
  std::vector<RowsEntry> entries(part.chunks);
  if (Status done = file.read(entries.data(), entries.size() * sizeof(RowsEntry)); !done) return done;
  std::uint64_t rows = 0;
  for (const RowsEntry& entry : entries) {
    if (entry.rows > saved.header.rows_per_chunk) {
      return file.error("was altered: chunk " + std::to_string(entry.ticket) + " has " + std::to_string(entry.rows) +
                        " rows; it must have at most " + std::to_string(saved.header.rows_per_chunk));
    }
    rows += entry.rows;
  }
  if (entries.size() * sizeof(RowsEntry) + rows * saved.row_bytes() != part.bytes) {
    return file.error("was altered: the part at " + std::to_string(part.offset) + " cannot have " +
                      std::to_string(rows) + " rows in " + std::to_string(part.bytes) + " bytes");
  }
  return read_rows(file, entries);
}

// Reads the rows of a part. Only checks the bytes of chunks that do not fit or were written again later.
Status Loader::LoadState::read_rows(DataReader& file, const std::vector<RowsEntry>& entries) {
  const Shape& shape = store.shape();
  std::vector<bool> is_wanted(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto found = chunk_of.find(entries[i].ticket);
    if (found == chunk_of.end() || chunks[found->second].rows != entries[i].rows) continue;
    is_wanted[i] = !is_loaded[found->second];
    is_loaded[found->second] = true;
  }
  Runs runs([&](std::byte* at, std::uint64_t bytes) { return file.read(at, bytes); });
  for (const Leaf& leaf : shape.regions()) {
    const std::uint64_t bytes = leaf.bytes;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto [ticket, rows] = entries[i];
      if (!is_wanted[i]) {
        if (Status done = runs.flush(); !done) return done;
        if (Status done = file.skip(rows * bytes); !done) return done;
        continue;
      }
      for (std::uint64_t row = 0; row < rows; row += rows_here()) {
        const std::uint64_t here = ticket * ratio + row / rows_here(), size = std::min(rows_here(), rows - row) * bytes;
        std::byte* const at = here >= window.head ? store.leaf(leaf, here, 0) : nullptr;
        if (at == nullptr && here >= window.head) return store.arena()->unmapped("rows of a replay buffer");
        Status done = at != nullptr ? runs.add(at, size) : runs.flush();
        if (done && at == nullptr) done = file.skip(size);
        if (!done) return done;
      }
    }
  }
  return runs.flush();
}

// Returns the saved table from which the table takes its priorities and counts, or null.
const SavedTable* Loader::LoadState::source_of(std::size_t number) const noexcept {
  const TableSpec& now = (*tables)[number].spec();
  const auto is_same = [&](const SavedTable& then) { return static_cast<SamplerKind>(then.kind) == now.kind; };
  const auto is_like = [&](const SavedTable& then) {
    return is_same(then) || (now.has_priorities() && has_priorities(then));
  };
  const auto found = [&](auto at) { return at == saved.tables.end() ? nullptr : &*at; };
  std::size_t then = number;
  if (!samplers.empty()) {
    const auto named = std::ranges::find(saved_samplers, samplers[number].first, &NamedSampler::first);
    then = static_cast<std::size_t>(named - saved_samplers.begin());
  }
  if (then < saved.tables.size() && is_like(saved.tables[then])) return &saved.tables[then];
  const SavedTable* same = found(std::ranges::find_if(saved.tables, is_same));
  return same != nullptr ? same : found(std::ranges::find_if(saved.tables, is_like));
}

Status Loader::LoadState::restore_tables() {
  if (tables == nullptr) return success();
  std::vector<const SavedTable*> sources;
  for (std::size_t i = 0; i < tables->size(); ++i) {
    const SavedTable* then = sources.emplace_back(source_of(i));
    if (then == nullptr) continue;
    const Table& table = (*tables)[i];
    const bool is_number = then->max_priority >= 0 && then->max_priority <= table.priority_limit();
    table.restore(is_number ? then->max_priority : 1.0, then->samples);
  }
  for (const auto& [part, begin] : states) {
    auto file = DataReader::begin(folder, saved.files[part->file]);
    if (!file) return std::move(file).error();
    const std::uint64_t entries = part->chunks * sizeof(StateEntry);
    std::vector<std::byte> words(part->bytes - entries);
    if (Status done = file->peek(part->offset + entries, words); !done) return done;
    for (std::size_t i = 0; i < tables->size(); ++i) {
      if ((*tables)[i].spec().has_leaves()) restore_table((*tables)[i], sources[i], *part, begin, words);
    }
  }
  return success();
}

void Loader::LoadState::restore_table(const Table& table, const SavedTable* then, const SavedPart& part,
                                      std::size_t begin, std::span<const std::byte> words) {
  const std::uint64_t rows = saved.header.rows_per_chunk, stretch = part.chunks * rows * 4;
  if (then != nullptr && then->has_leaves == 0) then = nullptr;
  std::uint64_t at = 0;
  for (const SavedTable& before : saved.tables) {
    if (&before == then) break;
    at += saved.words_of(before) * stretch;
  }
  for (std::size_t i = 0; i < part.chunks; ++i) {
    const StateEntry& chunk = chunks[begin + i];
    if (!chunk_of.contains(chunk.ticket)) continue;
    for (std::uint64_t row = 0; row < chunk.ready; ++row) {
      if ((chunk.finals >> row & 1) != 0) continue;
      LeafState state{.weight = table.weight_of(table.max_priority()), .times = 0};
      if (then != nullptr) {
        const std::byte* word = words.data() + at + (i * rows + row) * 4;
        std::memcpy(&state.weight, word, 4);
        if (!(state.weight >= 0 && state.weight <= FLT_MAX)) state.weight = 0;
        state.weight = converted(*then, table, state.weight);
        if (then->max_times != 0) std::memcpy(&state.times, word + stretch, 4);
      }
      const std::uint64_t ticket = chunk.ticket * ratio + row / rows_here();
      if (ticket < window.head) continue;
      table.restore(store.slot(ticket, row % rows_here()), ticket, state);
    }
  }
}

void Loader::LoadState::finish() {
  Origin origin = store.origin();
  if (ratio == 1) {
    std::memcpy(origin.parent, saved.header.uuid, sizeof origin.parent);
    origin.inherited = saved.header.tail;
  }
  store.begin_with(window, origin);
}

Result<Loader> Loader::open(const std::string& path) try {
  auto folder = Folder::open(path);
  if (!folder) {
    if (folder.code() != Code::kNotFound) return std::move(folder).error();
    return Error{.code = Code::kNotFound, .message = "no folder " + path};
  }
  auto locked = folder->lock(true);
  if (!locked) return std::move(locked).error();
  if (!*locked) return Error{.code = Code::kUnavailable, .message = path + " is locked: a save to it is in progress"};
  auto saved = Manifest::read(*folder);
  if (!saved) return std::move(saved).error();
  if (Status there = saved->check_files(*folder); !there) return std::move(there).error();
  return Loader(std::move(*folder), std::move(*saved));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<Spec> Loader::spec() const {
  auto spec = unpack(saved_.note);
  if (!spec) {
    if (spec.code() != Code::kIncompatible) return spec;
    return corrupt(folder_, kManifestName, printable(spec.error().message));  // it may have names from the file
  }
  if (spec->leaf_bytes() != saved_.leaf_bytes || spec->ahead() != ahead() || spec->has_finals() != finals()) {
    return corrupt(folder_, kManifestName, "its specification does not match its rows");
  }
  return spec;
}

BufferSize Loader::size_for(const BufferSize& asked) const noexcept {
  const std::uint64_t rows = asked.capacity == 0 ? capacity() : asked.capacity;
  if (asked.chunk != 0) return {rows, asked.chunk, asked.streams};
  const std::uint64_t streams = std::max<std::uint64_t>(asked.streams, 1);
  const std::uint64_t most = asked.capacity == 0 ? rows : std::max<std::uint64_t>(rows / 16 / streams, 1);
  return {rows, std::min(rows_per_chunk(), std::bit_floor(most)), asked.streams};
}

Result<std::shared_ptr<Buffer>> Loader::make_buffer(Spec spec, const BufferSize& asked, std::shared_ptr<Arena> arena,
                                                    const WaitContext& wait) const {
  const BufferSize sizes = size_for(asked);
  if (asked.capacity == 0) {
    const auto overhead = Buffer::overhead_bytes(spec, sizes);
    Status fits = overhead ? check_overhead(*overhead) : Status(overhead.error());
    if (!fits) return std::move(fits).error();
  }
  auto home = Home(std::move(arena)).arena_for(spec, sizes);
  if (!home) return std::move(home).error();
  return Buffer::create(std::move(*home), std::move(spec), sizes, wait);
}

Status Loader::load_into(Store& store, const Tables* tables, const WaitContext& wait,
                         std::span<const NamedSampler> samplers, const ProgressHook& hook) try {
  std::vector<NamedSampler> saved_samplers;
  if (!samplers.empty()) {
    auto spec = this->spec();
    if (!spec) return std::move(spec).error();
    saved_samplers = std::move(spec->samplers);
  }
  ProgressMeter progress(hook);
  LoadState state{.folder = folder_,
                  .saved = saved_,
                  .store = store,
                  .tables = tables,
                  .wait = wait,
                  .samplers = samplers,
                  .saved_samplers = saved_samplers,
                  .progress = progress,
                  .ratio = saved_.header.rows_per_chunk / store.shape().rows_per_chunk};
  if (Status done = state.fits(); !done) return done;
  progress.expect(saved_.files_bytes());
  if (Status done = state.read_states(); !done) return done;
  if (Status done = state.choose(); !done) return done;
  for (std::uint32_t i = 0; i < saved_.files.size(); ++i) {
    if (Status done = state.read_file(i); !done) return done;
  }
  for (const auto& [ticket, i] : state.chunk_of) {
    if (state.is_loaded[i]) continue;
    return corrupt(folder_, kManifestName, "lists no file with the rows of chunk " + std::to_string(ticket));
  }
  if (Status done = state.restore_tables(); !done) return done;
  state.finish();
  if (tables != nullptr && tables->limiter() != nullptr) restore_limit(saved_.header, store, *tables->limiter());
  progress.finish();
  return success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace shmtree::replay
