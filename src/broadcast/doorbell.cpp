#include "broadcast/doorbell.h"

namespace shmtree::broadcast {

using namespace platform;

Status Doorbell::open(Cursor& cursor) {
  if (is_open()) return success();
  auto opened = WakePipe::open(WakeKind::kBytes);
  if (!opened) return std::move(opened).error();
  pipe_ = std::move(*opened);
  store_release(cursor.wake_address, pipe_.address());
  return success();
}

void Doorbell::ask(Cursor& cursor) noexcept {
  pipe_.drain();
  store_seq_cst(cursor.asks, 1u);
  fence_seq_cst();  // the process that puts sees `asks`, or this one sees the message
}

// Leaves `asks` set if this process cannot reach the reader: another one may.
void Doorbell::ring(const Cursors& cursors) noexcept {
  fence_seq_cst();  // the message is visible before the cursors are read
  for (std::uint32_t i = 0; i < cursors.used(); ++i) {
    Cursor& cursor = cursors.at(i);
    if (load_relaxed(cursor.asks) == 0) continue;
    const std::uint32_t slot = memory::slot_of(cursors.owner_of(i).identity);
    cursors.arena().wake_table().wake_at(slot, load_acquire(cursor.wake_address),
                                         [&]() noexcept { return exchange_seq_cst(cursor.asks, 0u) != 0; });
  }
}

}  // namespace shmtree::broadcast
