// Memory for a new buffer: that of a given arena, or else that of the machine, from which the buffer gets its own
// arena.
//
// Thread safety: any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "replay/buffer/buffer.h"

namespace shmtree::replay {

class Home {
 public:
  // Null: the buffer gets an arena of its own.
  explicit Home(std::shared_ptr<Arena> arena);

  // Returns `sizes` with the largest capacity that takes at most `max_bytes`. Does not change `sizes` if `max_bytes` is
  // 0. Returns kInvalid, with the numbers, if there is too little memory, or not even the smallest buffer fits.
  Result<BufferSize> within(const Spec& spec, BufferSize sizes, std::uint64_t max_bytes) const;
  // Returns an arena in which a full buffer fits. A new arena has spare memory for other objects. Returns kInvalid,
  // with the numbers, if there is too little memory.
  Result<std::shared_ptr<Arena>> arena_for(const Spec& spec, const BufferSize& sizes) const;

 private:
  Error lacks(const std::string& what, const char* remedy = "") const;

  const std::shared_ptr<Arena> arena_;
  const std::uint64_t bytes_;
};

}  // namespace shmtree::replay
