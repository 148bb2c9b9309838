// Messages that a process cannot build, for lack of memory or addresses. They stay in the channel, or return to it.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "platform/machine.h"
#include "platform/memory_limits.h"
#include "support/catch2.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;
using channel::Received;

namespace {

constexpr std::size_t kInline = 3;
constexpr std::size_t kBlock = 5'000;

std::unique_ptr<Received> received(Channel& channel) {
  auto place = std::make_unique<Received>();
  channel.receiving().get(place->message, patience()).value();
  return place;
}
// Allocates the rest of the arena, so that there is no space for a record.
std::vector<Lease> all_of(Arena& arena) {
  std::vector<Lease> taken;
  for (std::uint64_t bytes = 256 << 10; bytes >= 4096;) {
    auto block = arena.allocate(bytes, BlockKind::kArray, no_wait());
    if (block) {
      taken.push_back(arena.hold_new(std::move(*block)).value());
    } else {
      bytes /= 2;
    }
  }
  return taken;
}
// A channel with messages 0 to 2. The first one was received and given back when there was no space for a record.
struct Kept {
  explicit Kept(std::size_t words) {
    for (std::uint64_t i = 0; i < 3; ++i) put(*channel, i, words).value();
    full = all_of(*arena);
    channel->returns().give_back(received(*channel));
    REQUIRE(channel->stats().returned == 0);
  }
  std::shared_ptr<Arena> arena = new_arena(kMiB);
  std::shared_ptr<Channel> channel = new_channel(arena);
  std::vector<Lease> full{};
};
// Lets `times` receivers, one after the other, run out of memory for the next message.
void fail_to_build(Channel& channel, std::uint32_t times) {
  for (std::uint32_t i = 0; i < times; ++i) {
    auto place = received(channel);
    place->message.set_not_built();
    channel.returns().give_back(std::move(place));
  }
}
// A process that owns a lock until a thread of another process sleeps on it.
struct LockOwner {
  LockOwner(Arena& arena, std::atomic<std::uint32_t>* word)
      : child([&arena, word, this] {
          arena.lock(*word, patience()).value();
          locked.open();
          while ((word->load() & memory::kContended) == 0) usleep(1'000);
          arena.unlock(*word);
          return true;
        }) {
    locked.wait();
  }
  Gate locked;
  Child child;
};

// Puts a message that refers to an array of 64 MiB, and one that does not, from a child that exits. So neither message
// is mapped in this process.
constexpr std::uint64_t kLarge = 64 * kMiB, kTiB = kMiB << 20;
void put_large(const std::shared_ptr<Arena>& arena, Channel& channel) {
  Child sender([&] {
    const Lease array = arena->hold_new(new_block(*arena, kLarge, BlockKind::kArray)).value();
    OwnedBlock block = new_block(*arena, 8192);
    fill(block.data(), 0, 4);
    const BlockRef referred[] = {array.ref()};
    arena->holders().refer(block, referred, patience()).value();
    Outgoing message;
    message.block = std::move(block);
    message.bytes = 32;
    channel.sending().put(message, patience()).value();
    put(channel, 1).value();
    return true;
  });
  REQUIRE(sender.succeeded());
}

}  // namespace

// guarantee: kept-without-memory
TEST_CASE("A returned message is the next one for every receiver") {
  const std::size_t words = GENERATE(kInline, kBlock);
  auto channel = new_channel(new_arena());
  for (std::uint64_t i = 0; i < 3; ++i) put(*channel, i, words).value();
  auto first = received(*channel), second = received(*channel);
  channel->returns().give_back(std::move(second));
  channel->returns().give_back(std::move(first));
  CHECK(channel->size() == 3);
  CHECK(code_of(channel->acks().wait(0, no_wait())) == Code::kTimeout);
  Child other([&] { return get(*channel, no_wait()).value() == 0; });
  REQUIRE(other.succeeded());
  Incoming again = get_message(*channel, no_wait()).value();
  CHECK(number_in(again.frame()) == 1);
  CHECK(again.redelivered());
  again.drop();
  CHECK(drain(*channel) == std::vector<std::uint64_t>{2});
  CHECK(channel->stats().taken == 0);
  CHECK(channel->acks().wait({}, no_wait()).ok());
  CHECK(check_arena(*channel->arena()) == "");
}

// guarantee: kept-without-memory
TEST_CASE("A message that could not be built is received next") {
  const std::size_t words = GENERATE(kInline, kBlock);
  Kept kept(words);
  Channel& channel = *kept.channel;
  pollfd entry{channel.watchers().wake_fd(End::kReceiving).value(), POLLIN, 0};
  CHECK(channel.size() == 3);
  CHECK(channel.ready());
  CHECK(code_of(take(channel, no_wait())) == Code::kOutOfSharedMemory);
  CHECK(get(channel, no_wait()).value() == 0);
  CHECK(drain(channel) == std::vector<std::uint64_t>{1, 2});
  CHECK(poll(&entry, 1, 0) == 0);
  kept.full.clear();
  CHECK(check_arena(*kept.arena) == "");
}

TEST_CASE("A kept message becomes a dead letter after 8 failed builds") {
  const std::size_t words = GENERATE(kInline, kBlock);
  Kept kept(words);
  Channel& channel = *kept.channel;
  fail_to_build(channel, channel::kMaxFailedBuilds);
  CHECK(channel.stats().dead_letters == 0);
  CHECK(channel.size() == 2);
  CHECK(drain(channel) == std::vector<std::uint64_t>{1, 2});
  CHECK_FALSE(channel.ready());
  kept.full.clear();
  {
    auto given_up = channel.dead_letters(patience()).value();
    REQUIRE(given_up.size() == 1);
    CHECK(number_in(given_up[0]) == 0);
    given_up[0].ack(patience()).value();
  }
  CHECK(check_arena(*kept.arena) == "");
}

TEST_CASE("Kept messages are received in their order") {
  auto arena = new_arena(kMiB);
  auto channel = new_channel(arena);
  for (std::uint64_t i = 0; i < 4; ++i) put(*channel, i).value();
  const auto full = all_of(*arena);
  auto first = received(*channel), second = received(*channel), third = received(*channel);
  channel->returns().give_back(std::move(second));
  channel->returns().give_back(std::move(third));
  channel->returns().give_back(std::move(first));
  CHECK(drain(*channel) == std::vector<std::uint64_t>{0, 1, 2, 3});
}

TEST_CASE("take delivers a kept message first") {
  Kept kept(kBlock);
  kept.full.clear();
  Delivery delivery = take(*kept.channel, no_wait()).value();
  CHECK(number_in(delivery) == 0);
  delivery.ack(no_wait()).value();
  CHECK(drain(*kept.channel) == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("Detaching returns a kept message once there is memory") {
  Kept kept(kBlock);
  kept.full.clear();
  kept.channel->membership().leave(End::kReceiving);
  CHECK(kept.channel->stats().returned == 1);
  CHECK(drain(*kept.channel) == std::vector<std::uint64_t>{0, 1, 2});
}

// guarantee: kept-without-memory
TEST_CASE("take delivers a kept message while a recovery is pending") {
  Kept kept(kBlock);
  kept.full.clear();
  memory::request_recovery(kept.arena->header());
  Delivery delivery = take(*kept.channel, no_wait()).value();
  CHECK(number_in(delivery) == 0);
  delivery.ack(no_wait()).value();
  CHECK(drain(*kept.channel) == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("take waits for the lock that a kept message needs") {
  const bool channels = GENERATE(true, false);
  Kept kept(kBlock);
  kept.full.clear();
  LockOwner owner(*kept.arena, channels ? &header_of(*kept.channel).receivers_lock : &kept.arena->header().arena_lock);
  Delivery delivery = take(*kept.channel).value();
  CHECK(number_in(delivery) == 0);
  CHECK(owner.child.succeeded());
}

// guarantee: kept-without-memory
TEST_CASE("Detaching returns a kept message while a recovery is pending") {
  Kept kept(kBlock);
  kept.full.clear();
  memory::request_recovery(kept.arena->header());
  kept.channel->membership().leave(End::kReceiving);
  CHECK(kept.channel->stats().returned == 1);
  CHECK(drain(*kept.channel) == std::vector<std::uint64_t>{0, 1, 2});
}

TEST_CASE("A kept message is rejected while a recovery is pending") {
  const bool by_get = GENERATE(true, false);
  Kept kept(kBlock);
  Channel& channel = *kept.channel;
  fail_to_build(channel, channel::kMaxFailedBuilds);
  kept.full.clear();
  memory::request_recovery(kept.arena->header());
  if (by_get) {
    CHECK(get(channel, no_wait()).value() == 1);
    CHECK(channel.stats().dead_letters == 1);
  }
  CHECK(channel.dead_letters(patience()).value().size() == 1);
}

// guarantee: fork-in-a-call
TEST_CASE("A forked child does not return a message of its parent") {
  const std::size_t words = GENERATE(kInline, kBlock);
  auto channel = new_channel(new_arena());
  put(*channel, 7, words).value();
  auto message = received(*channel);
  Child child([&] {
    channel->returns().give_back(std::move(message));
    return channel->size() == 0;
  });
  REQUIRE(child.succeeded());
  CHECK(channel->size() == 0);
  channel->returns().give_back(std::move(message));
  CHECK(drain(*channel) == std::vector<std::uint64_t>{7});
}

TEST_CASE("A forked child does not receive kept messages of its parent") {
  Kept kept(kBlock);
  Child child([&] { return kept.channel->size() == 2 && drain(*kept.channel) == std::vector<std::uint64_t>{1, 2}; });
  REQUIRE(child.succeeded());
  CHECK(drain(*kept.channel) == std::vector<std::uint64_t>{0});
}

TEST_CASE("Immediate shutdown releases kept messages") {
  Kept kept(kBlock);
  kept.channel->tasks().shut_down(true, patience()).value();
  CHECK(code_of(get(*kept.channel, no_wait())) == Code::kShutDown);
  CHECK(kept.arena->holders().lease_count() == kept.full.size() + 1);  // the channel's own
}

// guarantee: kept-without-memory
TEST_CASE("A message with an unmappable array stays in the channel") {
  if (!address_limit_works()) return;
  const bool returned = GENERATE(false, true);
  auto arena = new_arena(256 * kMiB);
  auto channel = new_channel(arena);
  put_large(arena, *channel);
  if (returned) {  // by a process that could map it
    Child taker([&] { return take(*channel).value().nack(patience()).ok(); });
    REQUIRE(taker.succeeded());
  }
  Child poor([&] {
    rlimit limit{kTiB, kTiB};
    setrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = kTiB - *addresses_left() + kLarge / 2;
    setrlimit(RLIMIT_AS, &limit);
    for (const Error& error : {get_message(*channel, no_wait()).error(), channel->take(no_wait()).error()}) {
      if (error.code != Code::kOutOfSharedMemory || error.ticket != 0) return false;
      if (error.message.find("no address space to map " + std::to_string(kLarge) + " bytes") == std::string::npos)
        return false;
    }
    return true;
  });
  CHECK(poor.succeeded());
  CHECK(channel->size() == 2);
  CHECK(drain(*channel) == std::vector<std::uint64_t>{0, 1});
  CHECK(check_arena(*arena) == "");
}

TEST_CASE("A message with an invalid reference list is still received") {
  auto arena = new_arena();
  auto channel = new_channel(arena);
  const Lease array = new_lease(*arena);
  OwnedBlock block = new_block(*arena, 8192);
  fill(block.data(), 0, 4);
  const BlockRef referred[] = {array.ref(), array.ref()};
  arena->holders().refer(block, referred, patience()).value();
  const memory::BlockEntry& entry = *arena->blocks().entry(block.ref().id);
  auto* list = reinterpret_cast<memory::ListEntry*>(block.data() + entry.list_offset.load());
  list[0] =
      GENERATE(memory::ListEntry{~std::uint64_t{0}, 1}, memory::ListEntry{0, 0},
               memory::ListEntry{BlockId::make(20, 15).value, 1}, memory::ListEntry{BlockId::make(63, 1).value, 1});
  Outgoing message;
  message.block = std::move(block);
  message.bytes = 32;
  channel->sending().put(message, patience()).value();
  CHECK(get(*channel).value() == 0);
}
