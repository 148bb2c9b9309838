// Memory that batches are drawn into, and that is used again when nobody has it any more: fresh pages cost more than
// the copy into them.
//
// Thread safety: any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "platform/fork.h"

namespace shmtree::replay {

class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

  BatchPool();
  // At least so many bytes, of any content. Whoever lets go of the last of it gives it back. Throws std::bad_alloc.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept;
  };
  struct Piece {
    std::unique_ptr<std::byte, Free> data{};
    std::size_t bytes = 0;
  };
  static Piece make(std::size_t bytes);
  Piece find(std::size_t bytes) noexcept;
  void give_back(Piece piece) noexcept;

  platform::ForkSafeMutex mutex_;
  std::vector<Piece> pieces_;  // the one that was used last at the end
};

}  // namespace shmtree::replay
