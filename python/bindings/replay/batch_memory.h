// Memory that batches are drawn into, and that is used again when no array on it is left: fresh pages cost more than
// the copy into them.
//
// All calls need the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/cpython/exclusive.h"

namespace shmtree::python {

class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

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
  Piece make(std::size_t bytes) const;
  void give_back(Piece piece) noexcept;

  Mutex mutex_;
  std::vector<Piece> pieces_;  // the one that was used last at the end
};

}  // namespace shmtree::python
