// Processes that fail: they exit with a code other than 0, or close their sender after an exception.
#include <unistd.h>

#include <string>
#include <vector>

#include "memory/deaths.h"
#include "support/arenas.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;
using memory::Failure;

namespace {

constexpr auto kCode = static_cast<Failure>(3);

// Puts or gets one message.
void use(Channel& channel, End end) {
  if (end == End::kSending) {
    put(channel, 1).value();
  } else {
    get(channel).value();
  }
}

// Returns the error that a call gets next because of the peers at `end`.
Error next_error(Channel& channel, End end) {
  notice_deaths(channel);
  const Status open = channel.ends().check_open(end);
  REQUIRE_FALSE(open.ok());
  return open.error();
}

}  // namespace

// guarantee: worker-failed
TEST_CASE("An exit by failure is reported with its exit code") {
  const End end = GENERATE(End::kSending, End::kReceiving);
  auto channel = new_channel(new_arena());
  if (end == End::kReceiving) put(*channel, 1).value();
  Child child([&] {
    use(*channel, end);
    memory::note_exit(kCode);
    Channel::leave_all();
    return true;
  });
  const int pid = child.pid();
  REQUIRE(child.succeeded());
  if (end == End::kSending) REQUIRE(get(*channel).value() == 1);
  const Error failed = next_error(*channel, end);
  REQUIRE(failed.code == Code::kPeerDied);
  CHECK(failed.exit_code == 3);
  CHECK(failed.pids == std::vector<int>{pid});
  CHECK(failed.message.ends_with("are left, and these failed: " + std::to_string(pid) + " (exit code 3)"));
  CHECK(next_error(*channel, end).code == Code::kClosed);
}

TEST_CASE("A failure is reported only at the end that was used") {
  auto channel = new_channel(new_arena());
  Child child([&] {
    put(*channel, 1).value();
    memory::note_exit(kCode);
    Channel::leave_all();
    return true;
  });
  REQUIRE(child.succeeded());
  CHECK(channel->ends().has_killed_members(End::kSending));
  CHECK_FALSE(channel->ends().has_killed_members(End::kReceiving));
}

TEST_CASE("A report tells failures from kills") {
  auto channel = receiving_channel();
  channel->membership().join(End::kSending).value();
  channel->ends().note_killed(End::kSending, 7);
  channel->ends().note_failed(End::kSending, Failure::kNoExitCode);
  channel->membership().leave(End::kSending);
  const Error failed = next_error(*channel, End::kSending);
  CHECK(failed.exit_code == -1);
  CHECK(failed.pids == std::vector<int>{7, getpid()});
  CHECK(failed.message.ends_with("failed: 7 (killed), " + std::to_string(getpid()) +
                                 " (closed its end after an exception)"));
}

TEST_CASE("The text about deaths fits into its reserved space") {
  const std::int32_t longest = (1 << memory::kPidBits) - 1;
  const memory::DeathWord words[] = {memory::death_word(longest, Failure::kNoExitCode),
                                     memory::death_word(longest, static_cast<Failure>(255)), -1,
                                     memory::death_word(longest, Failure::kNone)};
  Error error{Code::kPeerDied, ""};
  memory::describe_deaths(error, words);
  CHECK(error.message.size() <= memory::kMaxDeathVerb + std::size(words) * memory::kMaxDeathText);
  CHECK(error.pids == std::vector<int>{longest, longest, longest});
  CHECK(error.exit_code == 255);
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: worker-failed
TEST_CASE("A kill during an exit by failure never looks like a close") {
  const End end = GENERATE(End::kSending, End::kReceiving);
  bool killed = true;
  std::int64_t n = 1;
  for (; killed; ++n) {
    REQUIRE(n < 1'000);
    auto arena = new_arena();
    auto channel = new_channel(arena), other = new_channel(arena);
    if (end == End::kReceiving) put(*channel, 1).value(), put(*other, 1).value();
    Child child([&] {
      use(*channel, end);
      use(*other, end);
      memory::note_exit(kCode);
      changes_until_crash.store(n);
      Channel::leave_all();
      changes_until_crash.store(0);
      return true;
    });
    const int pid = child.pid();
    killed = child.was_killed();
    INFO("killed before change " << n);
    for (Channel* each : {channel.get(), other.get()}) {
      if (end == End::kSending) REQUIRE(get(*each).value() == 1);
      const Error failed = next_error(*each, end);
      REQUIRE(failed.code == Code::kPeerDied);
      REQUIRE(failed.pids == std::vector<int>{pid});
      REQUIRE((failed.exit_code == 3 || (killed && failed.exit_code == 0)));
      REQUIRE(next_error(*each, end).code == Code::kClosed);
    }
  }
  REQUIRE(n > 8);
}

#endif
