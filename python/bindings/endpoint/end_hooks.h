// Hooks for the waits of Python threads at an end. They also end the wait when another thread closes the end.
#pragma once

#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "channel/channel.h"

namespace shmtree::python {

class EndHooks final : public GilHooks {
 public:
  // For waits that continue when an end is closed.
  EndHooks() noexcept = default;
  // For waits at an end of an object, within a Call of it. The value says when a close ends the wait. If the end is
  // closed already, a wait ends when this process has no end of the channel any more.
  enum class Until {
    kClosed,    // when another thread closes the end
    kAttached,  // the same, and the wait is for peers to attach: it does not warn of peers that never use their end
    kAlone,     // when no process has an end of the channel any more
  };
  EndHooks(Endpoint* self, channel::End which, Until until = Until::kClosed) noexcept
      : self_(self), which_(which), until_(until), was_open_(!self->port.closed(which)) {}

  void before_block() noexcept override;
  bool interrupted() noexcept override;

  bool was_closed() const noexcept { return was_closed_; }
  // Warns the user if the wait is in vain (stalled_wait.h). Returns false if the warning became an exception, which is
  // set.
  bool check_for_unused() const;

 private:
  bool is_over() const;
  Endpoint* self_ = nullptr;
  channel::End which_ = channel::End::kSending;
  Until until_ = Until::kClosed;
  bool was_open_ = false;  // when the call began
  bool was_closed_ = false;
  std::int64_t waiting_since_ns_ = 0;  // 0: the call has not blocked yet
};

// Sets the exception for a call of `self` that waited with these hooks, and returns null. An exception that a signal
// handler raised stays set. If the end was closed during the wait, sets ChannelClosed. Otherwise sets the exception for
// `error`. `self` may be null if the hooks watch no end.
PyObject* raise_waited(const Endpoint* self, const EndHooks& hooks, const Error& error);
// Does the same for an error. Returns None on success.
inline PyObject* none_or_raise(const Endpoint* self, const EndHooks& hooks, const Status& status) {
  if (!status.ok()) return raise_waited(self, hooks, status.error());
  Py_RETURN_NONE;
}

}  // namespace shmtree::python
