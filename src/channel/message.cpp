#include "channel/message.h"

#include <cstring>
#include <mutex>

namespace shmtree::channel {

Incoming& Incoming::operator=(Incoming&& other) noexcept {
  if (this == &other) return *this;
  drop();
  arena_ = std::exchange(other.arena_, nullptr);
  ticket_ = other.ticket_;
  bytes_ = other.bytes_;
  block_ = other.block_;
  sender_ = other.sender_;
  receiver_ = other.receiver_;
  attempts_ = other.attempts_;
  came_back_ = other.came_back_;
  not_built_ = other.not_built_;
  failed_before_ = other.failed_before_;
  data_ = other.data_;
  if (other.data_ == other.inline_data_) {
    std::memcpy(inline_data_, other.inline_data_, bytes_);
    data_ = inline_data_;
  }
  return *this;
}

Result<Lease> Incoming::adopt() {
  if (arena_ == nullptr) return Error{Code::kInvalid, "this message holds no block"};
  return arena_->share_hold(block_);
}

void Incoming::write_to(RingSlot& slot) const noexcept {
  platform::store_once(slot.ticket, ticket_);
  platform::store_once(slot.block, in_block() ? memory::pack(block_) : 0);
  platform::store_once(slot.bytes, bytes_);
  platform::store_once(slot.sender, sender_);
  if (!in_block()) std::memcpy(slot.inline_data(), inline_data_, frame().size());
}

void Unreturned::add(std::unique_ptr<Received> received) noexcept {
  std::unique_ptr<Received> inherited;  // from a parent: let go of outside the mutex
  const Identity me = control_.arena.current_identity();
  const std::lock_guard guard(mutex_);
  if (owner_.load(std::memory_order_relaxed) != me) {
    inherited = std::move(first_);
    count_.store(0, std::memory_order_relaxed);
    owner_.store(me, std::memory_order_relaxed);
  }
  std::unique_ptr<Received>* place = &first_;
  while (*place != nullptr && (*place)->message.ticket() < received->message.ticket()) place = &(*place)->next;
  received->next = std::move(*place);
  *place = std::move(received);
  count_.fetch_add(1, std::memory_order_relaxed);
}

std::unique_ptr<Received> Unreturned::take_first() noexcept {
  const std::lock_guard guard(mutex_);
  if (count() == 0) return nullptr;
  std::unique_ptr<Received> first = std::move(first_);
  first_ = std::move(first->next);
  count_.fetch_sub(1, std::memory_order_relaxed);
  return first;
}

}  // namespace shmtree::channel
