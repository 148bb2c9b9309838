// A process that writes into a channel while others use it: each value is used exactly as it was checked.
#include <functional>

#include "support/catch2.h"
#include "support/channels.h"
#include "support/flips.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kMinusOne = ~std::uint64_t{0};

// Makes all calls of a channel repeatedly. Returns false if a message is outside of its block.
bool use(Channel& channel) {
  const auto is_within = [&](Incoming& message) {
    if (!message.in_block()) return message.frame().size() <= channel.inline_bytes();
    return message.frame().size() <= std::uint64_t{1} << message.block().id.size_class();
  };
  for (int i = 0; i < 3'000; ++i) {
    put(channel, 1, 3, no_wait()).ok();
    put(channel, 2, 300, no_wait()).ok();
    if (auto message = get_message(channel, no_wait()); message && !is_within(*message)) return false;
    if (auto taken = take(channel, no_wait()); taken && i % 2 == 0) {
      if (!is_within(taken->message())) return false;
      taken->ack(no_wait()).ok();
    }
    if (auto dead_letters = channel.dead_letters(no_wait()); dead_letters && !dead_letters->empty()) {
      if (!is_within(dead_letters->front().message())) return false;
      dead_letters->front().requeue(no_wait()).ok();
    }
    channel.acks().pending();
    channel.acks().wait({}, no_wait()).ok();
    channel.stats();
    if (i % 50 == 0) memory::request_recovery(channel.arena()->header());
    if (i % 50 == 0) channel.arena()->reconcile(no_wait()).ok();
  }
  return true;
}

// Uses a channel with messages, a record and two segments, while `word` changes all the time.
void survives(const std::function<std::atomic<std::uint64_t>&(Channel&)>& word,
              std::initializer_list<std::uint64_t> values) {
  auto channel = new_channel(new_arena(), with_capacity(0));
  for (std::uint64_t i = 0; i < 12; ++i) put(*channel, i, i % 4 == 3 ? 300 : 3).value();
  { take(*channel).value().nack(patience()).value(); }
  Child child([&] {
    const Flips flips(word(*channel), values);
    return use(*channel);
  });
  REQUIRE(child.succeeded());
}

SegmentHeader& first_segment(Channel& channel) {
  return segment_of(channel, header_of(channel).head_segment.load());
}
SegmentHeader& last_segment(Channel& channel) {
  return segment_of(channel, header_of(channel).tail_segment.load());
}
RingSlot& first_slot(Channel& channel) {
  const ChannelHeader& header = header_of(channel);
  return slot_of(channel, header.head_segment.load(), header.head.load() % 8);
}

}  // namespace

// guarantee: changing-words
TEST_CASE("A ring is never overrun while its size flips") {
  // With this base, every ticket is far beyond the ring, provided the ring is long enough.
  constexpr std::uint64_t kFar = std::uint64_t{1} << 41;
  const auto first = [](Channel & channel) -> auto& {
    return first_segment(channel);
  };
  const auto last = [](Channel & channel) -> auto& {
    return last_segment(channel);
  };
  for (const std::function<SegmentHeader&(Channel&)>& segment :
       {std::function<SegmentHeader&(Channel&)>(first), {last}}) {
    survives([&](Channel & channel) -> auto& { return as_atomic(segment(channel).slots); },
             {8, std::uint64_t{1} << 63, std::uint64_t{1} << 40});
    survives(
        [&](Channel & channel) -> auto& {
          segment(channel).base = kFar;
          return as_atomic(segment(channel).slots);
        },
        {8, std::uint64_t{1} << 63});
    survives([&](Channel & channel) -> auto& { return as_atomic(segment(channel).base); }, {8, kMinusOne, 0});
  }
}

TEST_CASE("Records are never overrun while their count flips") {
  survives([](Channel & channel) -> auto& { return as_atomic(records_of(channel).count); },
           {7, std::uint64_t{1} << 58, kMinusOne});
}

TEST_CASE("Records with flipping states give no bytes out of bounds") {
  const auto word = [](RecordState state, memory::Identity taker) { return channel::record_word(state, taker, 7); };
  survives([](Channel & channel) -> auto& { return record_of(channel, 0).state; },
           {word(RecordState::kReturned, 0), word(RecordState::kRejected, 0), 0, kMinusOne,
            word(RecordState::kTaken, 0x1234)});
}

TEST_CASE("A slot that flips during get gives no bytes out of bounds") {
  survives([](Channel & channel) -> auto& { return as_atomic(first_slot(channel).bytes); },
           {24, kMinusOne, 481, 1 << 20});
  survives([](Channel & channel) -> auto& { return as_atomic(first_slot(channel).block); },
           {0, kMinusOne, std::uint64_t{3} << 59});
}

TEST_CASE("A slot size that flips during use causes no overrun") {
  survives([](Channel & channel) -> auto& { return as_atomic(header_of(channel).slot_bytes); },
           {512, 1280, 0, kMinusOne, std::uint64_t{1} << 40});
}

TEST_CASE("Indices that jump while the channel is used do no harm") {
  survives([](Channel & channel) -> auto& { return header_of(channel).head; }, {1, kMinusOne, 13, 1000});
  survives([](Channel & channel) -> auto& { return header_of(channel).tail; }, {12, 0, kMinusOne, 20});
}

TEST_CASE("Chains that change while they are followed terminate") {
  survives([](Channel & channel) -> auto& { return first_segment(channel).next; }, {0, kMinusOne, 1});
  survives([](Channel & channel) -> auto& { return records_of(channel).next; }, {0, kMinusOne});
  survives([](Channel & channel) -> auto& { return header_of(channel).head_segment; }, {0, kMinusOne});
}
