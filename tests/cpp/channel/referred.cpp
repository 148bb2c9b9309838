// Blocks that a message refers to count towards max_bytes, and towards the queued bytes.
#include <algorithm>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

constexpr std::uint64_t kArray = 100'000, kFrame = 32;

std::shared_ptr<Channel> channel_of(std::uint64_t max_bytes) {
  ChannelOptions options = with_capacity(0);
  options.max_bytes = max_bytes;
  return new_channel(new_arena(), options);
}

// Puts a message of kFrame bytes that refers to these blocks.
Result<std::uint64_t> put_referring(Channel& channel, std::span<const BlockRef> referred,
                                    const WaitContext& wait = no_wait()) {
  OwnedBlock block = new_block(*channel.arena(), 8192);
  fill(block.data(), 0, kFrame / 8);
  channel.arena()->holders().refer(block, referred, patience()).value();
  Outgoing message;
  message.block = std::move(block);
  message.bytes = kFrame;
  return channel.sending().put(message, wait);
}

}  // namespace

// guarantee: referenced-bytes
TEST_CASE("Referenced blocks count in queued_bytes for each message") {
  auto channel = channel_of(0);
  const Lease one = new_lease(*channel->arena(), kArray), other = new_lease(*channel->arena(), kArray);
  const BlockRef both[] = {one.ref(), other.ref()};
  put_referring(*channel, both).value();
  put_referring(*channel, std::span(both, 1)).value();
  put(*channel, 1).value();
  CHECK(channel->stats().queued_bytes == 3 * kArray + 2 * kFrame + 8);
  CHECK(channel::check(*channel->arena()) == "");
  {
    Delivery delivery = take(*channel).value();
    CHECK(channel->stats().queued_bytes == kArray + kFrame + 8);
  }
  CHECK(channel->stats().queued_bytes == 3 * kArray + 2 * kFrame + 8);
  memory::request_recovery(channel->arena()->header());
  REQUIRE(channel->arena()->reconcile(patience()).ok());
  CHECK(channel->stats().queued_bytes == 3 * kArray + 2 * kFrame + 8);
  REQUIRE(get_message(*channel, patience()).ok());
  CHECK(channel->stats().queued_bytes == kArray + kFrame + 8);
  drain(*channel);
  CHECK(channel->stats().queued_bytes == 0);
  CHECK(channel::check(*channel->arena()) == "");
}

// guarantee: referenced-bytes
TEST_CASE("max_bytes bounds referenced bytes and a get unblocks put") {
  auto channel = channel_of(2 * kArray);
  const Lease array = new_lease(*channel->arena(), kArray);
  const BlockRef referred[] = {array.ref()};
  put_referring(*channel, referred).value();
  CHECK(code_of(put_referring(*channel, referred)) == Code::kFull);
  CHECK(put(*channel, 1).ok());  // this message fits
  Child receiver([&] { return get_message(*channel, patience()).ok(); });
  CHECK(put_referring(*channel, referred, patience(60'000)).ok());
  CHECK(receiver.succeeded());
  CHECK(channel->stats().queued_bytes == kArray + kFrame + 8);
}

TEST_CASE("A message with references over max_bytes is refused at once") {
  auto channel = channel_of(kArray);
  const Lease array = new_lease(*channel->arena(), kArray);
  const BlockRef referred[] = {array.ref()};
  const auto refused = put_referring(*channel, referred, patience(60'000));
  CHECK(code_of(refused) == Code::kMessageTooLarge);
  CHECK(refused.error().message ==
        "a message of 32 bytes, and 100000 passed by reference, is over the channel's max_bytes of 100000");
}

TEST_CASE("Many references to one array do not block other messages") {
  auto arena = new_arena(16 * kMiB);
  auto channel = new_channel(arena, with_capacity(0));
  const Lease array = new_lease(*arena, 4 * kMiB);
  const BlockRef referred[] = {array.ref()};
  for (int i = 0; i < 20; ++i) put_referring(*channel, referred).value();
  CHECK(put(*channel, 1, 100'000, no_wait()).ok());
}

TEST_CASE("Recovery counts sound messages after damaged reference lists") {
  auto channel = new_channel(new_arena(64 * kMiB), with_capacity(0));
  Arena& arena = *channel->arena();
  const Lease array = new_lease(arena, kArray);
  const BlockRef referred[] = {array.ref()};
  constexpr std::uint64_t kDamaged = 80;  // their lists have more references than recovery reads for one channel
  for (std::uint64_t i = 0; i <= kDamaged; ++i) put_referring(*channel, referred).value();
  // A list of the maximum length. All its entries name the array, and all slots but the last one name its block.
  auto damaged = arena.allocate(memory::kMaxReferences * sizeof(memory::ListEntry), BlockKind::kMessage, patience());
  REQUIRE(damaged.ok());
  auto* list = reinterpret_cast<memory::ListEntry*>(damaged->data());
  std::fill_n(list, memory::kMaxReferences, memory::ListEntry{array.ref().id.value, array.ref().generation});
  memory::BlockEntry& entry = *arena.blocks().entry(damaged->ref().id);
  entry.list_offset = 0;
  entry.list_length = memory::kMaxReferences;
  std::uint64_t segment = header_of(*channel).head_segment.load();
  for (std::uint64_t ticket = 0; ticket < kDamaged; ++ticket) {
    const std::uint64_t next = segment_of(*channel, segment).next.load();
    if (next != 0 && segment_of(*channel, next).base == ticket) segment = next;
    slot_of(*channel, segment, ticket - segment_of(*channel, segment).base).block = memory::pack(damaged->ref());
  }
  memory::request_recovery(arena.header());
  REQUIRE(arena.reconcile(patience()).ok());
  const std::uint64_t counted = channel->stats().queued_bytes;
  const std::uint64_t limited = ((std::uint64_t{1} << 26) + kDamaged * 64) * kArray + kDamaged * kFrame;
  CHECK(counted >= limited + kArray + kFrame);
  CHECK(counted <= limited + kArray + kFrame + 64 * kArray);
  entry.list_length = 0;
}
