// The arrays of one message that are already in its arena and are sent by reference. An array of new_array() is sent by
// reference by its first put; an array of a received message, when it is forwarded.
//
// Thread safety: none. Mutexes guard the claims.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "api/state.h"
#include "value/codec.h"

namespace shmtree::api {

class LentArrays {
 public:
  explicit LentArrays(ChannelState& state) : arena_(*state.arena), channel_(&state.channel()) {}
  // For the bytes of a FlatItem, received in the message of `origin`, which must outlive this object.
  LentArrays(ChannelState& state, const value::Origin& origin) : LentArrays(state) { flat_origin_ = &origin; }
  // For messages to a Latest or a Broadcast.
  LentArrays(ArenaState& arena, bool allows_pickle) : arena_(arena), allows_pickle_(allows_pickle) {}
  ~LentArrays() {
    if (!blocks_.empty()) [[unlikely]]
      withdraw();
  }
  LentArrays(const LentArrays&) = delete;
  LentArrays& operator=(const LentArrays&) = delete;

  // Implements value::Lender.
  std::optional<value::LentRange> lend(const value::ArrayMemory& memory);
  bool is_given(const value::Origin& origin) const noexcept;
  value::EncodeOptions options() const noexcept {
    if (channel_ == nullptr) return {.allow_pickle = allows_pickle_};
    return {.allow_pickle = channel_->allows_pickle(), .portable = channel_->is_portable()};
  }

  // Blocks that the message refers to, in the order of its reference numbers.
  const std::vector<memory::BlockRef>& blocks() const noexcept { return blocks_; }
  // True if this process, not the parent it was forked from, made the claims.
  bool are_ours() const noexcept {
    return (loans_.empty() || loans_.front()->claims.are_ours()) &&
           (received_.empty() || received_.front()->claims.are_ours());
  }
  // Call this after the message was put.
  void settle() noexcept {
    if (!blocks_.empty()) end(&endpoint::Claims::settle);
  }

 private:
  std::optional<value::LentRange> lend_own(const value::ArrayMemory& memory);
  std::optional<value::LentRange> lend_received(const value::ArrayMemory& memory);
  void withdraw() noexcept { end(&endpoint::Claims::withdraw); }
  void end(void (endpoint::Claims::*how)(const void*) noexcept) noexcept;
  std::uint32_t reference_to(memory::BlockRef block);

  ArenaState& arena_;
  Channel* channel_ = nullptr;
  bool allows_pickle_ = false;
  const value::Origin* flat_origin_ = nullptr;
  std::vector<memory::BlockRef> blocks_;
  std::vector<std::shared_ptr<Loan>> loans_;
  std::vector<Received*> received_;  // The Value that is sent keeps these alive.
};

}  // namespace shmtree::api

// Instantiated in lent_arrays.cpp, so that callers need not include value/encoder.h.
namespace shmtree::value {
extern template Status encode(const Value&, format::FrameBuilder&, api::LentArrays&);
}  // namespace shmtree::value
