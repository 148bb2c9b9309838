// Ends in transit to other processes: how long they count as attached, and for which processes.
#include "memory/transfers.h"

#include <csignal>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

bool waits(Channel& channel) {
  return code_of(get(channel, patience(10))) == Code::kEmpty;
}
// Moves the detected deaths of givers to a minute earlier. Returns their number.
int advance_one_minute(Channel& channel) {
  int aged = 0;
  channel.arena()->transfers().for_each([&](memory::Transfer& transfer) {
    const std::uint64_t state = transfer.state.load();
    if (state == 0 || !memory::giver_is_gone(state)) return true;
    transfer.state.store(memory::state_of_gone(state, (state >> 3) - memory::kEndLifeS));
    ++aged;
    return true;
  });
  return aged;
}
// A child that puts a sending end in transit, calls `then`, and waits. `number` is the transfer.
struct Giver {
  template <class Then>
  Giver(std::shared_ptr<Channel>& channel, Then then)
      : child([&] {
          const std::uint64_t mine = channel->membership().begin_transfer(End::kSending).value();
          then();
          given.open(mine);
          done.wait();
          return true;
        }) {
    number = given.wait();
  }
  Gate given, done;
  Child child;
  std::uint64_t number = 0;
};

}  // namespace

TEST_CASE("An end in transit counts as attached until it is claimed") {
  auto channel = receiving_channel();
  const std::uint64_t number = channel->membership().begin_transfer(End::kSending).value();
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  channel->membership().end_transfer(number, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A transfer is of one end and may be ended twice") {
  auto channel = receiving_channel();
  const std::uint64_t first = channel->membership().begin_transfer(End::kSending).value();
  const std::uint64_t second = channel->membership().begin_transfer(End::kReceiving).value();
  REQUIRE(first != second);
  channel->membership().end_transfer(second, End::kReceiving);
  channel->membership().end_transfer(second, End::kReceiving);
  channel->membership().end_transfer(0, End::kSending);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  channel->membership().end_transfer(first, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

// guarantee: forged-handles
TEST_CASE("A transfer does not end by the number of another object") {
  auto channel = receiving_channel(), other = new_channel(channel->arena());
  const std::uint64_t number = channel->membership().begin_transfer(End::kSending).value();
  other->membership().end_transfer(number, End::kSending);
  memory::end_transfer(*channel->arena(), 0, number);
  REQUIRE(waits(*channel));
  channel->membership().end_transfer(number, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A channel stays alive while its only end is in transit") {
  auto arena = new_arena();
  BlockRef block{};
  std::uint64_t number = 0;
  {
    auto channel = new_channel(arena);
    put(*channel, 5).value();
    number = channel->membership().begin_transfer(End::kReceiving).value();
    block = channel->block();
  }
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  auto channel = Channel::open(arena, block, patience()).value();
  channel->membership().join(End::kReceiving).value();
  channel->membership().end_transfer(number, End::kReceiving);
  REQUIRE(get(*channel).value() == 5);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

// guarantee: ends-in-transit
TEST_CASE("An end in transit counts while its giver lives") {
  auto channel = receiving_channel();
  const std::uint64_t number = channel->membership().begin_transfer(End::kSending).value();
  channel->arena()->header().transfers[0].made_ns.store(0);  // longer ago than a transfer lasts
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  REQUIRE(channel->ends().check_transfer(number, End::kSending, 1).ok());
  channel->membership().end_transfer(number, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

// guarantee: ends-in-transit
TEST_CASE("An end in transit counts for 60 s after its giver died") {
  auto channel = receiving_channel();
  Giver giver(channel, [] {});
  REQUIRE(waits(*channel));
  REQUIRE(advance_one_minute(*channel) == 0);
  giver.child.kill_and_wait();
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  REQUIRE(advance_one_minute(*channel) == 1);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  const Status late = channel->ends().check_transfer(giver.number, End::kSending, giver.child.pid());
  REQUIRE(code_of(late) == Code::kClosed);
  const std::string& said = late.error().message;
  REQUIRE(said.find("by process " + std::to_string(giver.child.pid())) != std::string::npos);
  REQUIRE(std::stoi(said.substr(said.find("ended ") + 6)) >= 60);
}

TEST_CASE("An end in transit counts for 60 s after its giver exited") {
  auto channel = receiving_channel();
  Giver giver(channel, [] {});
  giver.done.open();
  REQUIRE(giver.child.succeeded());
  REQUIRE(waits(*channel));
  REQUIRE(channel->ends().check_transfer(giver.number, End::kSending, 1).ok());
  REQUIRE(advance_one_minute(*channel) == 1);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

// guarantee: ends-in-transit
TEST_CASE("A giver that closed its own ends keeps its transfer alive") {
  auto channel = receiving_channel();
  Giver giver(channel, [&] {
    channel->membership().leave(End::kReceiving);
    channel.reset();
  });
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  REQUIRE(advance_one_minute(*channel) == 0);
  REQUIRE(channel->arena()->inspector().stats().participants == 2);
}

TEST_CASE("A process stays in a closed arena until its transfer is done") {
  auto arena = new_arena();
  const std::weak_ptr<Arena> seen = arena;
  auto channel = new_channel(arena);
  arena.reset();
  const std::uint64_t number = channel->membership().begin_transfer(End::kSending).value();
  const auto address = channel->block();
  channel.reset();
  REQUIRE_FALSE(seen.expired());
  {
    auto opened = Channel::open(seen.lock(), address, patience()).value();
    opened->membership().join(End::kSending).value();
    opened->membership().end_transfer(number, End::kSending);
  }
  REQUIRE(seen.expired());
}

// guarantee: ends-in-transit
TEST_CASE("Thousands of transfers are counted and can be ended twice") {
  auto channel = receiving_channel();
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 3'000; ++i) numbers.push_back(channel->membership().begin_transfer(End::kSending).value());
  REQUIRE(channel->stats().senders_in_transit == 3'000);
  const std::uint64_t last = numbers[1'234];
  for (const std::uint64_t number : numbers) {
    if (number == last) continue;
    channel->membership().end_transfer(number, End::kSending);
    channel->membership().end_transfer(number, End::kSending);
  }
  REQUIRE(channel->stats().senders_in_transit == 1);
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  channel->membership().end_transfer(last, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  const std::uint64_t blocks = channel->arena()->inspector().stats().blocks;
  for (int i = 0; i < 3'000; ++i)
    channel->membership().end_transfer(channel->membership().begin_transfer(End::kSending).value(), End::kSending);
  REQUIRE(channel->arena()->inspector().stats().blocks == blocks);  // entries are reused
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Concurrent transfers of several processes are all counted") {
  auto channel = receiving_channel();
  Gate go;
  const auto give = [&] {
    go.wait();
    for (int i = 0; i < 200; ++i) {
      if (!channel->membership().begin_transfer(End::kSending).ok()) return false;
    }
    Channel::leave_all();
    return true;
  };
  {
    Child a(give), b(give), c(give);
    go.open();
    go.open();
    go.open();
    REQUIRE(a.succeeded());
    REQUIRE(b.succeeded());
    REQUIRE(c.succeeded());
  }
  notice_deaths(*channel);
  REQUIRE(channel->stats().senders_in_transit == 600);
  REQUIRE(waits(*channel));
  REQUIRE(advance_one_minute(*channel) == 600);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A late transfer is valid if the stream is open again") {
  auto channel = receiving_channel();
  Giver giver(channel, [] {});
  giver.child.kill_and_wait();
  notice_deaths(*channel);
  advance_one_minute(*channel);
  channel->membership().join(End::kSending).value();
  put(*channel, 1).value();
  REQUIRE(channel->ends().check_transfer(giver.number, End::kSending, 1).ok());
}

TEST_CASE("An end can be loaded twice while its giver lives") {
  auto channel = receiving_channel();
  const std::uint64_t number = channel->membership().begin_transfer(End::kSending).value();
  channel->membership().end_transfer(number, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  REQUIRE(channel->ends().check_transfer(number, End::kSending, 1).ok());
}

TEST_CASE("in_transit reports the age and giver of an end in transit") {
  auto channel = receiving_channel();
  REQUIRE_FALSE(channel->ends().is_forgotten(End::kSending));
  Giver giver(channel, [] {});
  REQUIRE(channel->ends().is_forgotten(End::kSending));
  channel->arena()->header().transfers[0].made_ns.store(channel->arena()->header().transfers[0].made_ns.load() -
                                                        20'000'000'000);
  memory::InTransit sent = channel->ends().in_transit(End::kSending);
  REQUIRE(sent.count == 1);
  REQUIRE(sent.pid == giver.child.pid());
  REQUIRE(sent.age_ns >= 20'000'000'000);
  giver.child.kill_and_wait();
  REQUIRE(channel->ends().in_transit(End::kSending).pid == 0);
  channel->membership().join(End::kSending).value();
  put(*channel, 1).value();
  REQUIRE_FALSE(channel->ends().is_forgotten(End::kSending));
  REQUIRE(channel->ends().in_transit(End::kReceiving).count == 0);
}

TEST_CASE("A channel with its only end in transit expires after 60 s") {
  auto arena = new_arena();
  Gate made, done;
  Child giver([&] {
    auto channel = Channel::create(arena, {}).value();
    channel->membership().begin_transfer(End::kSending).value();
    made.open(memory::pack(channel->block()));
    done.wait();
    Channel::leave_all();
    return true;
  });
  const memory::BlockRef block = memory::unpack(made.wait());
  done.open();
  REQUIRE(giver.succeeded());
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  REQUIRE(arena->blocks().is_current(block));
  {
    auto channel = Channel::open(arena, block, patience()).value();
    REQUIRE(advance_one_minute(*channel) == 1);
  }
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  REQUIRE_FALSE(arena->blocks().is_current(block));
  REQUIRE(used_bytes(*arena) == 0);
}

TEST_CASE("Damaged transfer entries cause no hang or crash") {
  auto channel = receiving_channel();
  for (int i = 0; i < 200; ++i) channel->membership().begin_transfer(End::kSending).value();
  for (const std::uint64_t word :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 2, std::uint64_t{1} << 63, std::uint64_t{4}}) {
    channel->arena()->transfers().for_each([&](memory::Transfer& transfer) {
      transfer.state.store(word);
      transfer.made_ns.store(INT64_MIN);
      return true;
    });
    static_cast<void>(channel->stats());
    static_cast<void>(channel->ends().check_transfer(word, End::kSending, 1).ok());
    const std::uint64_t number = channel->membership().begin_transfer(End::kReceiving).value();
    channel->membership().end_transfer(number, End::kReceiving);
    notice_deaths(*channel);
    advance_one_minute(*channel);
  }
  // A chain that is a cycle, and a chain that ends at an invalid entry.
  const std::uint64_t first = channel->arena()->header().more_transfers.load();
  auto* header = reinterpret_cast<memory::ChainHeader*>(channel->arena()->blocks().address(memory::unpack(first).id));
  header->next.store(first);
  static_cast<void>(channel->stats());
  header->next.store(~std::uint64_t{0});
  header->count = ~std::uint64_t{0};
  static_cast<void>(channel->stats());
  REQUIRE(channel->membership().begin_transfer(End::kSending).ok());
}
