#include "replay/batch_memory.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "platform/file.h"
#include "platform/huge_pages.h"
#include "platform/machine.h"

namespace shmtree::replay {

namespace {

constexpr std::size_t kMostPieces = 4;  // a batch at work, one being drawn, and two threads
// What is much larger than asked for stays for those who ask for it.
constexpr std::size_t kMostWaste = 4;
// Of so many bytes the machine says that it has them, and kills who uses them.
constexpr std::size_t kLarge = std::size_t{1} << 30;

}  // namespace

void BatchPool::Free::operator()(std::byte* data) const noexcept {
  std::free(data);
}

BatchPool::BatchPool() {
  pieces_.reserve(kMostPieces);
}

BatchPool::Piece BatchPool::make(std::size_t bytes) {
  using platform::kHugeBytes;
  if (bytes > kLarge && bytes > platform::available_memory_bytes()) throw std::bad_alloc();
  const std::size_t alignment = bytes >= kHugeBytes ? kHugeBytes / 2 : kAlignment;
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  Piece made{.data = std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(std::aligned_alloc(alignment, size))),
             .bytes = size};
  if (!made.data) throw std::bad_alloc();
  if (bytes >= kHugeBytes) platform::advise_huge(made.data.get(), size);
  return made;
}

BatchPool::Piece BatchPool::find(std::size_t bytes) noexcept {
  const std::lock_guard guard(mutex_);
  const auto fits = std::find_if(pieces_.rbegin(), pieces_.rend(), [bytes](const Piece& piece) {
    return piece.bytes >= bytes && piece.bytes / kMostWaste <= bytes;
  });
  if (fits == pieces_.rend()) return {};
  Piece found = std::move(*fits);
  pieces_.erase(std::next(fits).base());
  return found;
}

std::shared_ptr<std::byte> BatchPool::take(std::size_t bytes) {
  Piece found = find(bytes);
  if (!found.data) found = make(bytes);
  std::byte* const data = found.data.get();
  auto give_back = [pool = weak_from_this(), piece = std::make_shared<Piece>(std::move(found))](std::byte*) noexcept {
    if (const auto known = pool.lock()) known->give_back(std::move(*piece));
  };
  return std::shared_ptr<std::byte>(data, std::move(give_back));
}

void BatchPool::give_back(Piece piece) noexcept {
  Piece oldest;  // let go of outside the mutex
  const std::lock_guard guard(mutex_);
  if (pieces_.size() == kMostPieces) {
    oldest = std::move(pieces_.front());
    pieces_.erase(pieces_.begin());
  }
  pieces_.push_back(std::move(piece));  // there is room: it was reserved
}

}  // namespace shmtree::replay
