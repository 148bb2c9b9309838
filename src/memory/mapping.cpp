#include "memory/mapping.h"

#include <cstdlib>
#include <mutex>
#include <new>

#include "platform/dcheck.h"

namespace shmtree::memory {

Result<std::unique_ptr<Mapping>> Mapping::create(platform::UniqueFd fd, std::uint64_t max_bytes, bool huge_pages,
                                                 std::uint64_t page_bytes) {
  std::unique_ptr<Mapping> mapping(new Mapping(std::move(fd), max_bytes, huge_pages, page_bytes));
  if (auto file = mapping->file_.get("cannot map an arena"); !file) return std::move(file).error();
  auto control = platform::map_shared(mapping->file_.number(), 0, mapping->geometry_.control_bytes());
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
  for (const auto& [address, bytes] : mapped_) platform::unmap(address, bytes);
  if (control_ != nullptr) platform::unmap(control_, geometry_.control_bytes());
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
  if (!file_.is_ours()) return platform::closed_by_program(file_.number(), "cannot map " + what);
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
  std::byte* mapped = platform::try_map_shared(file_.number(), offset, bytes);
  if (mapped == nullptr) return nullptr;
  if (huge) platform::advise_huge(mapped, bytes);
  if (!remember(mapped, bytes)) {
    platform::unmap(mapped, bytes);
    return nullptr;
  }
  list[number].store(mapped, std::memory_order_release);
  return mapped;
}

}  // namespace shmtree::memory
