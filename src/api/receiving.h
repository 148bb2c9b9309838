// What all calls of a Receiver have in common.
#pragma once

#include <memory>
#include <utility>

#include "api/state.h"
#include "endpoint/receive.h"
#include "platform/of_thread.h"

namespace shmtree::api {

// The Item of a message; its error has the ticket.
Result<Item> to_item(memory::Arena& arena, channel::Incoming& message);

// True if receiving the message again may succeed, because memory was short. All other errors are the message's fault.
inline bool may_retry_after(const Error& error, channel::Incoming& message) noexcept {
  if (error.code != Code::kOutOfSharedMemory) return false;
  message.set_not_built();
  return true;
}

// What a thread that has no memory gives a message back in.
class Spare {
 public:
  Spare() {
    if (*kept_ == nullptr) *kept_ = std::make_unique<channel::Received>();
  }
  std::unique_ptr<channel::Received>& operator*() const noexcept { return *kept_; }

 private:
  const platform::OfThread<std::unique_ptr<channel::Received>> kept_;
};

// `act` with the waits of a receiver that is open and has no error to tell first.
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
