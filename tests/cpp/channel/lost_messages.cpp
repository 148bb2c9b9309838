// Ends and memory in messages that no process can receive any more: dropped, queued in a channel that no process has,
// or received by a process that is killed. They are not in transit any more.
#include <poll.h>

#include "memory/transfers.h"
#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"
#include "support/crash_states.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

// Puts a message in a block that carries that transfer of `arena`.
void put_with(Channel& home, Arena& arena, std::uint64_t transfer) {
  Outgoing message;
  message.block = home.sending().reserve(64, patience()).value();
  message.bytes = 64;
  fill(message.block.data(), 1, 8);
  memory::carry_transfer(arena, transfer, *home.arena(), message.block.ref());
  home.sending().put(message, patience()).value();
}
void put_end(Channel& home, Channel& given, End end = End::kSending) {
  put_with(home, *given.arena(), given.membership().begin_transfer(end).value());
}
std::uint64_t put_memory(Channel& home, const std::shared_ptr<Arena>& arena, BlockRef block) {
  const auto number = memory::begin_transfer(arena, memory::pack(block), memory::Transferred::kMemory).value();
  put_with(home, *arena, number);
  return number;
}
bool is_over(Channel& channel) {
  return code_of(get(channel, patience())) == Code::kClosed;
}
bool waits(Channel& channel) {
  return code_of(get(channel, patience(10))) == Code::kEmpty;
}
// A channel with only the receiving end attached, in that arena.
std::shared_ptr<Channel> waiting_channel(const std::shared_ptr<Arena>& arena) {
  auto channel = Channel::create(arena, {}).value();
  channel->membership().join(End::kReceiving).value();
  return channel;
}
ChannelOptions dropping(std::uint64_t capacity) {
  ChannelOptions options = with_capacity(capacity);
  options.drop_oldest = true;
  return options;
}
void close(std::shared_ptr<Channel>& channel) {
  channel->membership().leave(End::kSending);
  channel->membership().leave(End::kReceiving);
  channel.reset();
}

}  // namespace

// guarantee: lost-in-transit
TEST_CASE("An end in a message that a put drops leaves transit") {
  auto arena = new_arena();
  auto home = new_channel(arena, dropping(1)), stream = waiting_channel(arena);
  put_end(*home, *stream);
  REQUIRE(waits(*stream));
  put(*home, 2).value();
  REQUIRE(is_over(*stream));
  REQUIRE(stream->stats().senders_in_transit == 0);
  REQUIRE(channel::check(*arena) == "");
}

// guarantee: lost-in-transit
TEST_CASE("An end in a received message that is dropped leaves transit") {
  auto arena = new_arena();
  auto home = new_channel(arena), stream = waiting_channel(arena);
  put_end(*home, *stream);
  {
    Incoming message;
    home->receiving().get(message, patience()).value();
    REQUIRE(waits(*stream));
  }
  REQUIRE(is_over(*stream));
}

// guarantee: lost-in-transit
TEST_CASE("An end queued in an abandoned channel leaves transit") {
  auto arena = new_arena();
  auto home = new_channel(arena), stream = waiting_channel(arena);
  put_end(*home, *stream);
  close(home);
  REQUIRE(is_over(*stream));
}

// guarantee: lost-in-transit
TEST_CASE("An end that a killed process received leaves transit") {
  auto arena = new_arena();
  auto home = new_channel(arena), stream = waiting_channel(arena);
  const bool is_received = GENERATE(true, false);
  Gate got;
  Child receiver([&] {
    Incoming message;
    if (is_received) home->receiving().get(message, patience()).value();
    got.open();
    pause();
    return true;
  });
  put_end(*home, *stream);
  got.wait();
  close(home);
  receiver.kill_and_wait();
  REQUIRE(is_over(*stream));
}

// guarantee: lost-in-transit
TEST_CASE("An end in a returned message or dead letter stays alive") {
  auto arena = new_arena();
  ChannelOptions options;
  options.max_attempts = 1;
  auto home = new_channel(arena, options), stream = waiting_channel(arena);
  put_end(*home, *stream);
  REQUIRE(home->take(patience()).value().nack(patience()).ok());
  recover(*arena);
  REQUIRE(waits(*stream));
  auto letters = home->dead_letters(patience()).value();
  REQUIRE(letters.size() == 1);
  REQUIRE(letters[0].ack(patience()).ok());
  letters.clear();
  REQUIRE(is_over(*stream));
}

TEST_CASE("An end in a queue that is shut down at once leaves transit") {
  auto arena = new_arena();
  auto home = new_channel(arena, with_capacity(8, Ending::kNever)), stream = waiting_channel(arena);
  put_end(*home, *stream);
  home->tasks().shut_down(true, patience()).value();
  REQUIRE(is_over(*stream));
}

// guarantee: lost-in-transit
TEST_CASE("A lost last sender makes the stream's descriptor readable") {
  auto arena = new_arena();
  auto home = new_channel(arena, dropping(1)), stream = waiting_channel(arena);
  put_end(*home, *stream);
  Gate watching, ended;
  Child watcher([&] {
    const int fd = stream->watchers().wake_fd(End::kReceiving).value();
    pollfd one{fd, POLLIN, 0};
    if (poll(&one, 1, 0) != 0) return false;
    watching.open();
    return poll(&one, 1, 60'000) == 1;
  });
  watching.wait();
  stream->membership().leave(End::kReceiving);
  put(*home, 2).value();
  REQUIRE(watcher.succeeded());
}

// guarantee: lost-in-transit
TEST_CASE("Memory in a message that is lost is freed") {
  auto arena = new_arena();
  auto home = new_channel(arena, dropping(1));
  const std::uint64_t empty = used_bytes(*arena);
  const bool is_dropped = GENERATE(true, false);
  Lease memory = filled_lease(*arena, 65'536, 3);
  const BlockRef block = memory.ref();
  put_memory(*home, arena, block);
  memory.reset();
  recover(*arena);
  REQUIRE(arena->blocks().is_current(block));
  if (is_dropped) {
    put(*home, 2).value();
  } else {
    close(home);
    recover(*arena);
  }
  REQUIRE_FALSE(arena->blocks().is_current(block));
  REQUIRE(used_bytes(*arena) <= empty);
  REQUIRE(check_arena(*arena) == "");
}

// guarantee: lost-in-transit
TEST_CASE("Channels in transit within each other are freed") {
  auto arena = new_arena();
  const int count = GENERATE(1, 2, 5);
  {
    std::vector<std::shared_ptr<Channel>> ring;
    for (int i = 0; i < count; ++i) ring.push_back(new_channel(arena));
    for (int i = 0; i < count; ++i) {
      put_end(*ring[static_cast<std::size_t>(i)], *ring[static_cast<std::size_t>((i + 1) % count)], End::kReceiving);
    }
    for (auto& each : ring) close(each);
  }
  REQUIRE(arena->participants().check(0));  // without another reason for a recovery
  REQUIRE(arena->reconcile(patience()).ok());
  REQUIRE(used_bytes(*arena) == 0);
  REQUIRE(channel::check(*arena) == "");
}

// guarantee: lost-in-transit
TEST_CASE("Recovery keeps channels in transit in a chain of messages") {
  auto arena = new_arena();
  auto first = new_channel(arena), second = new_channel(arena), third = waiting_channel(arena);
  const BlockRef inner = second->block();
  put_end(*second, *third);
  put_end(*first, *second, End::kReceiving);
  close(second);
  recover(*arena);
  REQUIRE(arena->blocks().is_current(inner));
  REQUIRE(waits(*third));
  close(first);
  REQUIRE(is_over(*third));
  REQUIRE_FALSE(arena->blocks().is_current(inner));
}

// guarantee: lost-in-transit
TEST_CASE("A giver ends a transfer lost in a message of another arena") {
  auto arena = new_arena();
  auto home = new_channel(new_arena(), dropping(1)), stream = waiting_channel(arena);
  const bool is_dropped = GENERATE(true, false);
  const std::weak_ptr<Arena> seen = home->arena();
  put_end(*home, *stream);
  REQUIRE(waits(*stream));
  if (is_dropped) put(*home, 2).value();
  close(home);
  REQUIRE(is_over(*stream));
  memory::sweep_transfers();
  REQUIRE(seen.expired());
}

TEST_CASE("A recovery ends the transfers of a message that was freed") {
  auto arena = new_arena();
  auto stream = waiting_channel(arena);
  const std::uint64_t number = stream->membership().begin_transfer(End::kSending).value();
  {
    const OwnedBlock block = new_block(*arena);
    memory::carry_transfer(*arena, number, *arena, block.ref());
    arena->blocks().entry(block.ref().id)->flags.fetch_and(~std::uint32_t{memory::kCarriesTransfers});
  }
  REQUIRE(waits(*stream));
  recover(*arena);
  REQUIRE(is_over(*stream));
}

// A recovery may be killed after it has reset the reference counts, and before it has counted again.
TEST_CASE("A channel in a referenced message survives a killed recovery") {
  auto arena = new_arena();
  auto home = new_channel(arena), stream = new_channel(arena);
  put(*stream, 7).value();
  put_end(*home, *stream, End::kReceiving);
  BlockRef carrier;
  {
    Incoming message;
    home->receiving().get(message, patience()).value();
    carrier = message.block();
    Outgoing referring;
    referring.block = new_block(*arena, 8192);
    referring.bytes = 64;
    fill(referring.block.data(), 0, 8);
    arena->holders().refer(referring.block, std::span(&carrier, 1), patience()).value();
    home->sending().put(referring, patience()).value();
  }
  const BlockRef block = stream->block();
  close(stream);
  arena->blocks().entry(carrier.id)->refcount.store(0);
  recover(*arena);
  stream = Channel::open(arena, block, patience()).value();
  REQUIRE(stream->size() == 1);
  REQUIRE(arena->blocks().entry(carrier.id)->refcount.load() == 1);
  REQUIRE(channel::check(*arena) == "");
}

TEST_CASE("Damaged carriers of transfers cause no hang or crash") {
  auto arena = new_arena();
  auto home = new_channel(arena), stream = waiting_channel(arena);
  for (const std::uint64_t word : {~std::uint64_t{0}, std::uint64_t{1}, memory::pack(stream->block()),
                                   memory::pack(home->block()), std::uint64_t{1} << 59}) {
    put_end(*home, *stream);
    arena->header().transfers[0].carrier.store(word);
    recover(*arena);
    get(*home).value();
    recover(*arena);
  }
}

#if defined(SHMTREE_CRASH_POINTS)

// guarantee: lost-in-transit
TEST_CASE("A kill while an end is put leaves it in the message or lost") {
  try_every_change([](std::int64_t change) {
    auto arena = new_arena();
    auto home = new_channel(arena), stream = waiting_channel(arena);
    const std::uint64_t empty = used_bytes(*arena);
    const bool killed = killed_at_change(change, [&] {
      stream->membership().join(End::kSending).value();
      put_end(*home, *stream);
      stream->membership().leave(End::kSending);
    });
    recover(*arena);
    if (stream->stats().senders_in_transit != 0 && home->size() != 0) get(*home).value();
    recover(*arena);
    // An end that its giver had not put yet counts for a minute, since no message is known.
    if (home->size() == 0 && stream->stats().senders_in_transit == 0) {
      const Code code = code_of(get(*stream, patience(20)));
      REQUIRE((code == Code::kClosed || code == Code::kPeerDied || code == Code::kEmpty));
    }
    if (!killed) REQUIRE(stream->stats().senders_in_transit == 0);
    REQUIRE(used_bytes(*arena) <= empty);
    REQUIRE(channel::check(*arena) == "");
    return killed;
  });
}

// guarantee: lost-in-transit
TEST_CASE("A kill while a message is dropped leaves no transfer behind") {
  try_every_change([](std::int64_t change) {
    auto arena = new_arena();
    auto home = new_channel(arena, dropping(2)), stream = waiting_channel(arena);
    Lease memory = filled_lease(*arena, 5'000, 3);
    const BlockRef block = memory.ref();
    put_end(*home, *stream);
    put_memory(*home, arena, block);
    memory.reset();
    const bool killed = killed_at_change(change, [&] {
      put(*home, 3).value();
      put(*home, 4).value();
    });
    recover(*arena);
    while (code_of(get(*home, no_wait())) != Code::kEmpty) {
    }
    REQUIRE(is_over(*stream));
    REQUIRE_FALSE(arena->blocks().is_current(block));
    REQUIRE(channel::check(*arena) == "");
    return killed;
  });
}

TEST_CASE("A kill in a recovery leaves no lost transfer behind") {
  try_every_change([](std::int64_t change) {
    auto arena = new_arena();
    auto home = new_channel(arena), inner = new_channel(arena), stream = waiting_channel(arena);
    put_end(*inner, *stream);
    put_end(*home, *inner, End::kReceiving);
    put_end(*inner, *home, End::kReceiving);
    close(inner);
    close(home);
    const bool killed = killed_at_change(change, [&] {
      arena->participants().check(0);
      arena->reconcile(patience()).ok();
    });
    recover(*arena);
    REQUIRE(is_over(*stream));
    close(stream);
    recover(*arena);
    REQUIRE(used_bytes(*arena) == 0);
    return killed;
  });
}

#endif
