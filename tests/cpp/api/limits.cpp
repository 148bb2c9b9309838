// Out of memory in this process: every allocation of every call fails in turn. No call that returns a Result throws,
// and no message is lost.
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <string>
#include <utility>

#include "shmtree/shmtree.h"
#include "support/failing_memory.h"

using namespace std::chrono_literals;
using namespace shmtree::test;
using shmtree::Code;
using shmtree::Item;

namespace {

shmtree::Arena new_arena() {
  return shmtree::Arena::create({.max_bytes = 16 << 20}).value();
}

// Returns true if `act` throws nothing, neither bad_alloc nor any other exception.
template <class Act>
bool throws_nothing(Act act) {
  try {
    act();
    return true;
  } catch (...) {
    return false;
  }
}

using Put = void (*)(const shmtree::Sender&);

void put_inline(const shmtree::Sender& sender) {
  sender.put(shmtree::Dict{{"n", 7}, {"text", std::string(100, 'x')}}).value();
}
void put_copied(const shmtree::Sender& sender) {
  sender.put(shmtree::Dict{{"n", 7}, {"a", std::vector<double>(1'000, 1.5)}}).value();
}
void put_viewed(const shmtree::Sender& sender) {
  sender.put(shmtree::Dict{{"n", 7}, {"a", std::vector<double>(10'000, 1.5)}}).value();
}
void put_referring(const shmtree::Sender& sender) {
  const shmtree::NewArray array = sender.new_array(shmtree::DType::kFloat64, {10'000}).value();
  std::ranges::fill(array.span<double>(), 1.5);
  sender.put(shmtree::Dict{{"n", 7}, {"a", array}}).value();
}
bool is_right(const Item& item) {
  if (item["n"].as<int>() != 7) return false;
  if (!item.contains("a")) return item["text"].as<std::string>() == std::string(100, 'x');
  const auto elements = item["a"].span<double>();
  return std::accumulate(elements.begin(), elements.end(), 0.0) == 1.5 * static_cast<double>(elements.size());
}

struct Receiving {
  shmtree::Sender sender;
  shmtree::Receiver receiver;
  std::vector<Item> kept{};  // received earlier and kept, so that the next receive has to allocate
  std::vector<Item> got{};
  bool threw = false;
  shmtree::Arena arena;
  shmtree::Value value = shmtree::Dict{{"a", std::string(20'000, 'x')}, {"b", 1}};
};
Receiving with_two(Put put) {
  const shmtree::Arena arena = new_arena();
  auto [sender, receiver] = shmtree::make_pair({.arena = arena});
  Receiving state{.sender = sender, .receiver = receiver, .arena = arena};
  for (int i = 0; i < 4; ++i) {
    put_inline(sender);
    state.kept.push_back(receiver.get().value());
  }
  put(sender);
  sender.put("next").value();
  state.got.reserve(2);
  return state;
}

using Receive = void (*)(Receiving&);

void get(Receiving& state) {
  auto item = state.receiver.get(0s);
  if (item) state.got.push_back(std::move(*item));
}
void get_many(Receiving& state) {
  auto items = state.receiver.get_many(5, 0s);
  if (!items) return;
  for (Item& item : *items) state.got.push_back(std::move(item));
}
void take_and_ack(Receiving& state) {
  auto taken = state.receiver.take(0s);
  if (taken && taken->ack().ok()) state.got.push_back(taken->item());
}

struct Step {
  std::vector<double> obs{};
  std::string episode{};
  std::optional<std::tuple<int, std::string>> note{};
  std::map<std::string, std::vector<std::string>> tags{};
};
SHMTREE_FIELDS(Step, obs, episode, note, tags)

Step some_step() {
  const std::string long_text(100, 'x');
  return {.obs = {1, 2}, .episode = long_text, .note = {{1, long_text}}, .tags = {{long_text, {"a", long_text}}}};
}

}  // namespace

// guarantee: kept-without-memory
TEST_CASE("a receive that fails to allocate loses no message") {
  const Put put = GENERATE(as<Put>{}, &put_inline, &put_copied, &put_viewed, &put_referring);
  const Receive receive = GENERATE(as<Receive>{}, &get, &get_many, &take_and_ack);
  fail_each_allocation([&] { return with_two(put); },
                       [&](Receiving& state) { state.threw = !throws_nothing([&] { receive(state); }); },
                       [&](Receiving& state, bool reached) {
                         REQUIRE_FALSE(state.threw);
                         REQUIRE((reached || !state.got.empty()));
                         REQUIRE(state.receiver.size() == 2 - state.got.size());
                         while (!state.receiver.empty()) state.got.push_back(state.receiver.get(0s).value());
                         REQUIRE(state.got.size() == 2);
                         REQUIRE(is_right(state.got[0]));
                         REQUIRE(state.got[1].as<std::string>() == "next");
                         REQUIRE(state.sender.pending_acks() == 0);
                         state.got.clear();
                         REQUIRE(state.arena.usage().held_bytes < 32 << 10);  // only the channel itself
                       });
}

// guarantee: kept-without-memory
TEST_CASE("a subscriber get that fails to allocate loses no message") {
  struct Reading {
    shmtree::Subscriber reader;
    std::size_t read = 0;
    bool threw = false;
  };
  const auto bytes = GENERATE(as<std::size_t>{}, 10, 4'000, 80'000);
  const int how = GENERATE(0, 1, 2, 3);  // as two items, an item, bytes, or bytes that were put as bytes
  const std::vector<std::uint8_t> value(bytes, 7);
  const auto prepare = [&] {
    const auto broadcast = shmtree::make_broadcast({.arena = new_arena()});
    const auto put = [&] {
      return how == 3 ? broadcast.put_bytes(std::as_bytes(std::span(value))) : broadcast.put(value);
    };
    Reading state{broadcast.subscribe().value()};
    for (int i = 0; i < 2; ++i) put().value();
    return state;
  };
  const auto read = [how](const shmtree::Subscriber& reader) -> std::size_t {
    const auto items = how == 0 ? reader.get_many(2, 0s) : std::vector<Item>();
    if (how == 0) return items ? items->size() : 0;
    return (how == 1 ? reader.get(0s).ok() : reader.get_bytes(0s).ok()) ? 1 : 0;
  };
  fail_each_allocation(
      prepare, [&](Reading& state) { state.threw = !throws_nothing([&] { state.read = read(state.reader); }); },
      [&](Reading& state, bool reached) {
        REQUIRE((!state.threw && (reached || state.read != 0)));
        for (; state.read < 2; ++state.read) REQUIRE(state.reader.get_bytes(0s).value().size() == bytes);
        REQUIRE((state.reader.empty() && state.reader.missed() == 0));
      });
}

TEST_CASE("item accessors do not throw on failed allocations") {
  auto [sender, receiver] = shmtree::make_pair({.arena = new_arena()});
  sender.put(shmtree::Dict{{"text", std::string(100, 'x')}}).value();
  const Item item = receiver.get(0s).value();
  const Item text = item["text"];
  struct State {
    bool threw = false;
  };
  fail_each_allocation([] { return State{}; },
                       [&](State& state) {
                         state.threw = !throws_nothing([&] {
                           static_cast<void>(text.try_as<std::string>().ok());
                           static_cast<void>(text.try_as<int>().ok());
                           static_cast<void>(item.try_view().ok());
                         });
                       },
                       [](State& state, bool) { REQUIRE_FALSE(state.threw); });
}

// guarantee: out-of-memory
TEST_CASE("a failed allocation throws nothing and puts nothing") {
  using Call = void (*)(Receiving&);
  const Call call = GENERATE(
      as<Call>{},
      [](Receiving& state) {
        if (state.sender.put(state.value, 0s).ok()) state.got.emplace_back();
      },
      [](Receiving& state) { static_cast<void>(state.sender.new_array(shmtree::DType::kInt64, {}, 0s).ok()); },
      [](Receiving& state) { static_cast<void>(state.sender.wait_for_all_ack(0s).ok()); },
      [](Receiving& state) {
        auto handle = state.sender.handle();
        if (handle) static_cast<void>(shmtree::Sender::open(*handle).ok());
      },
      [](Receiving& state) {
        auto handle = state.receiver.handle();
        if (handle) static_cast<void>(shmtree::Receiver::open(*handle).ok());
      },
      [](Receiving& state) { static_cast<void>(state.receiver.fileno().ok()); },
      [](Receiving&) { static_cast<void>(shmtree::Arena::create({.max_bytes = 1 << 20}).ok()); },
      [](Receiving&) { static_cast<void>(shmtree::Arena::create().ok()); },
      [](Receiving&) { static_cast<void>(shmtree::open_sender("none").ok()); },
      [](Receiving&) { static_cast<void>(shmtree::open_receiver("none").ok()); });
  fail_each_allocation([] { return with_two(put_inline); },
                       [&](Receiving& state) { state.threw = !throws_nothing([&] { call(state); }); },
                       [](Receiving& state, bool) {
                         REQUIRE_FALSE(state.threw);
                         REQUIRE(state.receiver.size() == 2 + state.got.size());
                         REQUIRE(is_right(state.receiver.get(0s).value()));
                       });
}

namespace {

// Returns a pair after this process has used both ends, so that it counts as attached to both.
std::pair<shmtree::Sender, shmtree::Receiver> used_pair(const std::string& name = "") {
  auto pair = shmtree::make_pair({.name = name, .arena = new_arena()});
  pair.first.put(1, 0s).value();
  pair.second.get(0s).value();
  return pair;
}

struct Handing {
  std::pair<shmtree::Sender, shmtree::Receiver> pair = used_pair();
  std::string handle{};
  bool done = false;

  Code after_closing() {
    pair.first.close();
    return pair.second.get(0s).code();
  }
};

}  // namespace

// guarantee: out-of-memory
TEST_CASE("a handle that fails to allocate leaves no end in transit") {
  fail_each_allocation([] { return Handing{}; }, [](Handing& state) { state.done = state.pair.first.handle().ok(); },
                       [](Handing& state, bool) {
                         REQUIRE(state.pair.second.stats().value().senders_in_transit == (state.done ? 1 : 0));
                         if (!state.done) REQUIRE(state.after_closing() == Code::kClosed);
                       });
}

// guarantee: out-of-memory
TEST_CASE("a failed open attaches nothing and the handle still works") {
  fail_each_allocation(
      [] {
        Handing state;
        state.handle = state.pair.first.handle().value();
        return state;
      },
      [](Handing& state) { state.done = shmtree::Sender::open(state.handle).ok(); },
      [](Handing& state, bool) {
        REQUIRE(state.pair.second.stats().value().senders_in_transit == (state.done ? 0 : 1));
        if (!state.done) REQUIRE(shmtree::Sender::open(state.handle).ok());
        REQUIRE(state.after_closing() == Code::kClosed);
      });
}

// guarantee: out-of-memory
TEST_CASE("a failed open by name does not attach") {
  const std::string name = "cpp-limits-" + std::to_string(getpid());
  struct State {
    std::pair<shmtree::Sender, shmtree::Receiver> pair;
  };
  fail_each_allocation([&] { return State{used_pair(name)}; },
                       [&](State&) { static_cast<void>(shmtree::open_sender(name).ok()); },
                       [](State& state, bool) {
                         state.pair.first.close();
                         REQUIRE(state.pair.second.get(0s).code() == Code::kClosed);
                       });
}

TEST_CASE("make_pair throws only BadResult on failed allocations") {
  struct State {
    shmtree::Arena arena = new_arena();
    bool other = false;
  };
  fail_each_allocation([] { return State{}; },
                       [](State& state) {
                         try {
                           shmtree::make_pair({.arena = state.arena});
                         } catch (const shmtree::BadResult&) {
                         } catch (...) {
                           state.other = true;
                         }
                       },
                       [](State& state, bool) { REQUIRE_FALSE(state.other); });
}

// guarantee: cpp-conversions
TEST_CASE("try_as reports a failed allocation and keeps the item") {
  auto [sender, receiver] = shmtree::make_pair({.arena = new_arena()});
  sender.put(some_step()).value();
  const Item item = receiver.get().value();
  struct State {
    shmtree::Result<Step> step = shmtree::Error{};
    bool threw = false;
  };
  fail_each_allocation([] { return State{}; },
                       [&](State& state) { state.threw = !throws_nothing([&] { state.step = item.try_as<Step>(); }); },
                       [&](State& state, bool reached) {
                         REQUIRE_FALSE(state.threw);
                         REQUIRE(state.step.ok() == !reached);
                         if (reached) REQUIRE(state.step.code() == Code::kOutOfSharedMemory);
                       });
  CHECK(std::get<1>(*item.as<Step>().note) == std::string(100, 'x'));
}

TEST_CASE("a deep conversion error survives failed allocations") {
  auto [sender, receiver] = shmtree::make_pair({.arena = new_arena()});
  sender.put(shmtree::Dict{{"obs", shmtree::List{1, std::string(100, 'x')}}, {"episode", 1}, {"tags", 1}}).value();
  const Item item = receiver.get().value();
  fail_each_allocation([] { return shmtree::Code::kOs; }, [&](Code& code) { code = item.try_as<Step>().code(); },
                       [&](Code code, bool reached) {
                         REQUIRE((code == Code::kInvalid || (reached && code == Code::kOutOfSharedMemory)));
                       });
}

TEST_CASE("an aggregate that fails to allocate is not put") {
  auto [sender, receiver] = shmtree::make_pair({.arena = new_arena()});
  const Step step = some_step();
  fail_each_allocation([] { return false; }, [&](bool& put) { put = sender.put(step, 0s).ok(); },
                       [&](bool put, bool reached) {
                         REQUIRE((put || reached));
                         REQUIRE(receiver.size() == (put ? 1 : 0));
                         if (put) CHECK(receiver.get(0s).value().as<Step>().tags == step.tags);
                       });
}

// guarantee: cpp-forwarding
TEST_CASE("a failed forward keeps the item and its arrays in place") {
  const shmtree::Arena arena = new_arena();
  auto [sender, receiver] = shmtree::make_pair({.arena = arena});
  const std::uint64_t used = arena.usage().used_bytes;
  fail_each_allocation(
      [&] {
        put_viewed(sender);
        return receiver.get().value();
      },
      [&](Item& item) { sender.put(std::move(item), 0s).ok(); },
      [&](Item& item, bool reached) {
        const bool went = item.is_none();
        REQUIRE((went || reached));
        REQUIRE(receiver.size() == (went ? 1 : 0));
        if (went) item = receiver.get(0s).value();
        REQUIRE(is_right(item));
        const void* place = item["a"].view().data;
        sender.put(std::move(item), 0s).value();
        const Item got = receiver.get(0s).value();
        REQUIRE(got["a"].view().data == place);
      });
  CHECK(arena.usage().used_bytes == used);
}

namespace {

struct Large {
  int first = 7;
  char rest[40'000] = {};
};
void get_flat(Receiving& state) {
  const auto bytes = state.receiver.get_bytes(0s);
  if (bytes) state.got.resize(bytes->size() == sizeof(Large) && bytes->as<Large>().first == 7 ? 1 : 0);
}
void get_copied(Receiving& state) {
  const auto large = state.receiver.get_struct<Large>(0s);
  if (large) state.got.resize(large->first == 7 ? 1 : 0);
}

}  // namespace

// guarantee: cpp-loans
TEST_CASE("a flat receive that fails to allocate loses no message") {
  const Receive receive = GENERATE(as<Receive>{}, &get_flat, &get_copied);
  fail_each_allocation(
      [&] { return with_two([](const shmtree::Sender& sender) { sender.put_struct(Large{}).value(); }); },
      [&](Receiving& state) { state.threw = !throws_nothing([&] { receive(state); }); },
      [&](Receiving& state, bool reached) {
        REQUIRE_FALSE(state.threw);
        REQUIRE((reached || !state.got.empty()));
        REQUIRE(state.receiver.size() == 2 - state.got.size());
        if (state.got.empty()) receive(state);
        REQUIRE(state.got.size() == 1);
      });
}

TEST_CASE("a loan or put that fails to allocate puts and leaks nothing") {
  const shmtree::Arena arena = new_arena();
  auto [sender, receiver] = shmtree::make_pair({.arena = arena});
  sender.put(0).value();
  receiver.get().value();
  const std::uint64_t used = arena.usage().used_bytes;
  fail_each_allocation([] { return false; },
                       [&](bool& put) {
                         auto loan = sender.loan<Large>(0s);
                         if (loan) put = sender.put(std::move(*loan), 0s).ok();
                       },
                       [&](bool put, bool reached) {
                         REQUIRE((put || reached));
                         REQUIRE(receiver.size() == (put ? 1 : 0));
                         if (put) REQUIRE(receiver.get_struct<Large>(0s).value().first == 7);
                         REQUIRE(arena.usage().used_bytes == used);
                       });
  fail_each_allocation([] { return false; }, [&](bool& put) { put = sender.put_struct(Large{}, 0s).ok(); },
                       [&](bool put, bool) {
                         REQUIRE(receiver.size() == (put ? 1 : 0));
                         if (put) receiver.get_bytes(0s).value();
                       });
}
