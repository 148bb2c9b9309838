#include "broadcast/doorbell.h"

#include <cstdio>
#include <string_view>

#include "platform/wake_socket.h"

namespace shmtree::broadcast {

using namespace platform;

namespace {

struct Address {
  char text[108];
  operator std::string_view() const noexcept { return text; }
};

Address address_of(memory::BlockRef ring, const Cursors& cursors, std::uint32_t number) noexcept {
  Address address;
  char* text = address.text;
  constexpr std::size_t kRoom = sizeof address.text;
  int at = std::snprintf(text, kRoom, "shmtree/");
  for (int i = 0; i < 16; ++i) {
    at += std::snprintf(text + at, kRoom - static_cast<std::size_t>(at), "%02x", cursors.arena().uuid()[i]);
  }
  const Owner owner = cursors.owner_of(number);
  std::snprintf(text + at, kRoom - static_cast<std::size_t>(at), "/%llx/r%x/%x/%x",
                static_cast<unsigned long long>(memory::pack(ring)), number, owner.use, owner.identity);
  return address;
}

}  // namespace

Status Doorbell::open(memory::BlockRef ring, const Cursors& cursors, std::uint32_t number, Wakes wakes) {
  if (!is_open()) {
    auto opened = open_wake_socket(address_of(ring, cursors, number));
    if (!opened) return std::move(opened).error();
    fd_ = std::move(*opened);
    can_ring_ = false;
  }
  if (wakes == Wakes::kHelpful || can_ring_) return success();
  Status rings = check_wakes(fd_, address_of(ring, cursors, number));
  can_ring_ = rings.ok();
  if (!can_ring_) close();
  return rings;
}

void Doorbell::ask(Cursor& cursor) noexcept {
  drain_wakes(fd_);
  store_seq_cst(cursor.asks, 1u);
  fence_seq_cst();  // who puts sees it, or we see the message
}

void Doorbell::ring_one(memory::BlockRef ring, const Cursors& cursors, std::uint32_t number) noexcept {
  send_wake(address_of(ring, cursors, number));
}

void Doorbell::ring(memory::BlockRef ring, const Cursors& cursors) noexcept {
  fence_seq_cst();  // what there is to read is visible before the cursors are looked at
  for (std::uint32_t i = 0; i < cursors.used(); ++i) {
    if (load_relaxed(cursors.at(i).asks) == 0 || exchange_seq_cst(cursors.at(i).asks, 0u) == 0) continue;
    ring_one(ring, cursors, i);
  }
}

}  // namespace shmtree::broadcast
