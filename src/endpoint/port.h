// What a Sender, a Receiver and a Queue are in every language: an object of the program's that has an end of a channel,
// or both.
//
// What holds:
//   - It counts as one object of each end (Membership) from attach() until that end is closed here, except while the
//     end is passive. A passive end was inherited over a fork and not given: the object keeps its channel, but is
//     attached neither to the channel nor to its name until first use.
//   - A closed end leaves the channel once no thread is in a Call that uses it: a message that such a call puts is in
//     the channel before the end of the stream. The last of these calls leaves. close() does not wait for them: it may
//     run in one, by code that a put runs.
//   - It has its channel, and its part in the name, from attach() until its ends are closed and no thread is in a Call
//     of it: whoever closes it during calls leaves that to the last of them. After that it knows the channel as long as
//     this process has it by another object.
//
// Thread safety: any thread; attach() while no other uses it.
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
  Port() noexcept = default;  // closed
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // Joins these ends, all or none; once. `kept` is let go of with the channel.
  Status attach(std::shared_ptr<channel::Channel> channel, std::initializer_list<channel::End> ends,
                std::shared_ptr<Name> name = nullptr, std::shared_ptr<const void> kept = nullptr);
  bool was_attached() const noexcept { return attached_; }

  // Leaves the end, or has the last Call that uses it do so, and wakes all who wait at the channel, its callers here
  // among them.
  void close(channel::End end) noexcept;
  bool closed(channel::End end) const noexcept { return stand(end) >= Stand::kClosing; }

  // Whether this process has it over a fork that came after attach().
  bool is_inherited() const noexcept { return attached_in_ != fork_count(); }
  // Of one that is inherited: an open end is passive from now on, unless this process has used it, or a
  // thread is in a Call of it.
  void make_passive(channel::End end) noexcept;
  // Of one that is inherited: this process was given it.
  void note_given() noexcept;
  // Whether the end is neither closed nor passive.
  bool is_attached(channel::End end) const noexcept { return stand(end) == Stand::kAttached; }
  // Of one that is used: kClosed when it was passive and the stream has ended meanwhile. Within a Call.
  Status attach_again(channel::End end);
  // True if every end of this object is closed.
  bool closed() const noexcept { return ended_.load(std::memory_order_acquire); }

  // In a Call, while an end is open.
  channel::Channel& channel() const noexcept { return *channel_; }
  // The channel also of one that is closed, while this process has it; else null.
  std::shared_ptr<channel::Channel> known_channel() const noexcept { return known_.lock(); }
  // The same in a Call, which keeps it while an end is open. So no reference is taken then, which the forked children
  // of a process that waits in it would never give back.
  std::shared_ptr<channel::Channel> any_channel() const noexcept {
    if (closed()) return known_channel();
    return {std::shared_ptr<channel::Channel>(), channel_.get()};
  }

  // This process's part in the channel's name; null for none.
  std::shared_ptr<Name> name() const noexcept;
  void set_name(std::shared_ptr<Name> name) noexcept;

 private:
  friend class Call;
  enum class Stand : std::uint8_t { kAttached, kPassive, kClosing, kClosed };  // closing: it is yet to leave
  Stand stand(channel::End end) const noexcept { return stands_[end].load(std::memory_order_acquire); }
  // How many forks there are between this process and the one that loaded the library.
  static std::uint32_t fork_count() noexcept;
  void leave_name() noexcept;
  void finish_closing() noexcept;
  void leave_if_unused(channel::End end) noexcept;
  void let_go() noexcept;
  bool is_in_use() const noexcept { return platform::is_in_use(this, sizeof *this); }

  std::shared_ptr<const void> kept_;
  std::shared_ptr<channel::Channel> channel_;
  std::shared_ptr<Name> name_;  // under mutex_
  std::weak_ptr<channel::Channel> known_;
  channel::PerEnd<std::atomic<Stand>> stands_{Stand::kClosed, Stand::kClosed};
  std::atomic<bool> ended_{true};
  std::atomic<bool> may_have_to_finish_{false};  // set by the first close()
  bool attached_ = false;
  std::uint32_t attached_in_ = 0;  // fork_count() then
  std::string left_name_{};        // under mutex_: the path of the name, while all that is open is passive
  mutable platform::ForkSafeMutex mutex_;
};

// A call of a port. What is closed meanwhile is there to the end of it.
class Call {
 public:
  explicit Call(Port& port) noexcept : after_{port}, use_(&port) {}
  // Also keeps the end from leaving the channel. For calls that end, or run nothing that may wait, once it is closed.
  Call(Port& port, channel::End using_end) noexcept : after_{port}, use_(&port.stands_[using_end]) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  struct After {
    Port& port;
    ~After() {
      if (port.may_have_to_finish_.load(std::memory_order_relaxed)) [[unlikely]]
        port.finish_closing();
    }
  };
  After after_;
  platform::InUse use_;  // ends before that
};

}  // namespace shmtree::endpoint
