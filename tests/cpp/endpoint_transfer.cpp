// Frames on their way into a channel.
#include "endpoint/transfer.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

TEST_CASE("A message that needs a block finds the channel full while a stopped process keeps the arena's lock") {
  auto channel = new_channel(new_arena());
  Gate taken;
  Child owner([&] {
    if (!channel->arena()->reconciler().lock_arena(patience()).ok()) return false;
    taken.open();
    pause();
    return true;
  });
  taken.wait();
  owner.signal(SIGSTOP);
  owner.wait_until_stopped();

  const std::string text(10'000, 'x');
  format::FrameBuilder builder;
  builder.add_str_node(text.data(), text.size());
  builder.finish().value();
  endpoint::InlineFrame scratch;
  channel::Outgoing message;
  REQUIRE(code_of(endpoint::stage(builder, {}, *channel, scratch, message, patience(10))) == Code::kFull);
  owner.kill_and_wait();
  REQUIRE(endpoint::stage(builder, {}, *channel, scratch, message, patience()).ok());
}
