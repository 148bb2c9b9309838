// The object behind a Sender, a Receiver or a Queue in every language. It has one end of a channel, or both.
//
// Invariants:
//   - From attach() until an end is closed here, the port counts as one object of that end (Membership), except while
//     the end is passive. A passive end was inherited over a fork and not given to the child. The port keeps its
//     channel, but is attached neither to the channel nor to its name until the first use.
//   - A closed end leaves the channel once no thread is in a Call that uses it; the last of these calls leaves. So a
//     message that such a call puts is in the channel before the end of the stream. close() does not wait for these
//     calls, because user code that a put runs may call it.
//   - The port keeps its channel and its attachment to the name until its ends are closed and no thread is in a Call.
//     The last Call releases them. After that, channel() still finds the channel while this process has it through
// another object.
//
// Thread safety: any thread, but attach() only while no other thread uses the port.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "channel/channel.h"
#include "endpoint/names.h"
#include "platform/fork.h"
#include "platform/in_use.h"

namespace shmtree::endpoint {

class Port {
 public:
  Port() noexcept = default;  // Closed.
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // Joins all of these ends, or none. Call it once. `kept` is released with the channel.
  Status attach(std::shared_ptr<channel::Channel> channel, std::initializer_list<channel::End> ends,
                std::shared_ptr<Name> name = nullptr, std::shared_ptr<const void> kept = nullptr);
  bool was_attached() const noexcept { return attached_; }

  // Closes the end: leaves the channel, or lets the last Call that uses the end do so. Wakes all waiters of the
  // channel, including calls of this port.
  void close(channel::End end) noexcept;
  bool closed(channel::End end) const noexcept { return attachment(end) >= Attachment::kClosing; }
  // Closes the end, and reports a failure of this process to the peers, unless they do not count it as attached.
  void fail(channel::End end, memory::Failure failure) noexcept;

  // True if this process inherited the port over a fork after attach().
  bool is_inherited() const noexcept { return attached_in_ != fork_count(); }
  // For an inherited port: makes an open end passive, unless this process has used it or a thread is in a Call.
  void make_passive(channel::End end) noexcept;
  // For an inherited port: records that this process was given it.
  void note_given() noexcept;
  // True if the end is neither closed nor passive.
  bool is_attached(channel::End end) const noexcept { return attachment(end) == Attachment::kAttached; }
  // Call this within a Call before using an end. kClosed: the end was passive, and the stream has ended meanwhile.
  Status attach_again(channel::End end);
  // True if every end of this object is closed.
  bool closed() const noexcept { return ended_.load(std::memory_order_acquire); }

  // Use this within a Call, while an end is open.
  channel::Channel& channel() const noexcept { return *channel_; }
  // Returns the channel, also if the port is closed, while this process has it; otherwise null.
  std::shared_ptr<channel::Channel> known_channel() const noexcept { return known_.lock(); }
  // Does the same within a Call, which keeps the channel while an end is open. In that case it takes no reference,
  // since a child that is forked while this process waits would never release the reference.
  std::shared_ptr<channel::Channel> any_channel() const noexcept {
    if (closed()) return known_channel();
    return {std::shared_ptr<channel::Channel>(), channel_.get()};
  }

  // Returns this process's attachment to the channel's name, or null.
  std::shared_ptr<Name> name() const noexcept;
  void set_name(std::shared_ptr<Name> name) noexcept;

 private:
  friend class Call;
  friend class platform::CallOf<Port>;
  // kClosing: the end was closed, but has not left the channel yet.
  enum class Attachment : std::uint8_t { kAttached, kPassive, kClosing, kClosed };
  Attachment attachment(channel::End end) const noexcept { return attachments_[end].load(std::memory_order_acquire); }
  // Returns the number of forks between the process that loaded the library and this one.
  static std::uint32_t fork_count() noexcept;
  void leave_name() noexcept;
  void after_use() noexcept {
    if (may_have_to_finish_.load(std::memory_order_relaxed)) [[unlikely]]
      finish_closing();
  }
  void finish_closing() noexcept;
  void leave_if_unused(channel::End end) noexcept;
  void release_channel() noexcept;
  bool is_in_use() const noexcept { return platform::is_in_use(this, sizeof *this); }

  std::shared_ptr<const void> kept_;
  std::shared_ptr<channel::Channel> channel_;
  std::shared_ptr<Name> name_;  // Under mutex_.
  std::weak_ptr<channel::Channel> known_;
  channel::PerEnd<std::atomic<Attachment>> attachments_{Attachment::kClosed, Attachment::kClosed};
  std::atomic<bool> ended_{true};
  std::atomic<bool> may_have_to_finish_{false};  // Set by the first close().
  bool attached_ = false;
  std::uint32_t attached_in_ = 0;  // fork_count() at attach().
  std::string left_name_{};        // Under mutex_: path of the name while all open ends are passive.
  mutable platform::ForkSafeMutex mutex_;
};

// A call of a port. An end, or the channel, that is closed during the call stays usable until the call ends.
class Call : platform::CallOf<Port> {
 public:
  explicit Call(Port& port) noexcept : CallOf(port, &port) {}
  // Also keeps the end from leaving the channel. For calls that return soon after the end was closed.
  Call(Port& port, channel::End using_end) noexcept : CallOf(port, &port.attachments_[using_end]) {}
};

}  // namespace shmtree::endpoint
