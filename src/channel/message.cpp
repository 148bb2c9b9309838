#include "channel/message.h"

#include <cstring>
#include <mutex>

#include "platform/dcheck.h"

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
    SHMTREE_DCHECK(bytes_ <= kMaxInlineBytes);
    std::memcpy(inline_data_, other.inline_data_, bytes_);
    data_ = inline_data_;
  }
  return *this;
}

Result<Lease> Incoming::adopt() {
  if (arena_ == nullptr) return Error{Code::kInvalid, "this message is not in a block of shared memory"};
  return arena_->share_hold(block_);
}

void Incoming::write_to(RingSlot& slot) const noexcept {
  SHMTREE_DCHECK(in_block() || frame().size() <= kMaxInlineBytes);
  platform::store_once(slot.ticket, ticket_);
  platform::store_once(slot.block, in_block() ? memory::pack(block_) : 0);
  platform::store_once(slot.bytes, bytes_);
  platform::store_once(slot.sender, sender_);
  if (!in_block()) std::memcpy(slot.inline_data(), inline_data_, frame().size());
}

void Unreturned::add(std::unique_ptr<Received> received, Kind kind) noexcept {
  SHMTREE_DCHECK(received != nullptr && received->next == nullptr);
  std::unique_ptr<Received> inherited[2];  // inherited from the parent; released outside the mutex
  const Identity me = arena_.current_identity();
  const std::lock_guard guard(mutex_);
  if (owner_.load(std::memory_order_relaxed) != me) {
    for (const Kind each : {Kind::kReceivable, Kind::kGivenUp}) {
      inherited[static_cast<std::size_t>(each)] = std::move(list(each).first);
      list(each).count.store(0, std::memory_order_relaxed);
    }
    owner_.store(me, std::memory_order_relaxed);
  }
  std::unique_ptr<Received>* link = &list(kind).first;
  while (*link != nullptr && (*link)->message.ticket() < received->message.ticket()) link = &(*link)->next;
  received->next = std::move(*link);
  *link = std::move(received);
  list(kind).count.fetch_add(1, std::memory_order_relaxed);
}

std::unique_ptr<Received> Unreturned::take_first(Kind kind) noexcept {
  const std::lock_guard guard(mutex_);
  if (count(kind) == 0) return nullptr;
  List& from = list(kind);
  std::unique_ptr<Received> first = std::move(from.first);
  SHMTREE_DCHECK(first != nullptr);
  from.first = std::move(first->next);
  from.count.fetch_sub(1, std::memory_order_relaxed);
  return first;
}

}  // namespace shmtree::channel
