// Channels for tests. Messages are numbers or patterns, so that torn messages are detected.
#pragma once

#include <poll.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "channel/channel.h"
#include "support/arena_check.h"
#include "support/arenas.h"

namespace shmtree::test {

using channel::Channel;
using channel::ChannelHeader;
using channel::ChannelOptions;
using channel::Delivery;
using channel::End;
using channel::Ending;
using channel::Incoming;
using channel::Outgoing;
using channel::Record;
using channel::RecordState;
using channel::RingSlot;
using channel::SegmentHeader;

inline ChannelOptions with_capacity(std::uint64_t capacity, Ending ending = Ending::kRaise) {
  ChannelOptions options;
  options.capacity = capacity;
  options.ending = ending;
  return options;
}
// Returns a channel with both ends attached to this process.
inline std::shared_ptr<Channel> new_channel(const std::shared_ptr<Arena>& arena, ChannelOptions options = {}) {
  auto channel = Channel::create(arena, options).value();
  channel->membership().join(End::kSending).value();
  channel->membership().join(End::kReceiving).value();
  return channel;
}
// Returns a channel with only the receiving end attached to this process.
inline std::shared_ptr<Channel> receiving_channel(const ChannelOptions& options = with_capacity(8)) {
  auto channel = Channel::create(new_arena(), options).value();
  channel->membership().join(End::kReceiving).value();
  return channel;
}
inline void notice_deaths(Channel& channel) {
  channel.arena()->participants().check(0);
  channel.arena()->reconcile(patience()).value();
}
inline ChannelHeader& header_of(Channel& channel) {
  return *reinterpret_cast<ChannelHeader*>(channel.arena()->blocks().address(channel.block().id));
}
inline SegmentHeader& segment_of(Channel& channel, std::uint64_t packed) {
  return *reinterpret_cast<SegmentHeader*>(channel.arena()->blocks().address(memory::unpack(packed).id));
}
// Return a slot of a segment, or a record of a block, by its index.
inline RingSlot& slot_of(Channel& channel, std::uint64_t packed, std::uint64_t place) {
  auto* slots = reinterpret_cast<std::byte*>(&segment_of(channel, packed) + 1);
  return *reinterpret_cast<RingSlot*>(slots + place * header_of(channel).slot_bytes);
}
inline channel::ChainHeader& records_of(Channel& channel) {
  const std::uint64_t packed = header_of(channel).records.load();
  return *reinterpret_cast<channel::ChainHeader*>(channel.arena()->blocks().address(memory::unpack(packed).id));
}
inline Record& record_of(Channel& channel, std::uint64_t place) {
  auto* records = reinterpret_cast<std::byte*>(&records_of(channel) + 1);
  return *reinterpret_cast<Record*>(records + place * channel::record_bytes(header_of(channel).slot_bytes));
}

// Writes `words` words of 8 bytes that depend on the number and on their position. At least 60 words fit inline.
inline void fill(std::byte* out, std::uint64_t number, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = number * 0x9e3779b97f4a7c15u + i;
    std::memcpy(out + 8 * i, &word, 8);
  }
  if (words != 0) std::memcpy(out, &number, 8);
}
// Returns the number in the frame, or kTorn.
constexpr std::uint64_t kTorn = ~std::uint64_t{0};
inline std::uint64_t number_in(std::span<const std::byte> frame) {
  if (frame.size() < 8 || frame.size() % 8 != 0) return kTorn;
  std::uint64_t number = 0;
  std::memcpy(&number, frame.data(), 8);
  for (std::size_t i = 1; i < frame.size() / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, frame.data() + 8 * i, 8);
    if (word != number * 0x9e3779b97f4a7c15u + i) return kTorn;
  }
  return number;
}

// One message to put, inline if it fits.
struct Message {
  std::byte inline_bytes[channel::kMaxInlineBytes];
  Outgoing out;

  Message(Channel& channel, std::uint64_t number, std::size_t words = 1) {
    if (words * 8 <= channel.inline_bytes()) {
      fill(inline_bytes, number, words);
      out.inline_frame = {inline_bytes, words * 8};
      return;
    }
    auto block = channel.arena()->allocate(words * 8, BlockKind::kMessage, patience());
    if (!block) return;
    fill(block->data(), number, words);
    out.block = std::move(*block);
    out.bytes = words * 8;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

inline Result<std::uint64_t> put(Channel& channel, std::uint64_t number, std::size_t words = 1,
                                 const WaitContext& wait = patience()) {
  Message message(channel, number, words);
  return channel.sending().put(message.out, wait);
}
inline Result<Incoming> get_message(Channel& channel, const WaitContext& wait) {
  Incoming message;
  Status got = channel.receiving().get(message, wait);
  if (!got) return std::move(got).error();
  return message;
}
inline Result<std::uint64_t> get(Channel& channel, const WaitContext& wait = patience()) {
  auto message = get_message(channel, wait);
  if (!message) return std::move(message).error();
  return number_in(message->frame());
}
// Waits for the first message, then receives further available messages, up to `most` in all.
inline Result<std::vector<Incoming>> get_several(Channel& channel, std::size_t most,
                                                 const WaitContext& wait = patience()) {
  std::vector<Incoming> messages;
  messages.reserve(most);  // so that no received message is lost for lack of space
  while (messages.size() < most) {
    auto message = get_message(channel, messages.empty() ? wait : no_wait());
    if (!message && messages.empty()) return std::move(message).error();
    if (!message) break;
    messages.push_back(std::move(*message));
  }
  return messages;
}
inline Result<Delivery> take(Channel& channel, const WaitContext& wait = patience()) {
  return channel.take(wait);
}
inline std::uint64_t number_in(Delivery& delivery) {
  return number_in(delivery.message().frame());
}
// Receives all messages of the channel, and returns their numbers in order.
inline std::vector<std::uint64_t> drain(Channel& channel) {
  std::vector<std::uint64_t> numbers;
  for (;;) {
    auto number = get(channel, no_wait());
    if (!number) return numbers;
    numbers.push_back(*number);
  }
}
template <class T>
Code code_of(const Result<T>& result) {
  return result.ok() ? Code::kOs : result.code();
}
// A process that sends a message and stays attached. The constructor returns after the message was received.
struct Peer {
  explicit Peer(Channel& channel)
      : child([&] {
          channel.membership().join(End::kSending).value();
          put(channel, 1).value();
          pause();
          return true;
        }) {
    get(channel).value();
  }
  Child child;
};
// A child that has received a message of this process, and stays.
struct ReceivingPeer {
  explicit ReceivingPeer(Channel& channel)
      : child([&] {
          get(channel).value();
          received.open();
          pause();
          return true;
        }) {
    put(channel, 1).value();
    received.wait();
  }
  Gate received;
  Child child;
};
// Returns true if a descriptor is readable, or becomes readable within `max_ms`.
inline bool readable(int fd, int max_ms = 0) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, max_ms) == 1;
}

}  // namespace shmtree::test
