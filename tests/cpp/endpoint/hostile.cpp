// Sizes that a message reports for the blocks that it refers to, after another process has overwritten their entries.
#include "endpoint/copy_policy.h"
#include "endpoint/put.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("A forged size of a referenced block is clamped") {
  auto arena = new_arena();
  auto channel = new_channel(arena);
  const Lease array = new_lease(*arena, 5000);
  OwnedBlock block = new_block(*arena, 5000);
  const BlockRef list[] = {array.ref()};
  REQUIRE(arena->holders().refer(block, list, patience()).ok());
  Outgoing message;
  message.block = std::move(block);
  message.bytes = 4000;
  REQUIRE(channel->sending().put(message, patience()).ok());
  BlockEntry& entry = *arena->blocks().entry(array.ref().id);
  entry.size = ~std::uint64_t{0};
  entry.committed = ~std::uint64_t{0};

  const Incoming received = get_message(*channel, patience()).value();
  const auto blocks = endpoint::referred_blocks(*arena, arena->blocks().referred_to_by(received.block()));

  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].data() == array.data());
  CHECK(blocks[0].size() == 8192);
}
