#include "value/room.h"

#include <new>
#include <utility>

namespace shmtree::value {

namespace {

constexpr std::size_t kMinBytes = 1024, kMaxBytes = 32768;  // Sizes outside these bounds are not kept.

// Rounded up, so that messages of similar size can use each other's memory.
constexpr std::size_t rounded(std::size_t bytes) noexcept {
  return (bytes + 255) / 256 * 256;
}
constexpr bool is_kept(std::size_t bytes) noexcept {
  return bytes > kMinBytes && bytes <= kMaxBytes;
}

// Trivially destructible: Items that are destroyed after their thread's pool was closed can still access it.
struct Pool {
  struct Idle {
    void* room;
    std::size_t bytes;
  };
  Idle idle[4];
  bool opened, closed;

  bool open() {
    if (!opened && !closed) {
      static thread_local AtThreadEnd at_thread_end;
      opened = true;
    }
    return opened;
  }

 private:
  struct AtThreadEnd {
    AtThreadEnd() noexcept {}  // NOLINT: registers the destructor
    ~AtThreadEnd();
  };
};
constinit thread_local Pool pool{};

Pool::AtThreadEnd::~AtThreadEnd() {
  pool.opened = false;
  pool.closed = true;
  for (const Idle& each : pool.idle) ::operator delete(each.room);
}

}  // namespace

void* take_room(std::size_t bytes) {
  if (is_kept(bytes) && pool.open()) {
    for (Pool::Idle& idle : pool.idle) {
      if (idle.bytes == rounded(bytes)) {
        idle.bytes = 0;
        return std::exchange(idle.room, nullptr);
      }
    }
  }
  return ::operator new(is_kept(bytes) ? rounded(bytes) : bytes);
}

// Keeps the memory as the newest entry. If no entry was empty, frees the oldest.
void give_room(void* room, std::size_t bytes) noexcept {
  if (is_kept(bytes) && pool.opened) {
    Pool::Idle given{room, rounded(bytes)};
    for (Pool::Idle& idle : pool.idle) {
      std::swap(idle, given);
      if (given.room == nullptr) return;
    }
    room = given.room;
  }
  ::operator delete(room);
}

}  // namespace shmtree::value
