// Checks the invariants of shared state for tests in Python, and prints the first violated one.
//
//   check_state FD [BLOCK]
//
// FD is an inherited descriptor of an arena. BLOCK is the packed number of the control block of a Broadcast, a Latest
// or a replay buffer; without it, the program checks the arena. No other process may use the object meanwhile.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/arena_check.h"
#include "support/ring_check.h"
#include "support/rows_check.h"

using namespace shmtree;

namespace {

std::string check_block(memory::Arena& arena, memory::BlockRef block) {
  const memory::BlockEntry* entry = arena.blocks().is_current(block) ? arena.blocks().entry(block.id) : nullptr;
  if (entry == nullptr) return "the block is free";
  return memory::is_kind(*entry, memory::BlockKind::kReplay) ? replay::check_rows(arena, block)
                                                             : broadcast::check_ring(arena, block);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2 || count > 3) {
    std::fputs("usage: check_state FD [BLOCK]\n", stderr);
    return 2;
  }
  auto arena = memory::Arena::attach(platform::UniqueFd(std::atoi(arguments[1])));
  if (!arena) {
    std::fprintf(stderr, "%s\n", arena.error().message.c_str());
    return 1;
  }
  const std::string wrong = count == 2 ? memory::check_arena(**arena)
                                       : check_block(**arena, memory::unpack(std::strtoull(arguments[2], nullptr, 10)));
  std::fputs(wrong.c_str(), stdout);
  return 0;
}
