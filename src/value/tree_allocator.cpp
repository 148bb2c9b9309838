#include "value/tree_allocator.h"

#include <new>
#include <utility>

namespace shmtree::value {

namespace {

// Bounds of the sizes that are kept.
constexpr std::size_t kMinBytes = 1024, kMaxBytes = 32768;

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
    void* extra;
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
  for (const Idle& each : pool.idle) ::operator delete(each.extra);
}

}  // namespace

void* allocate_memory(std::size_t bytes) {
  if (is_kept(bytes) && pool.open()) {
    for (Pool::Idle& idle : pool.idle) {
      if (idle.bytes == rounded(bytes)) {
        idle.bytes = 0;
        return std::exchange(idle.extra, nullptr);
      }
    }
  }
  return ::operator new(is_kept(bytes) ? rounded(bytes) : bytes);
}

// Keeps the memory as the newest entry. If no entry was empty, frees the oldest.
void free_memory(void* extra, std::size_t bytes) noexcept {
  if (is_kept(bytes) && pool.opened) {
    Pool::Idle given{extra, rounded(bytes)};
    for (Pool::Idle& idle : pool.idle) {
      std::swap(idle, given);
      if (given.extra == nullptr) return;
    }
    extra = given.extra;
  }
  ::operator delete(extra);
}

}  // namespace shmtree::value
