#include "replay/files/manifest.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "platform/checksum.h"
#include "platform/other_version.h"
#include "replay/files/data_file.h"
#include "replay/rows/layout.h"
#include "replay/rows/shape.h"

namespace shmtree::replay {

using namespace platform;

namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 32;
// An empty buffer of the capacity in the manifest may take kMaxOverhead bytes, plus kMaxOverheadPerByte for each byte
// of the files. Otherwise the load fails.
constexpr std::uint64_t kMaxOverhead = 256u << 20;
constexpr std::uint64_t kMaxOverheadPerByte = 16;

template <class T>
void append(std::vector<std::byte>& out, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Takes `count` values off the front; the sizes were checked before.
template <class T>
std::vector<T> take(std::span<const std::byte>& from, std::uint64_t count) {
  std::vector<T> values(count);
  if (count != 0) std::memcpy(values.data(), from.data(), count * sizeof(T));
  from = from.subspan(count * sizeof(T));
  return values;
}

std::uint32_t checksum_of(std::span<const std::byte> file) noexcept {
  ManifestHeader header;
  std::memcpy(&header, file.data(), sizeof header);
  header.checksum = 0;
  const std::uint32_t sum = crc32c(0, &header, sizeof header);
  return crc32c(sum, file.data() + sizeof header, file.size() - sizeof header);
}

std::uint64_t body_bytes(const ManifestHeader& header) noexcept {  // counts have 32 bits, so this cannot overflow
  return header.leaves * std::uint64_t{8} + header.tables * sizeof(SavedTable) + header.files * sizeof(SavedFile) +
         header.parts * sizeof(SavedPart) + header.note_bytes;
}

// Returns true if no file is named twice and no byte is in two parts. All parts together are then no larger than the
// files.
bool is_disjoint(const Manifest& saved) {
  std::vector<std::uint64_t> numbers;
  for (const SavedFile& file : saved.files) numbers.push_back(file.number);
  std::ranges::sort(numbers);
  if (std::ranges::adjacent_find(numbers) != numbers.end()) return false;
  std::vector<const SavedPart*> parts;
  for (const SavedPart& part : saved.parts) parts.push_back(&part);
  const auto chunk = [](const SavedPart* part) { return std::pair(part->file, part->offset); };
  std::ranges::sort(parts, {}, chunk);
  const auto overlap = [](const SavedPart* part, const SavedPart* next) {
    return part->file == next->file && next->offset - part->offset < part->bytes;
  };
  return std::ranges::adjacent_find(parts, overlap) == parts.end();
}

// Returns a contradiction in a manifest with a correct checksum, or an empty string. Only a forged manifest has one.
std::string impossible(const Manifest& saved) {
  const ManifestHeader& header = saved.header;
  const std::uint64_t rows = header.rows_per_chunk;
  if (!std::has_single_bit(rows) || rows > kMaxRowsPerChunk) return "chunks of " + std::to_string(rows) + " rows";
  if (header.head == 0 || header.tail < header.head || header.tail > kMaxTicket) {
    return "the tickets " + std::to_string(header.head) + " to " + std::to_string(header.tail);
  }
  if (header.chunks_per_state == 0) return "states without chunks";
  if (header.ahead > kMaxAhead || header.finals > 1)
    return "rows that need " + std::to_string(header.ahead) + " successors";
  std::uint64_t row_bytes = 0;
  for (const std::uint64_t bytes : saved.leaf_bytes) {
    if (bytes == 0 || bytes > kMaxManifestBytes || (row_bytes += bytes) > kMaxManifestBytes) {
      return "a leaf of " + std::to_string(bytes) + " bytes";
    }
  }
  if (saved.leaf_bytes.empty()) return "rows without a leaf";
  for (const SavedPart& part : saved.parts) {
    if (part.file >= saved.files.size()) return "a part of a file that it does not list";
    const SavedFile& file = saved.files[part.file];
    const bool fits = part.offset >= sizeof(DataHeader) && part.bytes <= file.bytes &&
                      part.offset <= file.bytes - part.bytes && part.chunks <= part.bytes / sizeof(RowsEntry);
    if (!fits) return "a part of " + std::to_string(part.bytes) + " bytes that exceeds its file";
    const bool is_state = part.kind == PartKind::kState;
    if (!is_state && part.kind != PartKind::kRows) return "a part of an unknown kind";
    if (is_state && (part.chunks > part.bytes / sizeof(StateEntry) || part.bytes != saved.state_bytes(part.chunks))) {
      return "a part of " + std::to_string(part.bytes) + " bytes about " + std::to_string(part.chunks) + " chunks";
    }
  }
  return is_disjoint(saved) ? std::string() : "files or parts that it lists twice";
}

}  // namespace

std::string data_name(std::uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "data-%016llx", static_cast<unsigned long long>(number));
  return name;
}

std::uint64_t number_of(const std::string& name) noexcept {
  unsigned long long number = 0;
  if (name.size() != 21 || std::sscanf(name.c_str(), "data-%16llx", &number) != 1) return 0;
  char again[32];
  std::snprintf(again, sizeof again, "data-%016llx", number);
  return name == again ? number : 0;
}

Error corrupt(const Folder& folder, const std::string& name, const std::string& what) {
  return Error{.code = Code::kCorrupt, .message = folder.path() + "/" + name + ": " + what};
}

std::uint64_t Manifest::files_bytes() const noexcept {
  std::uint64_t bytes = sizeof header;
  for (const SavedFile& file : files) bytes += file.bytes;
  return bytes;
}

std::uint64_t Manifest::row_bytes() const noexcept {
  std::uint64_t bytes = header.record_bytes;
  for (const std::uint64_t leaf : leaf_bytes) bytes += leaf > kMaxInRecord ? leaf : 0;
  return bytes;
}

std::uint64_t Manifest::state_bytes(std::uint64_t chunks) const noexcept {
  std::uint64_t words = 0;
  for (const SavedTable& table : tables) words += words_of(table);
  return chunks * (sizeof(StateEntry) + words * header.rows_per_chunk * 4);
}

Result<Manifest> Manifest::read(const Folder& folder) try {
  auto file = folder.open_file(kManifestName);
  if (!file) {
    if (file.code() != Code::kNotFound) return std::move(file).error();
    return Error{.code = Code::kNotFound, .message = folder.path() + " contains no replay buffer: it has no manifest"};
  }
  auto size = file_size(file->get());
  if (!size) return std::move(size).error();
  const auto wrong = [&](const std::string& what) { return corrupt(folder, kManifestName, what); };
  if (*size < sizeof(ManifestHeader) || *size > kMaxManifestBytes) {
    return wrong("has " + std::to_string(*size) + " bytes; a manifest of a replay buffer has " +
                 std::to_string(sizeof(ManifestHeader)) + " to " + std::to_string(kMaxManifestBytes));
  }
  const auto unreadable = [&](int failure) {
    return failure == 0 ? wrong("cannot be read")
                        : os_error(folder.path() + "/" + kManifestName + ": cannot be read", failure);
  };
  Manifest saved;
  const ManifestHeader& header = saved.header;
  if (!read_at(file->get(), 0, &saved.header, sizeof saved.header)) return unreadable(errno);
  if (header.magic != kManifestMagic) return wrong("is not a manifest of a replay buffer");
  if (header.version != kSavedVersion) {  // checked before the checksum: its offset may differ between versions
    return platform::other_version(folder.path() + "/" + kManifestName + " has version", header.version, kSavedVersion);
  }
  std::vector<std::byte> bytes(*size);
  if (!read_at(file->get(), 0, bytes.data(), bytes.size())) return unreadable(errno);
  std::memcpy(&saved.header, bytes.data(), sizeof saved.header);
  if (const std::uint32_t sum = checksum_of(bytes); sum != header.checksum || header.bytes != bytes.size()) {
    return wrong("was altered or cut off: it has " + std::to_string(bytes.size()) + " bytes with the checksum " +
                 std::to_string(sum) + "; it must have " + std::to_string(header.bytes) + " with " +
                 std::to_string(header.checksum));
  }
  if (header.note_bytes > bytes.size() || body_bytes(header) != bytes.size() - sizeof header) {
    return wrong("has a size that does not match its numbers of leaves, files and parts");
  }
  std::span<const std::byte> rest = std::span(bytes).subspan(sizeof header);
  saved.leaf_bytes = take<std::uint64_t>(rest, header.leaves);
  saved.tables = take<SavedTable>(rest, header.tables);
  saved.files = take<SavedFile>(rest, header.files);
  saved.parts = take<SavedPart>(rest, header.parts);
  saved.note = take<std::byte>(rest, header.note_bytes);
  if (const std::string what = impossible(saved); !what.empty()) return wrong("is invalid: it has " + what);
  return saved;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status Manifest::check_files(const Folder& folder) const {
  for (const SavedFile& file : files) {
    auto there = DataReader::begin(folder, file);
    if (!there) return std::move(there).error();
  }
  return success();
}

Status Manifest::check_rows(const Folder& folder, std::span<const StateEntry> chunks) const {
  std::uint64_t bytes = 0, needed = 0;
  for (const SavedPart& part : parts) bytes += part.kind == PartKind::kRows ? part.bytes : 0;
  for (const StateEntry& chunk : chunks) needed += chunk.rows * row_bytes();
  if (needed <= bytes) return success();
  return corrupt(folder, kManifestName,
                 "lists rows of " + std::to_string(needed) + " bytes, but the files have " + std::to_string(bytes));
}

Status Manifest::check_overhead(const Folder& folder, std::uint64_t bytes) const {
  const std::uint64_t over = bytes - std::min(bytes, kMaxOverhead);
  if (over / kMaxOverheadPerByte <= files_bytes()) return success();
  return Error{.code = Code::kInvalid,
               .message = folder.path() + " has a capacity of " + std::to_string(header.capacity) +
                          " rows in chunks of " + std::to_string(header.rows_per_chunk) +
                          "; an empty buffer of that capacity takes " + std::to_string(bytes) +
                          " bytes, far more than the files have. If the capacity is right, pass it to load the buffer"};
}

Status Manifest::write(const Folder& folder) {
  header.magic = kManifestMagic;
  header.version = kSavedVersion;
  header.leaves = static_cast<std::uint32_t>(leaf_bytes.size());
  header.tables = static_cast<std::uint32_t>(tables.size());
  header.files = static_cast<std::uint32_t>(files.size());
  header.parts = static_cast<std::uint32_t>(parts.size());
  header.note_bytes = note.size();
  header.bytes = sizeof header + body_bytes(header);
  std::vector<std::byte> bytes(sizeof header);
  append(bytes, leaf_bytes);
  append(bytes, tables);
  append(bytes, files);
  append(bytes, parts);
  append(bytes, note);
  std::memcpy(bytes.data(), &header, sizeof header);
  header.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  folder.remove(kNextManifestName);
  auto file = folder.create(kNextManifestName, kManifestName);
  if (!file) return std::move(file).error();
  const std::string what = folder.path() + "/" + kNextManifestName;
  if (Status done = write_at(file->get(), 0, bytes.data(), bytes.size(), what); !done) return done;
  return sync_file(file->get(), what);
}

void save_limit(const RateLimiter& limit, ManifestHeader& out) noexcept {
  const RateLimit terms = limit.limit();
  out.samples_per_insert = terms.samples_per_insert;
  out.error_buffer = terms.error_buffer;
  out.min_size = terms.min_size;
  out.inserts = limit.inserts();
  out.samples = limit.samples();
}

void restore_limit(const ManifestHeader& then, const Store& store, RateLimiter& limit) noexcept {
  const RateLimit now = limit.limit();
  const bool is_same = then.samples_per_insert == now.samples_per_insert && then.error_buffer == now.error_buffer &&
                       then.min_size == now.min_size;
  if (is_same) return limit.restore(then.inserts, then.samples);
  const std::uint64_t rows = store.size(), over = rows - std::min(rows, now.min_size);
  const double samples = now.samples_per_insert * static_cast<double>(over);
  limit.restore(rows, samples < static_cast<double>(kMaxCount) ? static_cast<std::uint64_t>(samples) : kMaxCount);
}

}  // namespace shmtree::replay
