// Common parts of the calls of a Receiver.
#pragma once

#include <memory>
#include <utility>

#include "api/state.h"
#include "endpoint/receive.h"
#include "platform/of_thread.h"

namespace shmtree::api {

// Decodes a message to an Item. Errors have the ticket.
Result<Item> to_item(memory::Arena& arena, channel::Incoming& message);
// Returns the Item, which then also keeps the block of its message. May throw std::bad_alloc.
Item kept_with(const Item& item, memory::Lease block);

// True if receiving the message again may succeed, because memory was short. All other errors are the message's fault.
inline bool may_retry_after(const Error& error, channel::Incoming& message) noexcept {
  if (error.code != Code::kOutOfSharedMemory) return false;
  message.set_not_built();
  return true;
}

// Memory of this thread, allocated in advance. A thread that is out of memory uses it to return a message.
class Spare {
 public:
  Spare() {
    if (*kept_ == nullptr) *kept_ = std::make_unique<channel::Received>();
  }
  std::unique_ptr<channel::Received>& operator*() const noexcept { return *kept_; }

 private:
  const platform::OfThread<std::unique_ptr<channel::Received>> kept_;
};

// Returns act(wait) for an open receiver. If an earlier call deferred an error, returns that instead.
template <class Act>
auto receiving(ChannelState& state, const Timeout& timeout, const std::stop_token& stop, Act act)
    -> decltype(act(platform::WaitContext{})) {
  return with_waits(state, "receiver", timeout, stop,
                    [&](const platform::WaitContext& wait) -> decltype(act(platform::WaitContext{})) {
                      if (auto error = state.take_deferred()) return *std::move(error);
                      return act(wait);
                    });
}

}  // namespace shmtree::api
