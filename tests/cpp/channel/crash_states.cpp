// States that a death leaves behind, written by hand. Survivors put and get as if nothing had happened.
#include "support/survivors.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Returns a dead participant. Tests store it as the owner of the channel's locks.
memory::Identity dead_one(Arena& arena) {
  auto slot = arena.reconciler().reserve_slot().value();
  return slot.identity;
}
std::uint32_t held_by(memory::Identity owner) {
  return memory::kHeld | owner;
}

}  // namespace

TEST_CASE("A slot beyond the tail is no message after its sender died") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  ChannelHeader& header = header_of(*channel);
  header.senders_lock.store(held_by(dead_one(*channel->arena())));
  RingSlot& slot = slot_of(*channel, header.tail_segment.load(), 1);
  slot.ticket = 1;
  slot.bytes = 480;
  header.bytes_in.fetch_add(480);
  survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{1, 1'000'000}); });
}

// guarantee: put-survives-sender
TEST_CASE("A message is delivered if its sender died before unlocking") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  header_of(*channel).senders_lock.store(held_by(dead_one(*channel->arena())));
  survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{1, 1'000'000}); });
}

// guarantee: ray-known-puts
TEST_CASE("The put count is exact if a sender dies at the commit point") {
  for (const bool took_place : {false, true}) {
    auto channel = new_channel(new_arena());
    channel->count_puts();
    put(*channel, 1).value();
    ChannelHeader& header = header_of(*channel);
    REQUIRE(channel->counted() == 1);
    header.senders_lock.store(held_by(dead_one(*channel->arena())));
    header.counted_then.store(took_place ? 1 : 2);
    header.counting_tail.store(took_place ? 1 : 2);
    header.counted.store(took_place ? 0 : 1);
    REQUIRE(channel->counted() == 1);
    survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{1, 1'000'000}); });
    REQUIRE(channel->counted() == 2);  // including the survivor's message
  }
}

TEST_CASE("Recovery keeps a queued block that a dead sender was writing") {
  auto channel = new_channel(new_arena());
  put(*channel, 1, 700).value();
  ChannelHeader& header = header_of(*channel);
  const BlockRef ref = memory::unpack(slot_of(*channel, header.tail_segment.load(), 0).block);
  const memory::Identity dead = dead_one(*channel->arena());
  channel->arena()->blocks().entry(ref.id)->word.store(memory::block_word(BlockState::kWriting, dead, ref.generation));
  survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{1, 1'000'000}); });
}

TEST_CASE("Survivors find a linked segment behind a stale tail_segment") {
  auto channel = new_channel(new_arena(), with_capacity(0));
  for (std::uint64_t i = 0; i < 9; ++i) put(*channel, i).value();
  ChannelHeader& header = header_of(*channel);
  header.tail_segment.store(header.head_segment.load());
  header.senders_lock.store(held_by(dead_one(*channel->arena())));
  survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 1'000'000}); });
}

TEST_CASE("Recovery ignores a record if its taker did not move the head") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  { REQUIRE(take(*channel).value().nack(patience()).ok()); }
  REQUIRE(get(*channel).value() == 1);
  put(*channel, 2).value();
  ChannelHeader& header = header_of(*channel);
  const memory::Identity dead = dead_one(*channel->arena());
  Record& record = record_of(*channel, 0);
  record.slot().ticket = header.head.load();
  record.state.store(channel::record_word(RecordState::kTaken, dead, 1));
  header.taken.store(1);
  header.receivers_lock.store(held_by(dead));
  survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{2, 1'000'000}); });
}

TEST_CASE("Locks of dead and of invalid owners are taken over") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  ChannelHeader& header = header_of(*channel);
  header.senders_lock.store(held_by(dead_one(*channel->arena())));
  header.receivers_lock.store(0x8badf00d);
  survive(*channel, [&] { REQUIRE(drain(*channel) == Numbers{1, 1'000'000}); });
}
