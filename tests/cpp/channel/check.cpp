// The check of a whole arena that other tests end with detects damage.
#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

struct Checked {
  std::shared_ptr<Arena> arena = new_arena();
  std::shared_ptr<Channel> channel = new_channel(arena, with_capacity(0));
  Delivery taken;

  Checked() {
    for (std::uint64_t i = 0; i < 12; ++i) put(*channel, i, i % 2 == 0 ? 4 : 700).value();
    taken = take(*channel).value();
  }
  ChannelHeader& header() { return header_of(*channel); }
  std::string check() { return channel::check(*arena); }
};

}  // namespace

TEST_CASE("The arena check accepts a ring with records and blocks") {
  Checked all;
  REQUIRE(all.check() == "");
}

TEST_CASE("The arena check reports damage to a channel header") {
  Checked all;
  all.header().bytes_in.fetch_add(8);
  REQUIRE(all.check().find("bytes are said to be queued") != std::string::npos);
  all.header().bytes_in.fetch_sub(8);
  all.header().taken.fetch_add(1);
  REQUIRE(all.check().find("what is taken is miscounted") != std::string::npos);
  all.header().taken.fetch_sub(1);
  all.header().receivers_lock.store(memory::kHeld | 5);
  REQUIRE(all.check().find("a lock is taken") != std::string::npos);
  all.header().receivers_lock.store(0);
  all.header().tail.fetch_add(1);
  REQUIRE(all.check() != "");
  all.header().tail.fetch_sub(1);
  all.header().tail_segment.store(all.header().head_segment.load());
  REQUIRE(all.check().find("the last segment is another") != std::string::npos);
}

TEST_CASE("The arena check reports a leaked block") {
  Checked all;
  OwnedBlock block = new_block(*all.arena);
  all.arena->blocks()
      .entry(block.ref().id)
      ->word.store(memory::block_word(BlockState::kLive, memory::kNoIdentity, block.ref().generation));
  REQUIRE(all.check().find("no reference to block") != std::string::npos);
}
