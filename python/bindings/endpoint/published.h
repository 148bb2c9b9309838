// Parts that Latest and Broadcast share: objects that another thread may close, values for many readers, and their
// decoding.
//
// All calls need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "bindings/codec/decode.h"
#include "bindings/codec/encode.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/objects/arena_arrays.h"
#include "broadcast/ring.h"
#include "endpoint/message_transfers.h"
#include "memory/arena.h"

namespace shmtree::python {

// A null `what` means that the object was never initialised.
[[noreturn]] void throw_closed(const char* what);

// Holds the C++ part of a Python object. Another thread may close or drop the object during a call, which keeps the
// part alive. Without a call of __init__, an object is all zeros and counts as closed.
template <class T>
class Closable {
 public:
  static void* operator new(std::size_t bytes) {
    void* const made = std::calloc(1, bytes);
    if (made == nullptr) throw std::bad_alloc();
    return made;
  }
  static void* operator new(std::size_t, void* place) noexcept { return place; }
  static void operator delete(void* made) noexcept { std::free(made); }

  Closable(std::shared_ptr<T> thing, const char* what) : what_(what), thing_(std::move(thing)) {}

  bool is_closed() const { return get() == nullptr; }
  // Returns the C++ part. Throws ChannelClosed if the object was closed.
  std::shared_ptr<T> open() const {
    auto thing = get();
    if (!thing) throw_closed(what_);
    return thing;
  }
  // Closes the object and returns the C++ part, or null if it was closed already.
  std::shared_ptr<T> close() {
    if (what_ == nullptr) return nullptr;
    closed->store(true);
    const std::lock_guard guard(mutex_);
    return std::exchange(thing_, nullptr);
  }
  const char* what() const noexcept { return what_; }
  const std::shared_ptr<std::atomic<bool>> closed = std::make_shared<std::atomic<bool>>(false);

 private:
  std::shared_ptr<T> get() const {
    if (what_ == nullptr) return nullptr;
    const std::lock_guard guard(mutex_);
    return thing_;
  }
  const char* const what_;
  mutable Mutex mutex_;
  std::shared_ptr<T> thing_;
};

// Closes a publisher, and reports a failure with that exit code; 0: none yet.
template <class End>
void fail_publisher(End& self, std::uint32_t exit_code) {
  if (const auto last = self.close()) last->close(memory::failure_with(exit_code));
}

// Hooks for the waits of such an object. They also end the wait when the object is closed.
class ClosableHooks : public GilHooks {
 public:
  template <class T>
  ClosableHooks(const Closable<T>& of, pybind11::handle block, pybind11::handle timeout)
      : what_(of.what()), closed_(of.closed) {
    if (!parse_deadline(block.ptr(), timeout.ptr(), &deadline_)) throw pybind11::error_already_set();
  }
  platform::WaitContext wait() noexcept { return {deadline_, this}; }
  bool interrupted() noexcept override { return *closed_ || GilHooks::interrupted(); }

  template <class T>
  T done(Result<T> result) {
    if (!result.ok()) fail(result.error());
    return std::move(*result);
  }
  [[noreturn]] void fail(const Error& error);

 private:
  const char* const what_;
  const std::shared_ptr<std::atomic<bool>> closed_;
  platform::Deadline deadline_;
};

// A value that is being published to many readers (endpoint/published.h): an object that is encoded, or a Frame that is
// copied as it is.
class Published {
 public:
  // `pickled` is incremented if the value needs a pickle.
  Published(memory::Arena& arena, PyObject* object, bool allow_pickle, bool move, const char* what,
            std::atomic<std::uint64_t>& pickled);

  std::uint64_t bytes() const noexcept { return bytes_; }
  std::span<const memory::BlockRef> blocks() const noexcept { return loans_.blocks(); }
  void write(std::byte* out);
  bool is_ours() const noexcept { return loans_.are_ours(); }
  bool gives_ends() const noexcept { return !transfers_.empty(); }
  void carry(memory::Arena& arena, memory::BlockRef block) const noexcept { transfers_.carry(arena, block); }
  // Call it after the message was published: its loans and transfers become final.
  void settle() noexcept {
    loans_.settle();
    transfers_.keep();
  }

 private:
  LoanBook loans_;
  endpoint::MessageTransfers transfers_{};
  BorrowedSession session_{};
  std::span<const std::byte> frame_{};
  std::uint64_t bytes_ = 0;
};

// Converts the argument `copy` to a policy. Throws ValueError.
inline CopyPolicy copy_policy_of(pybind11::handle copy) {
  CopyPolicy policy = CopyPolicy::kAuto;
  if (!parse_copy_policy(copy.ptr(), &policy)) throw pybind11::error_already_set();
  return policy;
}

// Says if another attempt to build an object may succeed.
enum class Retry {
  kNever,
  kCounted,     // memory ran out, or the exception is not an Exception, such as SystemExit
  kInterrupted  // a signal handler raised, or the exception is KeyboardInterrupt
};

// Builds the object of a published frame. `block`, if valid, keeps the frame and the blocks that it refers to. Views
// are read-only. `copy` is the result of endpoint::copy_policy_of_published(). Sets `*retry` before it throws.
pybind11::object decode_published(memory::Arena& arena, std::span<const std::byte> frame, const memory::Lease& block,
                                  CopyPolicy copy, bool allow_pickle, Retry* retry = nullptr);

// Returns (number, frame): the frame of a published message, as bytes that stand alone.
pybind11::tuple published_frame(memory::Arena& arena, std::uint64_t number, std::span<const std::byte> frame,
                                const memory::Lease& block);

// Returns (number of messages put, pids of the publishers, [(subscription, its pid, number of messages that it has
// passed)], False if no publisher is left).
pybind11::tuple progress_of(const broadcast::Ring& ring);

}  // namespace shmtree::python
