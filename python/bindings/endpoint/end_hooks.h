// How Python threads wait at an end: as everywhere, and until it is closed.
#pragma once

#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "channel/channel.h"

namespace shmtree::python {

class EndHooks final : public GilHooks {
 public:
  // For waits that no end of an object ends.
  EndHooks() noexcept = default;
  // For waits at that end of an object, within a Call of it; for kLeft and kAlone it may be closed already.
  enum class Until {
    kClosed,  // another thread closes the end
    kLeft,    // and this process has no end of the channel any more
    kAlone,   // and nobody else has
  };
  EndHooks(Endpoint* self, channel::End which, Until until = Until::kClosed) noexcept
      : self_(self), which_(which), until_(until) {}

  void before_block() noexcept override;
  bool interrupted() noexcept override;

  bool was_closed() const noexcept { return was_closed_; }
  // Has the user warned of a wait in vain; false when that became an exception, which is set.
  bool look_for_unused() const;

 private:
  bool is_over() const;
  Endpoint* self_ = nullptr;
  channel::End which_ = channel::End::kSending;
  Until until_ = Until::kClosed;
  bool was_closed_ = false;
  std::int64_t waiting_since_ns_ = 0;  // 0: it did not have to wait yet
};

// Sets the exception for a call of `self` that waited with these hooks: what a signal handler raised, ChannelClosed
// when the end was closed meanwhile, else what stands for `error`. Returns null. `self` may be null where no hooks
// watch it.
PyObject* raise_waited(const Endpoint* self, const EndHooks& hooks, const Error& error);
// The same, or None when all went well.
inline PyObject* none_or_raise(const Endpoint* self, const EndHooks& hooks, const Status& status) {
  if (!status.ok()) return raise_waited(self, hooks, status.error());
  Py_RETURN_NONE;
}

}  // namespace shmtree::python
