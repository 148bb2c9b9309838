#include "bindings/endpoint/end_hooks.h"

#include "bindings/cpython/errors.h"

namespace shmtree::python {

// Of a wait at an end that was closed.
bool EndHooks::is_over() const {
  const auto channel = self_->port.known_channel();  // there to the end of the call
  if (until_ == Until::kClosed || !channel) return true;
  return !channel->membership().is_used_here() && (until_ == Until::kLeft || !channel->ends().anyone_at_either());
}

bool EndHooks::interrupted() noexcept {
  if (self_ && self_->port.closed(which_)) [[unlikely]] {
    was_closed_ = is_over();
    if (was_closed_) return true;
  }
  return GilHooks::interrupted() || !look_for_unloaded();
}

PyObject* raise_waited(const Endpoint* self, const EndHooks& hooks, const Error& error) {
  if (error.code == Code::kClosed || error.code == Code::kPeerDied) stay_if_left_behind();
  if (error.code == Code::kInterrupted && hooks.was_closed()) {
    set_closed_here(self);
    return nullptr;
  }
  const bool in_vain = error.code == Code::kEmpty || error.code == Code::kFull || error.code == Code::kTimeout;
  if (in_vain && !hooks.look_for_unloaded()) return nullptr;
  return raise(error);
}

}  // namespace shmtree::python
