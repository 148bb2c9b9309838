// Ends on their way to other processes: how long they count, and for whom.
#include <csignal>

#include "channel/grants.h"
#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

bool waits(Channel& channel) {
  return code_of(get(channel, patience(10))) == Code::kEmpty;
}
// Every giver that is gone was found so a minute earlier. Returns how many there are.
int let_a_minute_pass(Channel& channel) {
  int aged = 0;
  channel::Grants(*channel.arena(), header_of(channel)).for_each([&](channel::Grant& grant) {
    const std::uint64_t state = grant.state.load();
    if (state == 0 || !channel::giver_is_gone(state)) return true;
    grant.state.store(channel::state_of_gone(state, (state >> 2) - channel::kGrantLifeS));
    ++aged;
    return true;
  });
  return aged;
}
// A child that gives a sending end away, does `then`, and waits; and what it gave.
struct Giver {
  template <class Then>
  Giver(std::shared_ptr<Channel>& channel, Then then)
      : child([&] {
          const std::uint64_t mine = channel->membership().grant(End::kSending).value();
          then();
          given.open(mine);
          done.wait();
          return true;
        }) {
    grant = given.wait();
  }
  Gate given, done;
  Child child;
  std::uint64_t grant = 0;
};

}  // namespace

TEST_CASE("An end on its way to another process counts until it is claimed") {
  auto channel = receiving_channel();
  const std::uint64_t grant = channel->membership().grant(End::kSending).value();
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  channel->membership().claim(grant, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A grant is for one end, and claiming it twice is harmless") {
  auto channel = receiving_channel();
  const std::uint64_t first = channel->membership().grant(End::kSending).value();
  const std::uint64_t second = channel->membership().grant(End::kReceiving).value();
  REQUIRE(first != second);
  channel->membership().claim(second, End::kReceiving);
  channel->membership().claim(second, End::kReceiving);
  channel->membership().claim(0, End::kSending);
  REQUIRE(code_of(get(*channel, patience(10))) == Code::kEmpty);
  channel->membership().claim(first, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A channel whose only end is on its way is kept") {
  auto arena = new_arena();
  BlockRef block{};
  std::uint64_t grant = 0;
  {
    auto channel = new_channel(arena);
    put(*channel, 5).value();
    grant = channel->membership().grant(End::kReceiving).value();
    block = channel->block();
  }
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  auto channel = Channel::open(arena, block, patience()).value();
  channel->membership().join(End::kReceiving).value();
  channel->membership().claim(grant, End::kReceiving);
  REQUIRE(get(*channel).value() == 5);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("An end on its way counts for as long as its giver lives") {
  auto channel = receiving_channel();
  const std::uint64_t grant = channel->membership().grant(End::kSending).value();
  header_of(*channel).grants[0].made_ns.store(0);  // that long ago
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  REQUIRE(channel->ends().check_grant(grant, End::kSending, 1).ok());
  channel->membership().claim(grant, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("An end on its way counts for a minute after its giver was found dead") {
  auto channel = receiving_channel();
  Giver giver(channel, [] {});
  REQUIRE(waits(*channel));
  REQUIRE(let_a_minute_pass(*channel) == 0);
  giver.child.kill_and_wait();
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  REQUIRE(let_a_minute_pass(*channel) == 1);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  const Status late = channel->ends().check_grant(giver.grant, End::kSending, giver.child.pid());
  REQUIRE(code_of(late) == Code::kClosed);
  const std::string& said = late.error().message;
  REQUIRE(said.find("by process " + std::to_string(giver.child.pid())) != std::string::npos);
  REQUIRE(std::stoi(said.substr(said.find("ended ") + 6)) >= 60);
}

TEST_CASE("A giver that leaves normally is given the same minute") {
  auto channel = receiving_channel();
  Giver giver(channel, [] {});
  giver.done.open();
  REQUIRE(giver.child.succeeded());
  REQUIRE(waits(*channel));
  REQUIRE(channel->ends().check_grant(giver.grant, End::kSending, 1).ok());
  REQUIRE(let_a_minute_pass(*channel) == 1);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("A giver that has closed its own ends, and lives, still counts for what it gave") {
  auto channel = receiving_channel();
  Giver giver(channel, [&] {
    channel->membership().leave(End::kReceiving);
    channel.reset();
  });
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  REQUIRE(let_a_minute_pass(*channel) == 0);
  REQUIRE(channel->arena()->inspector().stats().participants == 2);
}

TEST_CASE("A process stays in an arena that it has closed until what it gave has arrived") {
  auto arena = new_arena();
  const std::weak_ptr<Arena> seen = arena;
  auto channel = new_channel(arena);
  arena.reset();
  const std::uint64_t grant = channel->membership().grant(End::kSending).value();
  const auto address = channel->block();
  channel.reset();
  REQUIRE_FALSE(seen.expired());
  {
    auto opened = Channel::open(seen.lock(), address, patience()).value();
    opened->membership().join(End::kSending).value();
    opened->membership().claim(grant, End::kSending);
  }
  REQUIRE(seen.expired());
}

TEST_CASE("Of thousands of ends on their way each one counts, and being claimed twice is being claimed once") {
  auto channel = receiving_channel();
  std::vector<std::uint64_t> grants;
  for (int i = 0; i < 3'000; ++i) grants.push_back(channel->membership().grant(End::kSending).value());
  REQUIRE(channel->stats().senders_on_their_way == 3'000);
  const std::uint64_t last = grants[1'234];
  for (const std::uint64_t grant : grants) {
    if (grant == last) continue;
    channel->membership().claim(grant, End::kSending);
    channel->membership().claim(grant, End::kSending);
  }
  REQUIRE(channel->stats().senders_on_their_way == 1);
  notice_deaths(*channel);
  REQUIRE(waits(*channel));
  channel->membership().claim(last, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  const std::uint64_t blocks = channel->arena()->inspector().stats().blocks;
  for (int i = 0; i < 3'000; ++i)
    channel->membership().claim(channel->membership().grant(End::kSending).value(), End::kSending);
  REQUIRE(channel->arena()->inspector().stats().blocks == blocks);  // places are used again
  REQUIRE(channel::check(*channel->arena()) == "");
}

TEST_CASE("Ends that several processes give away at once are all counted") {
  auto channel = receiving_channel();
  Gate go;
  const auto give = [&] {
    go.wait();
    for (int i = 0; i < 200; ++i) {
      if (!channel->membership().grant(End::kSending).ok()) return false;
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
  REQUIRE(channel->stats().senders_on_their_way == 600);
  REQUIRE(waits(*channel));
  REQUIRE(let_a_minute_pass(*channel) == 600);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
}

TEST_CASE("An end that comes late joins those who keep the stream open") {
  auto channel = receiving_channel();
  Giver giver(channel, [] {});
  giver.child.kill_and_wait();
  notice_deaths(*channel);
  let_a_minute_pass(*channel);
  channel->membership().join(End::kSending).value();
  put(*channel, 1).value();
  REQUIRE(channel->ends().check_grant(giver.grant, End::kSending, 1).ok());
}

TEST_CASE("An end that is loaded twice while its giver lives is not late") {
  auto channel = receiving_channel();
  const std::uint64_t grant = channel->membership().grant(End::kSending).value();
  channel->membership().claim(grant, End::kSending);
  REQUIRE(code_of(get(*channel)) == Code::kClosed);
  REQUIRE(channel->ends().check_grant(grant, End::kSending, 1).ok());
}

TEST_CASE("Who waits for ends on their way can tell since when, and from whom") {
  auto channel = receiving_channel();
  REQUIRE_FALSE(channel->ends().is_forgotten(End::kSending));
  Giver giver(channel, [] {});
  REQUIRE(channel->ends().is_forgotten(End::kSending));
  header_of(*channel).grants[0].made_ns.store(header_of(*channel).grants[0].made_ns.load() - 20'000'000'000);
  channel::OnTheirWay sent = channel->ends().on_their_way(End::kSending);
  REQUIRE(sent.count == 1);
  REQUIRE(sent.pid == giver.child.pid());
  REQUIRE(sent.age_ns >= 20'000'000'000);
  giver.child.kill_and_wait();
  REQUIRE(channel->ends().on_their_way(End::kSending).pid == 0);
  channel->membership().join(End::kSending).value();
  put(*channel, 1).value();
  REQUIRE_FALSE(channel->ends().is_forgotten(End::kSending));
  REQUIRE(channel->ends().on_their_way(End::kReceiving).count == 0);
}

TEST_CASE("A channel whose only end is on its way is given up a minute after the giver") {
  auto arena = new_arena();
  Gate made, done;
  Child giver([&] {
    auto channel = Channel::create(arena, {}).value();
    channel->membership().grant(End::kSending).value();
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
    REQUIRE(let_a_minute_pass(*channel) == 1);
  }
  arena->participants().check(0);
  arena->reconcile(patience()).value();
  REQUIRE_FALSE(arena->blocks().is_current(block));
  REQUIRE(used_bytes(*arena) == 0);
}

TEST_CASE("Words of grants that others have written do no harm") {
  auto channel = receiving_channel();
  for (int i = 0; i < 200; ++i) channel->membership().grant(End::kSending).value();
  for (const std::uint64_t word :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 2, std::uint64_t{1} << 63, std::uint64_t{4}}) {
    channel::Grants(*channel->arena(), header_of(*channel)).for_each([&](channel::Grant& grant) {
      grant.state.store(word);
      grant.made_ns.store(INT64_MIN);
      return true;
    });
    static_cast<void>(channel->stats());
    static_cast<void>(channel->ends().check_grant(word, End::kSending, 1).ok());
    const std::uint64_t grant = channel->membership().grant(End::kReceiving).value();
    channel->membership().claim(grant, End::kReceiving);
    notice_deaths(*channel);
    let_a_minute_pass(*channel);
  }
  // A chain that leads back to itself, and one that leads nowhere.
  const std::uint64_t first = header_of(*channel).more_grants.load();
  auto* header = reinterpret_cast<channel::ChainHeader*>(channel->arena()->blocks().address(memory::unpack(first).id));
  header->next.store(first);
  static_cast<void>(channel->stats());
  header->next.store(~std::uint64_t{0});
  header->count = ~std::uint64_t{0};
  static_cast<void>(channel->stats());
  REQUIRE(channel->membership().grant(End::kSending).ok());
}
