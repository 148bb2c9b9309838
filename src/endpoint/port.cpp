#include "endpoint/port.h"

#include <mutex>

namespace shmtree::endpoint {

using channel::Channel;
using channel::End;

namespace {

std::atomic<std::uint32_t> g_fork_count{0};

[[maybe_unused]] const bool g_counts_forks = [] {
  static constinit platform::ForkHandlers handlers{
      .child = [] { g_fork_count.fetch_add(1, std::memory_order_relaxed); }};
  platform::add_fork_handlers(handlers);
  return true;
}();

}  // namespace

std::uint32_t Port::fork_count() noexcept {
  return g_fork_count.load(std::memory_order_relaxed);
}

Status Port::attach(std::shared_ptr<Channel> channel, std::initializer_list<End> ends, std::shared_ptr<Name> name,
                    std::shared_ptr<const void> kept) {
  for (const End* end = ends.begin(); end != ends.end(); ++end) {
    Status joined = channel->membership().join(*end);
    if (joined) continue;
    while (end != ends.begin()) channel->membership().leave(*--end);
    return joined;
  }
  const std::lock_guard guard(mutex_);  // Excludes the last steps of a call that began before this one.
  known_ = channel;
  channel_ = std::move(channel);
  name_ = std::move(name);
  kept_ = std::move(kept);
  attached_ = true;
  attached_in_ = fork_count();
  ended_.store(false, std::memory_order_release);
  for (const End end : ends) attachments_[end].store(Attachment::kAttached, std::memory_order_release);
  return success();
}

Port::~Port() {
  for (const End end : channel::kEnds) {
    if (is_attached(end)) channel_->membership().leave(end);
    if (attachment(end) == Attachment::kPassive) channel_->membership().end_passive(end);
    if (attachment(end) == Attachment::kClosing) channel_->membership().leave_now(end);
  }
}

void Port::close(End end) noexcept {
  const Call call(*this);
  if (closed(end)) return;
  Attachment before = Attachment::kAttached;
  const auto begin = [&] { return attachments_[end].compare_exchange_strong(before, Attachment::kClosing); };
  while (!channel_->membership().leave_later(end, begin)) {
    if (before >= Attachment::kClosing) return;
    if (before == Attachment::kPassive && attachments_[end].compare_exchange_strong(before, Attachment::kClosed)) {
      channel_->membership().end_passive(end);
      break;
    }
    before = Attachment::kAttached;
  }
  if (closed(channel::other(end))) ended_.store(true);
  may_have_to_finish_.store(true);
  leave_if_unused(end);
  channel_->watchers().wake_all();
}

void Port::fail(End end, memory::Failure failure) noexcept {
  const Call call(*this);
  if (is_attached(end)) channel_->ends().note_failed(end, failure);
  close(end);
}

// Called by the last call that used an end which another thread has closed, or by the last call that used the port.
void Port::finish_closing() noexcept {
  {
    const platform::InUse use(this);
    for (const End end : channel::kEnds) leave_if_unused(end);
  }
  release_channel();
}

// Called within a use of this port. The thread that sets kClosed leaves the channel.
void Port::leave_if_unused(End end) noexcept {
  Attachment before = attachment(end);
  if (before != Attachment::kClosing || platform::is_in_use(&attachments_[end])) return;
  if (attachments_[end].compare_exchange_strong(before, Attachment::kClosed)) channel_->membership().leave_now(end);
}

void Port::make_passive(End end) noexcept {
  if (!is_attached(end) || is_in_use() || channel_->membership().is_used(end)) return;
  const Call call(*this);
  Attachment before = Attachment::kAttached;
  if (!attachments_[end].compare_exchange_strong(before, Attachment::kPassive)) return;
  channel_->membership().make_passive(end);
  if (!is_attached(channel::other(end))) leave_name();
}

void Port::note_given() noexcept {
  for (const End end : channel::kEnds) {
    if (is_attached(end)) channel_->membership().note_given(end);
  }
}

Status Port::attach_again(End end) {
  if (attachment(end) != Attachment::kPassive) return success();
  Status joined = channel_->membership().join_late(end);
  if (!joined) return joined;
  Attachment before = Attachment::kPassive;
  if (!attachments_[end].compare_exchange_strong(before, Attachment::kAttached)) {
    channel_->membership().leave(end);
    if (before == Attachment::kAttached) return success();  // Another thread was faster.
    return Error{Code::kClosed, "this end of the channel was closed in this process"};
  }
  channel_->membership().end_passive(end);
  std::string path;
  {
    const std::lock_guard guard(mutex_);
    path.swap(left_name_);
  }
  if (!path.empty()) set_name(join_name(path, channel_->arena()));
  return success();
}

// Keeps the name if there is no memory for its path.
void Port::leave_name() noexcept {
  try {
    const auto left = name();
    if (left == nullptr) return;
    std::string path = left->path();
    {
      const std::lock_guard guard(mutex_);
      left_name_.swap(path);
    }
    set_name(nullptr);
  } catch (const std::bad_alloc&) {
  }
}

void Port::release_channel() noexcept {
  std::shared_ptr<Name> name;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<const void> kept;
  const std::lock_guard guard(mutex_);
  for (const End end : channel::kEnds) {
    if (attachment(end) != Attachment::kClosed) return;
  }
  if (channel_ == nullptr || is_in_use()) return;
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
