// Whatever another process writes into shared memory causes an error soon, and never a crash or an endless loop.
#include <csignal>
#include <functional>

#include "support/catch2.h"
#include "support/channels.h"
#include "support/waits.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Makes all calls of a channel after `damage`, in a child. The child's alarm kills it if it hangs.
void use_damaged(const std::function<void(Channel&)>& damage) {
  auto arena = new_arena();
  auto channel = new_channel(arena, with_capacity(0));
  for (std::uint64_t i = 0; i < 12; ++i) put(*channel, i, i % 4 == 3 ? 300 : 3).value();
  { take(*channel).value().nack(patience()).value(); }
  damage(*channel);
  Child child([&] {
    for (int i = 0; i < 3; ++i) {
      put(*channel, 5, 3, no_wait()).ok();
      put(*channel, 5, 300, no_wait()).ok();
      get(*channel, no_wait()).ok();
      get_several(*channel, 1'000, no_wait()).ok();
      channel->sending().has_space();
      channel->size();
      channel->stats();
      channel->acks().pending();
      channel->acks().wait({}, no_wait()).ok();
      channel->sending().wait_for_space(5'000, no_wait()).ok();
      channel->watchers().wake_fd(End::kReceiving).ok();
      for (int j = 0; j < 20; ++j) take(*channel, no_wait()).ok();
      if (auto dead_letters = channel->dead_letters(no_wait()); dead_letters && !dead_letters->empty()) {
        dead_letters->front().requeue(no_wait()).ok();
      }
      memory::request_recovery(arena->header());
      arena->reconcile(patience()).ok();
    }
    return true;
  });
  REQUIRE(child.succeeded());
}
void nothing_hangs(const std::function<void(Channel&)>& damage) {
  const std::int64_t enough_ms = under_valgrind() || kThreadSanitizer || kAddressSanitizer ? 30'000 : 1'000;
  REQUIRE(shortest_ms(enough_ms, [&] { use_damaged(damage); }) < enough_ms);
}
ChannelHeader& header(Channel& channel) {
  return header_of(channel);
}
SegmentHeader& first_segment(Channel& channel) {
  return segment_of(channel, header(channel).head_segment.load());
}
RingSlot& slot(Channel& channel, std::uint64_t place) {
  return slot_of(channel, header(channel).head_segment.load(), place);
}

constexpr std::uint64_t kHuge = ~std::uint64_t{0} - 5;

}  // namespace

TEST_CASE("A head beyond the tail causes no hang or crash") {
  nothing_hangs([](Channel& channel) { header(channel).head.store(1'000); });
  nothing_hangs([](Channel& channel) { header(channel).head.store(kHuge); });
}

TEST_CASE("A tail far beyond the ring causes no hang or crash") {
  nothing_hangs([](Channel& channel) { header(channel).tail.store(kHuge); });
  nothing_hangs([](Channel& channel) { header(channel).tail.fetch_add(1'000); });
}

TEST_CASE("Wrong cached indices cause no hang or crash") {
  nothing_hangs([](Channel& channel) { header(channel).cached_tail.store(kHuge); });
  nothing_hangs([](Channel& channel) { header(channel).cached_head.store(kHuge); });
}

// guarantee: damaged-words
TEST_CASE("A damaged chain of segments causes no hang or crash") {
  nothing_hangs([](Channel& channel) { first_segment(channel).next.store(header(channel).head_segment.load()); });
  nothing_hangs([](Channel& channel) {
    segment_of(channel, header(channel).tail_segment.load()).next.store(header(channel).head_segment.load());
  });
  nothing_hangs([](Channel& channel) { first_segment(channel).next.store(kHuge); });
  nothing_hangs([](Channel& channel) { first_segment(channel).next.store(memory::pack(channel.block())); });
  nothing_hangs([](Channel& channel) { header(channel).head_segment.store(0); });
  nothing_hangs([](Channel& channel) { header(channel).tail_segment.store(0x123456789abcdef0); });
}

TEST_CASE("An invalid segment header causes no hang or crash") {
  for (const std::uint64_t slots : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1} << 14, std::uint64_t{1} << 63})
    nothing_hangs([slots](Channel& channel) { first_segment(channel).slots = slots; });
  nothing_hangs([](Channel& channel) { first_segment(channel).base = kHuge; });
  nothing_hangs([](Channel& channel) { segment_of(channel, header(channel).tail_segment.load()).base = kHuge; });
  nothing_hangs([](Channel& channel) { segment_of(channel, header(channel).tail_segment.load()).base = 0; });
}

TEST_CASE("An invalid size or block in a slot gives an empty frame") {
  nothing_hangs([](Channel& channel) { slot(channel, 0).bytes = kHuge; });
  nothing_hangs([](Channel& channel) { slot(channel, 3).bytes = kHuge; });
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  put(*channel, 2, 300).value();
  put(*channel, 3, 300).value();
  slot(*channel, 0).bytes = channel->inline_bytes() + 1;
  slot(*channel, 1).bytes = 8'193;
  slot(*channel, 2).block = 0x5555555555555555;
  for (int i = 0; i < 3; ++i) REQUIRE(get_message(*channel, no_wait()).value().frame().empty());
}

TEST_CASE("get and take report a slot with a wrong ticket as corrupt") {
  auto channel = new_channel(new_arena());
  put(*channel, 1).value();
  slot(*channel, 0).ticket = 77;
  REQUIRE(code_of(get(*channel)) == Code::kCorrupt);
  REQUIRE(code_of(take(*channel)) == Code::kCorrupt);
}

TEST_CASE("Damaged byte counts do not make queued_bytes huge") {
  auto channel = new_channel(new_arena());
  put(*channel, 1, 3).value();
  put(*channel, 2, 3).value();
  header(*channel).bytes_out.store(header(*channel).bytes_in.load() + 1);
  CHECK(channel->stats().queued_bytes == 0);
  REQUIRE(get(*channel, no_wait()).ok());
  CHECK(channel->stats().queued_bytes == 0);
  slot(*channel, 1).bytes = kHuge;
  header(*channel).bytes_in.store(8);
  memory::request_recovery(channel->arena()->header());
  REQUIRE(channel->arena()->reconcile(patience()).ok());
  REQUIRE(get_message(*channel, no_wait()).ok());
  CHECK(channel->stats().queued_bytes <= 8);
  nothing_hangs([](Channel& damaged) { header(damaged).bytes_out.store(kHuge); });
  nothing_hangs([](Channel& damaged) { header(damaged).bytes_in.store(kHuge); });
}

TEST_CASE("Damaged record lists and counts cause no hang or crash") {
  nothing_hangs([](Channel& channel) { records_of(channel).count = kHuge; });
  nothing_hangs([](Channel& channel) { records_of(channel).count = (std::uint64_t{1} << 58) + 1; });
  nothing_hangs([](Channel& channel) { records_of(channel).next.store(header(channel).records.load()); });
  nothing_hangs([](Channel& channel) { header(channel).records.store(kHuge); });
  nothing_hangs([](Channel& channel) { header(channel).returned.store(0xffffffff); });
  nothing_hangs([](Channel& channel) { header(channel).taken.store(0xffffffff); });
  nothing_hangs([](Channel& channel) { header(channel).also_queued.store(0xffffffff); });
  nothing_hangs([](Channel& channel) { header(channel).rejected.store(0xffffffff); });
  nothing_hangs([](Channel& channel) { header(channel).max_unacked = 1; });
  nothing_hangs([](Channel& channel) { header(channel).max_attempts = 1; });
}

TEST_CASE("Impossible record states cause no hang or crash") {
  nothing_hangs([](Channel& channel) {
    for (std::uint64_t i = 0; i < records_of(channel).count; ++i) {
      std::memset(static_cast<void*>(&record_of(channel, i).slot()), 0xff, sizeof(RingSlot));
      record_of(channel, i).state.store(kHuge);
    }
  });
}

TEST_CASE("Damaged lists of deaths and transfers cause no hang or crash") {
  nothing_hangs([](Channel& channel) {
    for (auto& word : header(channel).ends[End::kSending].killed.words) word.store(-7);
    for (auto& transfer : channel.arena()->header().transfers) {
      transfer.block.store(memory::pack(channel.block()));
      transfer.made_ns.store(INT64_MAX);
      transfer.state.store(kHuge);
    }
  });
}

TEST_CASE("A channel header of ones or zeros causes no hang or crash") {
  for (const int byte : {0xff, 0x00}) {
    nothing_hangs([byte](Channel& channel) {
      auto* bytes = reinterpret_cast<unsigned char*>(&header(channel));
      std::memset(bytes + 16, byte, sizeof(ChannelHeader) - 16);
    });
  }
}

// guarantee: stopped-lock-owner
TEST_CASE("Calls return in time while a stopped process holds a lock") {
  for (const bool senders : {true, false}) {
    auto channel = new_channel(new_arena(), with_capacity(2));
    put(*channel, 1).value();
    Gate ready;
    Child owner([&] {
      ChannelHeader& words = header_of(*channel);
      channel->arena()->lock(senders ? words.senders_lock : words.receivers_lock, patience()).value();
      ready.open();
      raise(SIGSTOP);
      channel->arena()->unlock(senders ? words.senders_lock : words.receivers_lock);
      Channel::leave_all();
      return true;
    });
    ready.wait();
    owner.wait_until_stopped();
    for (const std::int64_t ms : {0, 30}) {
      const std::int64_t took = shortest_ms(ms + 50, [&] {
        if (senders) {
          REQUIRE(code_of(put(*channel, 2, 1, patience(ms))) == Code::kFull);
        } else {
          REQUIRE(code_of(get(*channel, patience(ms))) == Code::kEmpty);
        }
      });
      REQUIRE(took < ms + 50);
    }
    // The death of another process must not release anything that the stopped process may be using.
    Child dead([] { return true; });
    REQUIRE(dead.succeeded());
    channel->arena()->participants().check(0);
    channel->arena()->reconcile(no_wait()).ok();
    owner.signal(SIGCONT);
    REQUIRE(owner.succeeded());
    REQUIRE(get(*channel).value() == 1);
    REQUIRE(put(*channel, 2).ok());
    REQUIRE(get(*channel).value() == 2);
    REQUIRE(check_arena(*channel->arena()) == "");
  }
}
