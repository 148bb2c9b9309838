// The arrays of one message that lie in its arena already: those of new_array() go by reference the first time, those
// of received messages when they are forwarded.
//
// Thread safety: none; what it claims is guarded.
#pragma once

#include <memory>
#include <vector>

#include "api/state.h"
#include "value/codec.h"

namespace shmtree::api {

class LentArrays : public value::ExternalArrays {
 public:
  explicit LentArrays(ChannelState& state) : arena_(*state.arena), channel_(&state.channel()) {}
  // For what goes into no channel.
  LentArrays(ArenaState& arena, bool allows_pickle) : arena_(arena), allows_pickle_(allows_pickle) {}
  ~LentArrays() override {
    if (!blocks_.empty()) [[unlikely]]
      withdraw();
  }

  bool find(const void* begin, std::uint64_t bytes, format::External& range, std::int64_t& at) override;
  bool find_received(const value::Origin& origin, const std::byte* begin, std::uint64_t bytes, bool writable,
                     format::External& range, std::int64_t& at) override;
  bool is_given(const value::Origin& origin) const noexcept override;
  bool allows_pickle() const noexcept override {
    return channel_ == nullptr ? allows_pickle_ : channel_->allows_pickle();
  }

  bool is_portable() const noexcept override { return channel_ != nullptr && channel_->is_portable(); }

  // What the message refers to, by the numbers of its references.
  const std::vector<memory::BlockRef>& blocks() const noexcept { return blocks_; }
  // All were when they were lent.
  bool are_ours() const noexcept {
    return (loans_.empty() || loans_.front()->claims.are_ours()) &&
           (received_.empty() || received_.front()->claims.are_ours());
  }
  // The message was put.
  void settle() noexcept {
    if (!blocks_.empty()) end(&endpoint::Claims::settle);
  }

 private:
  void withdraw() noexcept { end(&endpoint::Claims::withdraw); }
  void end(void (endpoint::Claims::*how)(const void*) noexcept) noexcept;
  std::uint32_t reference_to(memory::BlockRef block);

  ArenaState& arena_;
  Channel* channel_ = nullptr;
  bool allows_pickle_ = false;
  std::vector<memory::BlockRef> blocks_;
  std::vector<std::shared_ptr<Loan>> loans_;
  std::vector<Received*> received_;  // kept by the value
};

}  // namespace shmtree::api
