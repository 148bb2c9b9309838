#include "endpoint/port.h"

#include <mutex>

namespace shmtree::endpoint {

using channel::Channel;
using channel::End;

Status Port::attach(std::shared_ptr<Channel> channel, std::initializer_list<End> ends, std::shared_ptr<Name> name,
                    std::shared_ptr<const void> kept) {
  for (const End* end = ends.begin(); end != ends.end(); ++end) {
    Status joined = channel->membership().join(*end);
    if (joined) continue;
    while (end != ends.begin()) channel->membership().leave(*--end);
    return joined;
  }
  const std::lock_guard guard(mutex_);  // against the end of a call that was before it
  known_ = channel;
  channel_ = std::move(channel);
  name_ = std::move(name);
  kept_ = std::move(kept);
  attached_ = true;
  ended_.store(false, std::memory_order_release);
  for (const End end : ends) closed_[end].store(false, std::memory_order_release);
  return success();
}

Port::~Port() {
  for (const End end : channel::kEnds) {
    if (!closed(end)) channel_->membership().leave(end);
  }
}

void Port::close(End end) noexcept {
  const Call call(*this);
  if (closed_[end].exchange(true)) return;
  if (closed_[channel::other(end)].load()) ended_.store(true);
  channel_->membership().leave(end);
  channel_->watchers().wake_all();
}

void Port::let_go() noexcept {
  std::shared_ptr<Name> name;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<const void> kept;
  const std::lock_guard guard(mutex_);
  if (!closed() || channel_ == nullptr || platform::is_in_use(this)) return;
  name.swap(name_);
  channel.swap(channel_);
  kept.swap(kept_);
}

std::shared_ptr<Name> Port::name() const noexcept {
  const std::lock_guard guard(mutex_);
  return name_;
}

void Port::set_name(std::shared_ptr<Name> name) noexcept {
  const std::lock_guard guard(mutex_);
  name_.swap(name);
}

}  // namespace shmtree::endpoint
