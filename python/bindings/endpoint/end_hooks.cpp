#include "bindings/endpoint/end_hooks.h"

#include "bindings/cpython/errors.h"
#include "bindings/endpoint/stalled_wait.h"
#include "platform/clock.h"

namespace shmtree::python {

namespace {

constexpr std::int64_t kFirstPollNs = 40'000'000;

}  // namespace

// True if the wait must end because the end was closed.
bool EndHooks::is_over() const {
  const auto channel = self_->port.known_channel();  // valid until the end of the call
  if ((was_open_ && until_ != Until::kAlone) || !channel) return true;
  return !channel->membership().is_used_here() && (until_ != Until::kAlone || !channel->ends().has_users_at_either());
}

void EndHooks::before_block() noexcept {
  if (waiting_since_ns_ == 0) {
    waiting_since_ns_ = platform::monotonic_ns();
    if (self_ && which_ == channel::End::kReceiving) {
      self_->getter_ns = waiting_since_ns_;
      self_->getter = PyThread_get_thread_ident();
    }
  }
  GilHooks::before_block();
}

bool EndHooks::check_for_unused() const {
  return !self_ || waiting_since_ns_ == 0 || until_ == Until::kAttached || self_->port.closed(which_) ||
         warn_of_stalled_wait(self_, which_, waiting_since_ns_, threads() == 1 ? Waiter::kOnlyThread : Waiter::kOther);
}

bool EndHooks::interrupted() noexcept {
  if (self_ && self_->port.closed(which_)) [[unlikely]] {
    was_closed_ = is_over();
    if (was_closed_) return true;
  }
  if (GilHooks::interrupted()) return true;
  // Most waits end before the first check for an unused end.
  return platform::monotonic_ns() - waiting_since_ns_ >= kFirstPollNs && !check_for_unused();
}

PyObject* raise_waited(const Endpoint* self, const EndHooks& hooks, const Error& error) {
  if (error.code == Code::kClosed || error.code == Code::kPeerDied) block_if_left_behind();
  if (error.code == Code::kInterrupted && hooks.was_closed()) {
    set_closed_here(self);
    return nullptr;
  }
  const bool is_timeout = error.code == Code::kEmpty || error.code == Code::kFull || error.code == Code::kTimeout;
  if (is_timeout && !hooks.check_for_unused()) return nullptr;
  return raise(error);
}

}  // namespace shmtree::python
