#include "channel/wake_hub.h"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "platform/fork.h"
#include "platform/machine.h"
#include "platform/never_destroyed.h"

namespace shmtree::channel {

using namespace platform;

namespace {

struct Current {
  ForkSafeMutex mutex;
  std::weak_ptr<WakeHub> hub;
};
Current& current() noexcept {
  return never_destroyed<Current>();
}

struct HubAddress {
  char text[32];
  explicit HubAddress(std::uint32_t name) noexcept { std::snprintf(text, sizeof text, "shmtree/wakes/%08x", name); }
};

}  // namespace

WakeHub::WakeHub(CheckedFd fd, std::uint32_t name)
    : fd_(std::move(fd)), name_(name), owner_(process_id()), room_(most_waiting_wakes()) {}

Result<std::shared_ptr<WakeHub>> WakeHub::open() {
  for (int tries = 1;; ++tries) {
    std::uint32_t name = 0;
    while (name == 0) random_bytes(reinterpret_cast<unsigned char*>(&name), sizeof name);
    auto fd = open_wake_socket(HubAddress(name).text);
    if (fd) return std::shared_ptr<WakeHub>(new WakeHub(std::move(*fd), name));
    if (tries == 4) return std::move(fd).error();  // another's name is not met so often
  }
}

Result<std::shared_ptr<WakeHub>> WakeHub::of_this_process() {
  const auto known = [] {
    const std::lock_guard guard(current().mutex);
    auto hub = current().hub.lock();
    return hub != nullptr && hub->is_of_this_process() ? hub : nullptr;
  };
  if (auto hub = known()) return hub;
  auto opened = open();
  if (!opened) return opened;
  std::shared_ptr<WakeHub> faster;  // let go of without the mutex
  const std::lock_guard guard(current().mutex);
  faster = current().hub.lock();
  if (faster != nullptr && faster->is_of_this_process()) return faster;
  current().hub = *opened;
  return opened;
}

EndName WakeHub::name_of(const Control& control, End end) noexcept {
  EndName name{};
  const std::uint64_t block = memory::pack(control.block);
  std::memcpy(name.data(), control.arena.uuid(), 16);
  std::memcpy(name.data() + 16, &block, sizeof block);
  std::memcpy(name.data() + 24, &end, sizeof end);
  return name;
}

void WakeHub::tell(std::uint32_t hub, const EndName& end) noexcept {
  send_wake(HubAddress(hub).text, std::string_view(end.data(), end.size()));
}

// One thread at a time, each to the end: who finds as many as there is room for knows that more may have come. What
// another leaves makes the descriptor readable again.
std::vector<EndName> WakeHub::take(bool& lost) noexcept {
  std::vector<EndName> told;
  lost = false;
  if (owner_ != process_id() || taking_.exchange(true, std::memory_order_acquire)) return told;
  struct Taken {
    std::atomic<bool>& taking;
    ~Taken() { taking.store(false, std::memory_order_release); }
  } taken{taking_};
  std::array<EndName, 32> names;
  std::uint64_t count = 0;
  for (bool more = true; more && count <= room_;) {
    std::size_t received = 0, texts = 0;
    more = receive_wakes(fd_, names, received, texts);
    count += received;
    try {
      told.insert(told.end(), names.begin(), names.begin() + static_cast<std::ptrdiff_t>(texts));
    } catch (const std::bad_alloc&) {
      lost = true;
    }
  }
  lost = lost || (count >= room_ && count != 0);
  return told;
}

}  // namespace shmtree::channel
