// State of a Broadcast, a Subscriber or a Latest object, in C++ and in Python. Port is its counterpart for ends of
// channels.
//
// Invariants:
//   - The port owns its part from attach() until close(). A port without a part counts as closed.
//   - close() does not wait for calls in progress. They share the part, so the last one to return releases it.
//
// Thread safety: any thread, but attach() only while no other thread uses the port.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "endpoint/names.h"
#include "memory/transfers.h"
#include "platform/fork.h"

namespace shmtree::endpoint {

template <class Part>
class RingPort {
 public:
  RingPort() noexcept = default;
  RingPort(std::shared_ptr<Part> part, std::shared_ptr<Name> name) noexcept {
    attach(std::move(part), std::move(name));
  }

  // Sets the part. Call it once.
  void attach(std::shared_ptr<Part> part, std::shared_ptr<Name> name) noexcept {
    part_ = std::move(part);
    name_ = std::move(name);
    was_attached_ = true;
    closed_.store(false, std::memory_order_release);
  }
  bool was_attached() const noexcept { return was_attached_; }

  bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
  // Returns null if the port is closed.
  std::shared_ptr<Part> part() const noexcept {
    const std::lock_guard guard(mutex_);
    return part_;
  }
  // Releases the part and the name, after `end(part)`. Calls in progress return when they notice closed().
  template <class End>
  void close(End end) {
    closed_.store(true, std::memory_order_relaxed);
    std::shared_ptr<Part> part;  // Released outside the mutex.
    std::shared_ptr<Name> name;
    {
      const std::lock_guard guard(mutex_);
      part.swap(part_);
      name.swap(name_);
    }
    if (part != nullptr) end(*part);
    memory::sweep_transfers();
  }

  std::shared_ptr<Name> name() const noexcept {
    const std::lock_guard guard(mutex_);
    return name_;
  }

 private:
  mutable platform::ForkSafeMutex mutex_;
  std::shared_ptr<Part> part_{};  // Under mutex_.
  std::shared_ptr<Name> name_{};  // Under mutex_.
  std::atomic<bool> closed_{true};
  bool was_attached_ = false;
};

}  // namespace shmtree::endpoint
