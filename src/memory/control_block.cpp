#include "memory/control_block.h"

#include <cstring>
#include <string>
#include <utility>

namespace shmtree::memory {

using platform::WaitContext;

Result<OwnedBlock> make_control_block(Arena& arena, BlockKind kind, std::uint64_t bytes, const WaitContext& wait) {
  auto block = arena.allocate(bytes, kind, wait);
  if (block.ok()) std::memset(block->data(), 0, bytes);
  return block;
}

Result<Lease> hold_control_block(Arena& arena, OwnedBlock block, std::span<const BlockRef> references,
                                 const WaitContext& wait, std::uint64_t most) {
  Status listed = arena.holders().refer(block, references, wait, most);
  if (!listed) return std::move(listed).error();
  return arena.hold_new(std::move(block));
}

Result<Lease> open_control_block(Arena& arena, BlockRef ref, BlockKind kind, std::uint64_t least, const char* what,
                                 const WaitContext& wait) {
  auto control = arena.hold_existing(ref, kind, wait);
  const bool is_other = control ? arena.blocks().capacity_of(ref.id) < least : control.code() == Code::kIncompatible;
  if (!is_other) return control;
  return Error{.code = Code::kIncompatible, .message = std::string("this block of the arena is not ") + what};
}

}  // namespace shmtree::memory
