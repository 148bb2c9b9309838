// Implements pack(), unpack(), put_frame() and take_frames().
#include "api/frame.h"

#include <optional>
#include <vector>

#include "api/receiving.h"
#include "api/taken.h"
#include "endpoint/plain_messages.h"
#include "endpoint/put.h"
#include "value/codec.h"

namespace shmtree {

namespace {

using api::ChannelState;
using channel::Channel;
using detail::FrameAccess;
using detail::FrameState;
using platform::WaitContext;

Result<Frame> pack_value(const Value& value, const PackOptions& options) {
  format::FrameBuilder builder;
  Status encoded = value::encode(value, builder, {.portable = options.portable});
  if (!encoded) return std::move(encoded).error();
  auto memory = endpoint::frame_memory(builder.total_bytes());
  if (!memory) return std::move(memory).error();
  builder.write(memory->get());
  auto state = std::make_shared<FrameState>();
  state->raw.bytes = {memory->get(), static_cast<std::size_t>(builder.total_bytes())};
  state->raw.copy = std::move(*memory);
  format::CheckedFrame checked;  // Lists the contents of forwarded Items.
  Status sound = checked.load(state->raw.bytes);
  if (!sound) return std::move(sound).error();
  state->raw.contents = checked.contents();
  state->known_portable = options.portable;
  return FrameAccess::make(std::move(state));
}

Result<std::uint64_t> put_checked(ChannelState& state, std::span<const std::byte> bytes,
                                  const format::FrameContents& contents, bool known_portable, const WaitContext& wait) {
  Channel& channel = state.channel();
  const endpoint::Terms terms{.allow_pickle = channel.allows_pickle(), .portable = channel.is_portable()};
  Status may_go = endpoint::check_may_go(contents, terms, known_portable);
  if (!may_go) return std::move(may_go).error();
  return state.or_closed(endpoint::put(channel, endpoint::WholeFrame(bytes), wait));
}

Result<std::uint64_t> put_source(ChannelState& state, const FrameSource& source, const WaitContext& wait) {
  if (const Frame* frame = FrameAccess::of(source)) {
    const auto& held = FrameAccess::of(*frame);
    if (held == nullptr) return Error{Code::kInvalid, "this Frame is empty: it was moved from"};
    return put_checked(state, held->raw.bytes, held->raw.contents, held->known_portable, wait);
  }
  const std::span<const std::byte> bytes = FrameAccess::bytes(source);
  format::CheckedFrame checked;
  Status sound = checked.load(bytes);
  if (!sound) return std::move(sound).error();
  const format::FrameContents& contents = checked.contents();
  return put_checked(state, bytes.first(static_cast<std::size_t>(contents.bytes)), contents, false, wait);
}

// The codec of take_frames().
class Frames {
 public:
  using Object = Result<Frame>;
  Frames(ChannelState& state, std::size_t most) : state_(state), most_(most) {}

  Object decode(Channel& channel, channel::Incoming& message, bool* may_retry) {
    auto raw = endpoint::raw_frame(*channel.arena(), message, nullptr);
    Object object = raw ? or_out_of_memory([&]() -> Object {
      auto state = std::make_shared<FrameState>();
      state->raw = std::move(*raw);
      state->known_portable = channel.was_always_portable();
      return FrameAccess::make(std::move(state));
    })
                        : Object(std::move(raw).error());
    if (object) return object;
    *may_retry = api::may_retry_after(object.error(), message);
    Error error = object.error();
    error.message = "message " + std::to_string(message.ticket()) + ": " + error.message;
    error_ = error;
    return error;
  }
  Object failed(Error error) {
    error_ = state_.or_closed(std::move(error));
    return *error_;
  }
  bool wants_more() const noexcept { return frames_.size() < most_ && !state_.is_closed(); }
  bool add(Object frame, channel::Delivery delivery) {
    frames_.push_back(detail::TakenAccess::made(std::move(delivery), std::move(*frame)));
    return true;
  }
  void defer(const Error& error) {
    // kPeerDied is reported only once, so it is stored for the next call. All other errors would occur again in that
    // call.
    if (error.code == Code::kPeerDied) state_.defer(error);
  }
  void defer(const Object& object, bool may_retry) {
    if (!may_retry) state_.defer(object.error());
  }
  Result<std::vector<TakenFrame>> take(bool first) {
    if (!first) return *std::move(error_);
    return std::move(frames_);
  }

 private:
  ChannelState& state_;
  const std::size_t most_;
  std::optional<Error> error_{};  // The error of the first message.
  std::vector<TakenFrame> frames_{};
};

}  // namespace

template class Taken<Frame>;

std::span<const std::byte> Frame::bytes() const& noexcept {
  return state_ == nullptr ? std::span<const std::byte>() : state_->raw.bytes;
}
bool Frame::portable() const noexcept {
  return state_ != nullptr && endpoint::is_portable(state_->raw.contents, state_->known_portable);
}

Result<Frame> pack(const Value& value, const PackOptions& options) {
  return or_out_of_memory([&] { return pack_value(value, options); });
}

Result<Item> unpack(const Frame& frame) {
  return unpack(frame.bytes(), FrameAccess::of(frame));
}
Result<Item> unpack(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  const bool is_view = owner != nullptr;
  return value::decode(bytes, std::move(owner), {}, nullptr, is_view);
}

Result<std::uint64_t> Sender::put_frame(const FrameSource& source, Timeout timeout, const std::stop_token& stop) const {
  return api::with_waits(*state_, "sender", timeout, stop,
                         [&](const WaitContext& wait) { return put_source(*state_, source, wait); });
}

Result<std::vector<TakenFrame>> Receiver::take_frames(std::size_t most, Timeout timeout,
                                                      const std::stop_token& stop) const {
  if (most == 0) return Error{Code::kInvalid, "take_frames() of 0 frames; ask for at least 1"};
  return api::receiving(*state_, timeout, stop, [&](const WaitContext& wait) -> Result<std::vector<TakenFrame>> {
    Frames frames(*state_, most);
    const bool first = endpoint::take_first(frames, state_->channel(), wait);
    if (first) endpoint::take_rest(frames, state_->channel());
    return frames.take(first);
  });
}

}  // namespace shmtree
