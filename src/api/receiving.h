// Common parts of the calls of a Receiver.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "api/state.h"
#include "endpoint/receive.h"
#include "platform/of_thread.h"

namespace shmtree::api {

// Decodes a message to an Item. Errors have the ticket.
Result<Item> to_item(memory::Arena& arena, channel::Incoming& message);
// Returns the Item, which then also keeps the block of its message. May throw std::bad_alloc.
Item kept_with(const Item& item, memory::Lease block);

// True if receiving the message again may succeed, because memory was short. All other errors mean that the message is
// damaged.
inline bool may_retry_after(const Error& error, channel::Incoming& message) noexcept {
  if (error.code != Code::kOutOfSharedMemory) return false;
  message.set_not_built();
  return true;
}

// Reserves space for one more element. Returns false if there is no memory.
template <class T>
bool has_space_for_one(std::vector<T>& elements) noexcept try {
  elements.reserve(elements.size() + 1);
  return true;
} catch (const std::bad_alloc&) {
  return false;
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

// Receives several objects with a codec of endpoint/receive.h that has state().
template <class Made, class Codec>
class Many final : public Codec {
 public:
  template <class... Arguments>
  Many(std::size_t most, Arguments&&... arguments) : Codec(std::forward<Arguments>(arguments)...), most_(most) {}

  // Waits for the first message, and takes those that are queued or arrive `within` this time. `call` is the name in
  // errors.
  Result<std::vector<Made>> receive(const char* call, const platform::WaitContext& wait,
                                    std::chrono::nanoseconds within = {}) {
    if (most_ == 0) return Error{Code::kInvalid, std::string(call) + "() of 0 items; ask for at least 1"};
    reserve();
    channel::Channel& channel = this->state().channel();
    const Spare spare;
    Result<Made> first = endpoint::receive(*this, channel, *spare, wait);
    if (!first) return std::move(first).error();
    add(std::move(first));
    endpoint::receive_rest(*this, channel, *spare, {platform::Deadline::after(within), wait.hooks, wait.spin});
    return std::move(objects_);
  }

  // The functions of receive_rest().
  bool wants_more() { return objects_.size() < most_ && (objects_.size() < objects_.capacity() || reserve()); }
  void add(Result<Made> object) { objects_.push_back(std::move(*object)); }
  void defer(const Error& error) {
    // kPeerDied is reported only once, so it is stored for the next call. All other errors would occur again in that
    // call.
    if (error.code == Code::kPeerDied) this->state().defer(error);
  }
  void defer(Result<Made> object, bool may_retry) {
    if (!may_retry) this->state().defer(std::move(object).error());
  }

 private:
  bool reserve() {
    constexpr std::size_t kFew = 16;
    objects_.reserve(std::max(kFew, 2 * objects_.size()));
    return true;
  }
  const std::size_t most_;
  std::vector<Made> objects_{};
};

}  // namespace shmtree::api
