// Hides a message that a woken thread is about to receive.
//
// Before such a thread receives, it may have to wait for its interpreter (the GIL). Meanwhile the message is in the
// channel, and would keep the process's descriptor readable. A thread that polls the descriptor would find it ready
// repeatedly, and hold the GIL that the first thread needs. So the woken thread claims a message before it waits for
// the interpreter. The descriptor is readable only for messages that no thread has claimed.
//
// A claim moves nothing. If its thread never returns, as at the exit of an interpreter, the message is still in the
// channel.
//
// Thread safety: none; one object for each call that receives.
#pragma once

#include "channel/watchers.h"
#include "platform/dcheck.h"

namespace shmtree::channel {

// The wait hooks of a call that receives. They claim when a block ends, if there is a message and the process has a
// descriptor. The claim ends with the call, before the thread blocks again, or before code of the program runs, which
// may poll.
class ClaimHooks final : public platform::WaitHooks {
 public:
  ClaimHooks(Watchers& watchers, platform::WaitHooks* hooks) noexcept : watchers_(watchers), hooks_(hooks) {}
  ~ClaimHooks() override { drop(); }
  ClaimHooks(const ClaimHooks&) = delete;
  ClaimHooks& operator=(const ClaimHooks&) = delete;

  void before_block() noexcept override {
    drop();
    hooks_->before_block();
  }
  void after_block() noexcept override {
    SHMTREE_DCHECK(!has_claimed_);
    has_claimed_ = watchers_.claim();
    hooks_->after_block();  // may never return
  }
  bool interrupted() noexcept override {
    drop();
    return hooks_->interrupted();
  }
  bool ended() const noexcept override { return hooks_->ended(); }
  std::uint32_t threads() const noexcept override { return hooks_->threads(); }

 private:
  void drop() noexcept {
    if (has_claimed_) watchers_.drop_claim();
    has_claimed_ = false;
  }

  Watchers& watchers_;
  platform::WaitHooks* const hooks_;
  bool has_claimed_ = false;
};

}  // namespace shmtree::channel
