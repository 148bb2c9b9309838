#include "broadcast/cursors.h"

namespace shmtree::broadcast {

using namespace platform;

std::uint32_t Cursors::count() const noexcept {
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < used(); ++i) found += load_acquire(at(i).owner) != 0;
  return found;
}

Cursors::Slowest Cursors::slowest(bool of_all) const noexcept {
  Slowest found{load_acquire(header_.tail), memory::kNobody};
  const std::uint32_t cursors = used();
  for (std::uint32_t i = 0; i < cursors; ++i) {
    const Owner owner = unpack_owner(load_acquire(at(i).owner));
    if (owner.identity == memory::kNobody || (!of_all && owner.policy != Policy::kBlock)) continue;
    const std::uint64_t position = load_seq_cst(at(i).position);
    if (position < found.position || found.reader == memory::kNobody) {
      found = {std::min(position, found.position), owner.identity};
    }
  }
  return found;
}

bool Cursors::drop_dead() const noexcept {
  bool dropped = false;
  for (std::uint32_t i = 0; i < used(); ++i) {
    std::uint64_t word = load_acquire(at(i).owner);
    if (word == 0 || participants_.is_alive(unpack_owner(word).identity)) continue;
    dropped = compare_swap(at(i).owner, word, std::uint64_t{0}) || dropped;
  }
  return dropped;
}

}  // namespace shmtree::broadcast
