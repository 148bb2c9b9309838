// Sending.
#include <algorithm>
#include <new>

#include "api/state.h"
#include "endpoint/put.h"
#include "value/codec.h"

namespace shmtree {

namespace {

using api::Loan;
using channel::End;
using platform::WaitContext;

// The arrays of one message that lie in its arena: they go by reference, the first time.
class LoanedArrays final : public value::ExternalArrays {
 public:
  explicit LoanedArrays(api::ArenaState& arena) : arena_(arena) {}
  ~LoanedArrays() override {
    if (!loans_.empty()) [[unlikely]]
      withdraw();
  }

  bool find(const void* begin, std::uint64_t bytes, format::External& range, std::int64_t& at) override {
    std::shared_ptr<Loan> loan = arena_.loan_at(static_cast<const std::byte*>(begin), bytes);
    if (loan == nullptr) return false;
    const auto known = std::find(loans_.begin(), loans_.end(), loan);
    range = format::External{static_cast<std::uint32_t>(known - loans_.begin()), 0, loan->lease.bytes()};
    at = 0;
    if (known != loans_.end()) return true;
    loans_.reserve(loans_.size() + 1);  // what can fail comes before what is promised
    blocks_.push_back(loan->lease.ref());
    if (!arena_.lend(*loan, this)) return blocks_.pop_back(), false;
    loans_.push_back(std::move(loan));
    return true;
  }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return blocks_; }
  // All were when they were lent.
  bool are_ours() const noexcept { return loans_.empty() || loans_.front()->claims.are_ours(); }
  // The message was put.
  void settle() noexcept {
    if (loans_.empty()) return;
    const std::lock_guard guard(arena_.mutex);
    for (const auto& loan : loans_) loan->claims.settle(this);
  }

 private:
  void withdraw() noexcept {
    const std::lock_guard guard(arena_.mutex);
    for (const auto& loan : loans_) loan->claims.withdraw(this);
  }
  api::ArenaState& arena_;
  std::vector<std::shared_ptr<Loan>> loans_;
  std::vector<memory::BlockRef> blocks_;
};

// What endpoint::put() puts.
class Message {
 public:
  Message(api::ArenaState& arena, format::FrameBuilder& builder) : builder_(builder), loans_(arena) {}
  Status encode(const Value& value) { return value::encode(value, builder_, &loans_); }
  format::FrameBuilder& builder() noexcept { return builder_; }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return loans_.blocks(); }
  bool is_ours() const noexcept { return loans_.are_ours(); }
  void settle() noexcept { loans_.settle(); }

 private:
  format::FrameBuilder& builder_;
  LoanedArrays loans_;
};

// The two callers of put() differ in what ends the wait; the one without a stop_token is where programs spend time.
[[gnu::always_inline]] inline Result<std::uint64_t> put_encoded(api::ChannelState& state, Message& message,
                                                                const WaitContext& wait) {
  auto ticket = endpoint::put(*state.channel, message, wait);
  if (!ticket) ticket = state.told(std::move(ticket).error());
  return ticket;
}

[[gnu::always_inline]] inline Result<std::uint64_t> put(api::ChannelState& state, const Value& value,
                                                        const WaitContext& wait) {
  thread_local format::FrameBuilder builder;  // a message needs about as much memory as the one before
  builder.clear();
  Message message(*state.arena, builder);
  Status encoded = message.encode(value);
  if (!encoded) return std::move(encoded).error();
  return put_encoded(state, message, wait);
}

}  // namespace

Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout) const try {
  const api::Call call(*state_);
  if (call.closed()) return closed_here("sender");
  return shmtree::put(*state_, value, state_->wait(timeout));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
Result<std::uint64_t> Sender::put(const Value& value, Timeout timeout, const std::stop_token& stop) const {
  return api::until_stopped(*state_, "sender", timeout, stop,
                            [&](const WaitContext& wait) { return shmtree::put(*state_, value, wait); });
}

bool Sender::has_space() const {
  const api::Call call(*state_);
  return !call.closed() && state_->channel->sending().has_room();
}

namespace {

// Acks are waited for as long as the process has an end of the channel, be it another one.
Status wait_for(api::ChannelState& state, std::optional<std::uint64_t> ticket, const Timeout& timeout,
                const std::stop_token& stop = {}) {
  return or_out_of_memory([&]() -> Status {
    const api::Call call(state);
    const auto channel = call.any_channel();
    if (channel == nullptr) return closed_here("sender");
    endpoint::OrStopped<endpoint::UntilLeft> until(stop, channel.get(), *channel);
    Status acked = channel->acks().wait(ticket, waiting(timeout, &until));
    if (!acked && acked.code() == Code::kInterrupted && !channel->membership().is_used_here())
      return closed_here("sender");
    return acked;
  });
}

}  // namespace

Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout) const {
  return wait_for(*state_, ticket, timeout);
}
Status Sender::wait_for_ack(std::uint64_t ticket, Timeout timeout, const std::stop_token& stop) const {
  return wait_for(*state_, ticket, timeout, stop);
}
Status Sender::wait_for_all_ack(Timeout timeout) const {
  return wait_for(*state_, std::nullopt, timeout);
}
Status Sender::wait_for_all_ack(Timeout timeout, const std::stop_token& stop) const {
  return wait_for(*state_, std::nullopt, timeout, stop);
}
std::uint64_t Sender::pending_acks() const {
  const api::Call call(*state_);
  const auto channel = call.any_channel();
  return channel == nullptr ? 0 : channel->acks().pending();
}

namespace {

Result<ArrayRef> make_array(api::ChannelState& state, DType dtype, std::vector<std::int64_t> shape,
                            const WaitContext& wait) {
  auto array = state.arena->new_array(dtype, std::move(shape), wait);
  if (!array) return state.told(std::move(array).error());
  return array;
}

}  // namespace

Result<ArrayRef> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout) const {
  return api::with_open(*state_, "sender",
                        [&] { return make_array(*state_, dtype, std::move(shape), state_->wait(timeout)); });
}
Result<ArrayRef> Sender::new_array(DType dtype, std::vector<std::int64_t> shape, Timeout timeout,
                                   const std::stop_token& stop) const {
  return api::until_stopped(*state_, "sender", timeout, stop, [&](const WaitContext& wait) {
    return make_array(*state_, dtype, std::move(shape), wait);
  });
}

Result<ChannelStats> Sender::stats() const {
  return api::with_open(*state_, "sender", [this]() -> Result<ChannelStats> { return state_->stats(); });
}

Result<std::string> Sender::handle() const {
  return api::with_open(*state_, "sender", [this] { return state_->handle(); });
}

Result<Sender> Sender::open(const std::string& handle) {
  auto state = or_out_of_memory([&] { return api::ChannelState::open(handle, End::kSending); });
  if (!state) return std::move(state).error();
  return api::ChannelState::sender(std::move(*state));
}

void Sender::close() {
  state_->close();
}
bool Sender::closed() const noexcept {
  return state_->closed.load();
}

}  // namespace shmtree
