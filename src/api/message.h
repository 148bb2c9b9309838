// Adapts a Value to the messages of endpoint/put.h.
#pragma once

#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "api/lent_arrays.h"
#include "api/state.h"
#include "endpoint/plain_messages.h"
#include "endpoint/put.h"
#include "value/codec.h"
#include "value/plain_dict.h"

namespace shmtree::api {

class Message {
 public:
  template <class... Arguments>
  explicit Message(format::FrameBuilder& builder, Arguments&&... arguments)
      : builder_(builder), arrays_(std::forward<Arguments>(arguments)...) {}
  Status encode(const Value& value) { return value::encode(value, builder_, arrays_); }
  std::uint64_t bytes() const noexcept { return builder_.total_bytes(); }
  void write(std::byte* out) const noexcept { builder_.write(out); }
  const std::vector<memory::BlockRef>& blocks() const noexcept { return arrays_.blocks(); }
  bool is_ours() const noexcept { return arrays_.are_ours(); }
  void settle() noexcept { arrays_.settle(); }

 private:
  format::FrameBuilder& builder_;
  LentArrays arrays_;
};

struct PlainDictMessage : endpoint::PlainMessage, value::PlainDict {
  explicit PlainDictMessage(const value::PlainDict& dict) noexcept : PlainDict(dict) {}
};

// Returns put(message) for the cheapest message of the value. `builder` is cleared first, if it is needed.
template <class Put>
auto put_as_message(ChannelState& state, format::FrameBuilder& builder, const Value& value, Put put)
    -> decltype(put(std::declval<Message&>())) {
  if (const auto dict = value::PlainDict::of(value)) {
    PlainDictMessage message(*dict);
    return put(message);
  }
  if (const Bytes* const bytes = std::get_if<Bytes>(&value.variant())) {
    auto message = endpoint::FlatFrame::make(std::as_bytes(std::span(bytes->data)), state.channel().inline_bytes());
    if (!message) return std::move(message).error();
    return put(*message);
  }
  Message message(builder, state);
  Status encoded = message.encode(value);
  if (!encoded) return std::move(encoded).error();
  return put(message);
}

// Puts the messages that add_all(batch) adds. After an error, `completed` is the number that were put.
template <class AddAll>
Status put_batch(ChannelState& state, const Timeout& timeout, const std::stop_token& stop, AddAll add_all) {
  std::uint64_t sent = 0;  // stays valid after an error for lack of memory
  Status went = with_waits(state, "sender", timeout, stop, [&](const platform::WaitContext& wait) -> Status {
    endpoint::Batch batch(state.channel(), wait);
    Status added = or_out_of_memory([&] { return add_all(batch); });
    // Puts the messages before the one that failed.
    Status flushed = or_out_of_memory([&] { return batch.flush(); });
    sent = batch.sent();
    if (!flushed) added = std::move(flushed);
    return added ? std::move(added) : state.or_closed(std::move(added).error());
  });
  if (went) return went;
  Error error = std::move(went).error();
  error.completed = sent;
  return error;
}

}  // namespace shmtree::api
