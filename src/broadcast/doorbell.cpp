#include "broadcast/doorbell.h"

#include <cstring>

#include "memory/arena.h"

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

// Leaves `asks` set if this process cannot reach the reader, because another process may.
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

platform::WakeText Hubs::name() const noexcept {
  WakeText name{};
  const std::uint64_t block = memory::pack(ring_);
  std::memcpy(name.data(), arena_.uuid(), 16);
  std::memcpy(name.data() + 16, &block, sizeof block);
  std::memcpy(name.data() + 24, &what_, sizeof what_);
  return name;
}

Status Hubs::await(WakeAddress hub) {
  auto me = arena_.identity();
  if (!me) return std::move(me).error();
  arena_.wake_table().set_hub(*me, hub);
  awaiting_.add(memory::slot_of(*me));
  return success();
}

bool Hubs::wake(std::uint32_t slot) noexcept {
  return arena_.wake_table().wake_hub(slot, name(), [&]() noexcept { return awaiting_.take(slot); });
}

// Removes the bits of free slots. If a process takes such a slot and sets its bit just before the removal, this
// function sends it the wake text.
void Hubs::wake() noexcept {
  awaiting_.for_each([&](std::uint32_t slot) noexcept {
    if (wake(slot) || !is_free(slot) || !awaiting_.take(slot) || is_free(slot)) return;
    awaiting_.add(slot);
    wake(slot);
  });
}

}  // namespace shmtree::broadcast
