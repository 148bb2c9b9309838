#include "endpoint/put.h"

#include <string>

#include "platform/file.h"

namespace shmtree::endpoint {

using platform::WaitContext;

namespace {

// From this size on, fresh pages are mapped in one call: twice as fast as page faults.
constexpr std::uint64_t kColdCopy = 1u << 20;

}  // namespace

// The list of references is at the end of the block, aligned; see HolderTable::refer.
std::uint64_t block_bytes(std::uint64_t frame_bytes, std::size_t referred) noexcept {
  return referred == 0 ? frame_bytes : memory::round_up(frame_bytes, 8) + referred * sizeof(memory::ListEntry);
}

void make_pages(const memory::OwnedBlock& block, std::uint64_t bytes) noexcept {
  if (!block.cold() || bytes < kColdCopy) return;
  platform::populate(block.data(), memory::round_up(bytes, memory::kPageBytes));
}

Status write_references(std::span<const memory::BlockRef> referred, memory::Arena& arena, memory::OwnedBlock& block,
                        const WaitContext& wait) {
  if (referred.size() > memory::kMaxReferences) {
    return Error{Code::kInvalid, "a message refers to " + std::to_string(referred.size()) +
                                     " arrays of the arena; the limit is " + std::to_string(memory::kMaxReferences)};
  }
  return arena.holders().refer(block, referred, wait);
}

}  // namespace shmtree::endpoint
