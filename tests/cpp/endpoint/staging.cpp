// Frames that are being written for a channel.
#include <vector>

#include "endpoint/plain_messages.h"
#include "endpoint/put.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

// guarantee: broadcast-lock-timeout
TEST_CASE("Staging with a stopped lock owner reports full or its pid") {
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

  const std::vector<std::byte> bytes(10'000);
  endpoint::WholeFrame frame(bytes);
  endpoint::InlineFrame scratch;
  channel::Outgoing message;
  REQUIRE(code_of(endpoint::stage(frame, *channel, scratch, message, patience(10))) == Code::kFull);
  const auto published = endpoint::stage_published(frame, *channel->arena(), patience(10));
  REQUIRE(published.code() == Code::kTimeout);
  CHECK(published.error().message.find("process " + std::to_string(owner.pid())) != std::string::npos);
  owner.kill_and_wait();
  REQUIRE(endpoint::stage(frame, *channel, scratch, message, patience()).ok());
}
