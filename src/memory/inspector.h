// Reports holders and counts. Changes nothing in the arena, and commits no pages.
//
// Thread safety: any thread. While other threads use the arena, the results are not a consistent snapshot.
#pragma once

#include <string>
#include <vector>

#include "memory/reclaimer.h"

namespace shmtree::memory {

struct HolderInfo {
  BlockRef block{};
  std::uint64_t bytes = 0;
  int pid = 0;
  std::int64_t held_ns = 0;
};

struct ArenaStats {
  std::uint64_t max_bytes, committed_bytes, used_bytes, held_bytes, blocks, participants, reconciles;
};

class Inspector {
 public:
  explicit Inspector(const ArenaParts& parts) noexcept : parts_(parts), header_(parts.mapping.header()) {}

  std::vector<HolderInfo> holders() const;
  // One clause per holder for error messages: "pid 12 holds 1048576 bytes, the oldest for 3.2 s".
  std::string describe_holders(std::size_t most) const;
  ArenaStats stats() const;

 private:
  const ArenaParts parts_;
  ArenaHeader& header_;
};

}  // namespace shmtree::memory
