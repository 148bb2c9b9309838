#include "channel/wake_hub.h"

#include <mutex>
#include <new>
#include <utility>

#include "platform/fork.h"
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

}  // namespace

WakeHub::WakeHub(WakePipe pipe) : pipe_(std::move(pipe)), owner_(process_id()), capacity_(pipe_.max_waiting_texts()) {}

Result<std::shared_ptr<WakeHub>> WakeHub::of_this_process() {
  const auto known = [] {
    const std::lock_guard guard(current().mutex);
    auto hub = current().hub.lock();
    return hub != nullptr && hub->is_of_this_process() ? hub : nullptr;
  };
  if (auto hub = known()) return hub;
  auto pipe = WakePipe::open(WakeKind::kTexts);
  if (!pipe) return std::move(pipe).error();
  std::shared_ptr<WakeHub> opened(new WakeHub(std::move(*pipe)));
  std::shared_ptr<WakeHub> faster;  // released without the mutex
  const std::lock_guard guard(current().mutex);
  faster = current().hub.lock();
  if (faster != nullptr && faster->is_of_this_process()) return faster;
  current().hub = opened;
  return opened;
}

// One thread at a time takes all texts; another thread returns at once. A text that comes later makes the descriptor
// readable again. A pipe may be full with fewer texts than its capacity, since a page that was read in part takes no
// more. So half of the capacity counts as full.
std::vector<EndName> WakeHub::take(bool& lost) noexcept {
  std::vector<EndName> notified;
  lost = false;
  if (owner_ != process_id() || taking_.exchange(true, std::memory_order_acquire)) return notified;
  struct Taken {
    std::atomic<bool>& taking;
    ~Taken() { taking.store(false, std::memory_order_release); }
  } taken{taking_};
  std::array<EndName, 128> names;  // one page
  std::uint64_t count = 0;
  for (bool more = true; more && count <= capacity_;) {
    std::size_t received = 0;
    more = pipe_.receive(names, received, lost);
    count += received;
    try {
      notified.insert(notified.end(), names.begin(), names.begin() + static_cast<std::ptrdiff_t>(received));
    } catch (const std::bad_alloc&) {
      lost = true;
    }
  }
  lost = lost || (count >= capacity_ / 2 && count != 0);
  return notified;
}

}  // namespace shmtree::channel
