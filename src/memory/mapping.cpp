#include "memory/mapping.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

#include "platform/dcheck.h"
#include "platform/file.h"

namespace shmtree::memory {

using namespace platform;

Result<std::unique_ptr<Mapping>> Mapping::create(UniqueFd fd, std::uint64_t max_bytes, bool huge_pages,
                                                 std::uint64_t page_bytes) {
  std::unique_ptr<Mapping> mapping(new Mapping(std::move(fd), max_bytes, huge_pages, page_bytes));
  if (auto file = mapping->file_.get("cannot map an arena"); !file) return std::move(file).error();
  auto control = map_shared(mapping->file_.number(), 0, mapping->geometry_.control_bytes());
  if (!control) return std::move(control).error();
  mapping->control_ = *control;
  mapping->wake_tables_.count = kMaxParticipants;
  for (unsigned k = kMinClass; k <= mapping->geometry_.max_class(); ++k) {
    const std::uint64_t count = mapping->geometry_.count(k);
    mapping->tables_[k - kMinClass].count = round_up(count, kEntriesPerPiece) / kEntriesPerPiece;
    const unsigned shift = piece_shift(k) - k;
    mapping->data_[k - kMinClass].count = round_up(count, std::uint64_t{1} << shift) >> shift;
  }
  return mapping;
}

Mapping::~Mapping() {
  for (const auto& [address, bytes] : mapped_) unmap(address, bytes);
  if (control_ != nullptr) unmap(control_, geometry_.control_bytes());
  std::free(wake_tables_.list.load());
  for (unsigned k = 0; k < kClasses; ++k) {
    std::free(tables_[k].list.load());
    std::free(data_[k].list.load());
  }
}

std::byte* Mapping::map_table(unsigned size_class, std::uint64_t number) noexcept {
  // The last piece may reach beyond the class's table, into padding or the next region. No index leads there.
  return map_piece(tables_[size_class - kMinClass], number,
                   geometry_.table_offset(size_class, number * kEntriesPerPiece), kEntriesPerPiece * sizeof(BlockEntry),
                   false);
}

std::byte* Mapping::map_data(unsigned size_class, std::uint64_t number) noexcept {
  const unsigned shift = piece_shift(size_class) - size_class;
  return map_piece(data_[size_class - kMinClass], number,
                   geometry_.data_offset(BlockId::make(size_class, number << shift)),
                   std::uint64_t{1} << piece_shift(size_class), huge_pages_);
}

Error Mapping::unmapped(const std::string& what) const {
  if (!file_.is_ours()) return closed_by_program(file_.number(), "cannot map " + what);
  return Error{Code::kOutOfSharedMemory, "no address space left to map " + what};
}

bool Mapping::remember(std::byte* address, std::uint64_t bytes) noexcept {
  try {
    mapped_.emplace_back(address, bytes);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::byte* Mapping::map_piece(Pieces& pieces, std::uint64_t number, std::uint64_t offset, std::uint64_t bytes,
                              bool huge) noexcept {
  SHMTREE_DCHECK(number < pieces.count && offset % kMaxPageBytes == 0 && offset + bytes <= geometry_.file_bytes());
  std::lock_guard guard(mutex_);
  std::atomic<std::byte*>* list = pieces.list.load(std::memory_order_relaxed);
  if (list == nullptr) {
    // Zeroed memory is a valid array of null atomics. Pages without a used index are never touched.
    list = static_cast<std::atomic<std::byte*>*>(std::calloc(pieces.count, sizeof(std::atomic<std::byte*>)));
    if (list == nullptr) return nullptr;
    pieces.list.store(list, std::memory_order_release);
  }
  if (std::byte* existing = list[number].load(std::memory_order_relaxed)) return existing;
  if (!file_.is_ours()) return nullptr;
  std::byte* mapped = try_map_shared(file_.number(), offset, bytes);
  if (mapped == nullptr) return nullptr;
  if (huge) advise_huge(mapped, bytes);
  if (!remember(mapped, bytes)) {
    unmap(mapped, bytes);
    return nullptr;
  }
  list[number].store(mapped, std::memory_order_release);
  return mapped;
}

// --- BlockTable

// Returns true if a number read from shared memory is that of a block that was ever used. The table is mapped only for
// such blocks.
bool BlockTable::was_used(BlockId id) const noexcept {
  return geometry().contains(id) && id.index() < load_acquire(mapping_.header().class_state(id.size_class()).high);
}

bool BlockTable::is_current(BlockRef ref) const noexcept {
  const BlockEntry* block = was_used(ref.id) ? mapping_.entry(ref.id) : nullptr;
  if (block == nullptr) return false;
  const std::uint64_t word = load_acquire(block->word);
  return state_of(word) != BlockState::kFree && generation_of_block(word) == ref.generation;
}

std::uint64_t BlockTable::capacity_of(BlockId id) const noexcept {
  const BlockEntry* block = entry(id);
  return block == nullptr ? 0 : committed_of(*block, id.size_class());
}

void BlockTable::make_live(BlockRef ref) noexcept {
  BlockEntry* block = entry(ref.id);
  if (block == nullptr) return;
  std::uint64_t word = load_acquire(block->word);
  if (state_of(word) == BlockState::kWriting && generation_of_block(word) == ref.generation) {
    compare_swap_seq_cst(block->word, word, live_word(ref.generation));
  }
}

std::uint64_t BlockTable::used_entries(unsigned size_class) const noexcept {
  return std::min(load_acquire(mapping_.header().class_state(size_class).high), geometry().count(size_class));
}

std::uint64_t BlockTable::present_entries(unsigned size_class) const noexcept {
  if (!mapping_.file().is_ours()) return used_entries(size_class);
  const std::uint64_t bytes = pages_from(mapping_.file().number(), geometry().table_offset(size_class, 0),
                                         geometry().count(size_class) * sizeof(BlockEntry));
  return round_up(bytes, sizeof(BlockEntry)) / sizeof(BlockEntry);
}

std::uint64_t BlockTable::walked_entries(unsigned size_class) const noexcept {
  const std::uint64_t high = used_entries(size_class);
  return high <= kTableStep ? high : std::min(high, present_entries(size_class));
}

std::span<const ListEntry> BlockTable::references_of(BlockId id, const BlockEntry& block) const noexcept {
  const std::uint64_t length = load_acquire(block.list_length);
  if (length == 0) return {};
  const std::uint64_t offset = load_relaxed(block.list_offset);
  const std::uint64_t available = committed_of(block, id.size_class());
  if (offset % 8 != 0 || offset > available || length > (available - offset) / sizeof(ListEntry)) return {};
  const std::byte* data = address(id);
  if (data == nullptr) {  // no address space: a recovery in another process counts the references
    request_recovery(mapping_.header());
    return {};
  }
  return {reinterpret_cast<const ListEntry*>(data + offset), length};
}

std::vector<BlockRef> BlockTable::referred_to_by(BlockRef ref) const {
  std::vector<BlockRef> found;
  const BlockEntry* owner = is_current(ref) ? entry(ref.id) : nullptr;
  if (owner == nullptr || load_acquire(owner->list_length) == 0) return found;
  for (const ListEntry& item : references_of(ref.id, *owner)) {
    const BlockRef referred = ref_of(item);
    if (found.size() == kMaxReferences || !is_current(referred)) break;
    found.push_back(referred);
  }
  return found;
}

// Stops at the same entry as referred_to_by().
std::uint64_t BlockTable::sum_references(BlockId id, const BlockEntry& owner, std::uint64_t* left) const noexcept {
  std::uint64_t bytes = 0;
  for (const ListEntry& item : references_of(id, owner)) {
    const BlockRef referred = ref_of(item);
    if (*left == 0 || !is_current(referred)) break;
    --*left;
    bytes += std::min(load_relaxed(entry(referred.id)->size), std::uint64_t{1} << referred.id.size_class());
  }
  return bytes;
}

// Stops at the same entry as referred_to_by(). Maps only blocks that are in use, so a damaged list cannot make it map
// more.
std::uint64_t BlockTable::map_references(BlockId id, const BlockEntry& owner) const noexcept {
  for (const ListEntry& item : references_of(id, owner)) {
    const BlockRef referred = ref_of(item);
    if (!was_used(referred.id)) break;
    const bool listed = mapping_.entry(referred.id) != nullptr;
    if (listed && !is_current(referred)) break;
    if (!listed || mapping_.address(referred.id) == nullptr) return std::uint64_t{1} << referred.id.size_class();
  }
  return 0;
}

}  // namespace shmtree::memory
