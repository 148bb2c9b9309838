#include "observe/arena_file.h"

#include <algorithm>
#include <utility>

namespace shmtree::observer {

Result<ArenaFile> ArenaFile::open(platform::UniqueFd fd) {
  const auto head = memory::Arena::read_head(fd.get());
  if (!head) return head.error();
  return ArenaFile(std::move(fd), *head);
}

bool ArenaFile::is_current(BlockRef ref) const noexcept {
  std::uint64_t word = 0;
  const bool read_it = geometry_.contains(ref.id) &&
                       read(geometry_.table_offset(ref.id.size_class(), ref.id.index()) + offsetof(BlockEntry, word),
                            &word, sizeof word);
  return read_it && memory::state_of(word) != memory::BlockState::kFree &&
         memory::generation_of_block(word) == ref.generation;
}

bool ArenaFile::read_block(BlockRef ref, std::uint64_t offset, void* out, std::uint64_t bytes) const noexcept {
  if (!geometry_.contains(ref.id)) return false;
  const std::uint64_t available = std::uint64_t{1} << ref.id.size_class();
  if (offset > available || bytes > available - offset) return false;
  return read(geometry_.data_offset(ref.id) + offset, out, bytes) && is_current(ref);
}

std::uint64_t ArenaFile::present(BlockRef ref, std::uint64_t offset, std::uint64_t count,
                                 std::uint64_t each) const noexcept {
  if (!geometry_.contains(ref.id)) return 0;
  const std::uint64_t available = std::uint64_t{1} << ref.id.size_class();
  if (offset >= available) return 0;
  const std::uint64_t bytes = std::min(count, (available - offset) / each) * each;
  return platform::pages_from(fd_.get(), geometry_.data_offset(ref.id) + offset, bytes) / each;
}

std::uint64_t ArenaFile::present_entries(unsigned size_class, std::uint64_t high) const noexcept {
  const std::uint64_t count = std::min(high, geometry_.count(size_class));
  const std::uint64_t bytes =
      platform::pages_from(fd_.get(), geometry_.table_offset(size_class, 0), count * sizeof(BlockEntry));
  return bytes / sizeof(BlockEntry);
}

}  // namespace shmtree::observer
