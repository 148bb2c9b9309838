// Out of memory in this process: every allocation of every operation fails in turn. Each call throws std::bad_alloc or
// returns an Error. It changes nothing, leaves nothing locked and leaks no descriptor, and later calls work.
#include <dirent.h>

#include <optional>

#include "platform/other_process.h"
#include "support/channels.h"
#include "support/failing_memory.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* entries = opendir("/proc/self/fd");
  while (readdir(entries) != nullptr) ++count;
  closedir(entries);
  return count;
}

struct Ready {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Channel> channel;
  std::uint64_t used = 0;
};
// Returns a channel with `count` messages of `words` words each.
Ready with_messages(std::size_t count, std::size_t words, std::uint64_t capacity = 8) {
  Ready ready{new_arena(), nullptr, 0};
  ready.channel = new_channel(ready.arena, with_capacity(capacity));
  for (std::size_t i = 0; i < count; ++i) put(*ready.channel, i, words).value();
  ready.used = used_bytes(*ready.arena);
  return ready;
}
// Returns a channel after a death that no process has detected yet. The dead process had put a message, had a block
// half written, and held views of another.
Ready with_a_death(std::size_t words) {
  Ready ready = with_messages(2, words);
  Gate done;
  Child dead([&] {
    const OwnedBlock written = new_block(*ready.arena, 7000);
    const Lease held = new_lease(*ready.arena, 9000);
    put(*ready.channel, 2, words).value();
    done.open();
    pause();
    return true;
  });
  done.wait();
  dead.kill_and_wait();
  return ready;
}

void require_sound(Arena& arena) {
  if (arena.participants().check(0)) REQUIRE(arena.reconcile(patience()).ok());
  REQUIRE(check_arena(arena) == "");
}

constexpr std::size_t kInline = 3;
constexpr std::size_t kBlock = 5'000;

}  // namespace

TEST_CASE("A failed arena creation leaks no descriptor") {
  struct State {
    std::size_t descriptors;
    std::shared_ptr<Arena> made{};
  };
  fail_each_allocation([] { return State{open_descriptors()}; },
                       [](State& state) {
                         auto arena = Arena::create({.max_bytes = 4 * kMiB, .prefault = 0, .huge_pages = false});
                         if (arena) state.made = *arena;
                       },
                       [](State& state, bool reached) {
                         if (!reached) REQUIRE(state.made != nullptr);
                         state.made.reset();
                         REQUIRE(open_descriptors() == state.descriptors);
                         REQUIRE(check_arena(*new_arena()) == "");
                       });
}

TEST_CASE("A failed attach to a foreign arena leaks no descriptor") {
  Gate made, done;
  Child other([&] {
    auto arena = new_arena();
    made.open(static_cast<std::uint64_t>(arena->fd()));
    done.wait();
    return check_arena(*arena).empty();
  });
  const int fd = static_cast<int>(made.wait());
  std::size_t descriptors = open_descriptors();
  struct State {
    std::shared_ptr<Arena> attached{};
  };
  fail_each_allocation([] { return State{}; },
                       [&](State& state) {
                         auto opened = platform::open_from_process(other.pid(), fd);
                         if (!opened) return;
                         auto arena = Arena::attach(std::move(*opened));
                         if (arena) state.attached = *arena;
                       },
                       [&](State& state, bool reached) {
                         if (!reached) REQUIRE(state.attached != nullptr);
                         state.attached.reset();
                         REQUIRE(open_descriptors() == descriptors);
                       });
  done.open();
  CHECK(other.succeeded());
}

TEST_CASE("A failed channel creation leaks no block") {
  struct State {
    std::shared_ptr<Arena> arena;
    std::shared_ptr<Channel> made{};
  };
  fail_each_allocation([] { return State{new_arena()}; },
                       [](State& state) {
                         auto channel = Channel::create(state.arena, with_capacity(4));
                         if (!channel || !(*channel)->membership().join(End::kSending).ok()) return;
                         if ((*channel)->membership().join(End::kReceiving).ok()) state.made = *channel;
                       },
                       [](State& state, bool reached) {
                         if (!reached) REQUIRE(put(*state.made, 1).ok());
                         state.made.reset();
                         require_sound(*state.arena);
                         REQUIRE(used_bytes(*state.arena) == 0);
                         REQUIRE(put(*new_channel(state.arena), 1).ok());
                       });
}

// guarantee: out-of-memory
TEST_CASE("A put that runs out of memory is complete or has no effect") {
  const std::size_t words = GENERATE(kInline, kBlock);
  struct State {
    Ready ready;
    bool was_put = false;
  };
  fail_each_allocation([&] { return State{with_messages(1, words)}; },
                       [&](State& state) { state.was_put = put(*state.ready.channel, 1, words, no_wait()).ok(); },
                       [&](State& state, bool reached) {
                         Channel& channel = *state.ready.channel;
                         REQUIRE((state.was_put || reached));
                         REQUIRE(channel.size() == (state.was_put ? 2 : 1));
                         require_sound(*state.ready.arena);
                         if (!state.was_put) REQUIRE(used_bytes(*state.ready.arena) == state.ready.used);
                         REQUIRE(put(channel, 2, words).ok());
                         REQUIRE(drain(channel) == (state.was_put ? std::vector<std::uint64_t>{0, 1, 2}
                                                                  : std::vector<std::uint64_t>{0, 2}));
                         REQUIRE(channel.acks().wait({}, no_wait()).ok());
                       });
}

TEST_CASE("A ring that could not grow accepts the message later") {
  struct State {
    Ready ready;
    std::uint64_t went = 0;
  };
  fail_each_allocation([] { return State{with_messages(0, kInline, 0)}; },
                       [](State& state) {
                         while (state.went < 600 && put(*state.ready.channel, state.went, kInline, no_wait()).ok()) {
                           ++state.went;
                         }
                       },
                       [](State& state, bool) {
                         REQUIRE(state.ready.channel->size() == state.went);
                         REQUIRE(put(*state.ready.channel, state.went, kInline).ok());
                         const auto numbers = drain(*state.ready.channel);
                         REQUIRE(numbers.size() == state.went + 1);
                         for (std::size_t i = 0; i < numbers.size(); ++i) REQUIRE(numbers[i] == i);
                         require_sound(*state.ready.arena);
                       });
}

// guarantee: out-of-memory
TEST_CASE("A get that runs out of memory leaves its message queued") {
  const std::size_t words = GENERATE(kInline, kBlock);
  struct State {
    Ready ready;
    std::optional<std::uint64_t> got{};
  };
  fail_each_allocation(
      [&] { return State{with_messages(2, words)}; },
      [](State& state) {
        auto number = get(*state.ready.channel, no_wait());
        if (number) state.got = *number;
      },
      [](State& state, bool reached) {
        REQUIRE((state.got || reached));
        if (state.got) REQUIRE(*state.got == 0);
        const auto left = drain(*state.ready.channel);
        REQUIRE(left == (state.got ? std::vector<std::uint64_t>{1} : std::vector<std::uint64_t>{0, 1}));
        require_sound(*state.ready.arena);
      });
}

TEST_CASE("Views stay valid if memory for more views runs out") {
  struct State {
    Ready ready;
    std::vector<Lease> views{};
  };
  fail_each_allocation(
      [] {
        State state{with_messages(40, 1'000, 64)};
        state.views.reserve(64);
        return state;
      },
      [](State& state) {
        for (;;) {
          auto message = get_message(*state.ready.channel, no_wait());
          if (!message) return;
          auto lease = message->adopt();
          if (lease) state.views.push_back(std::move(*lease));
        }
      },
      [](State& state, bool) {
        for (std::size_t i = 0; i < state.views.size(); ++i) {
          REQUIRE(number_in({state.views[i].data(), 8'000}) == i);
        }
        const auto left = drain(*state.ready.channel);
        REQUIRE(left.size() + state.views.size() == 40);
        state.views.clear();
        require_sound(*state.ready.arena);
        REQUIRE(used_bytes(*state.ready.arena) <= state.ready.used - 40 * 8'192);
      });
}

TEST_CASE("A delivery that runs out of memory loses no message") {
  const std::size_t words = GENERATE(kInline, kBlock);
  struct State {
    Ready ready;
    std::vector<std::uint64_t> acked{};
  };
  fail_each_allocation(
      [&] {
        State state{with_messages(3, words)};
        state.acked.reserve(8);
        return state;
      },
      [](State& state) {
        auto first = take(*state.ready.channel, no_wait());
        auto second = take(*state.ready.channel, no_wait());
        if (first && first->ack(no_wait()).ok()) state.acked.push_back(0);
        if (second) static_cast<void>(second->nack(no_wait()).ok());
        auto third = take(*state.ready.channel, no_wait());  // dropped
      },
      [](State& state, bool) {
        Channel& channel = *state.ready.channel;
        const auto left = drain(channel);
        REQUIRE(left == (state.acked.empty() ? std::vector<std::uint64_t>{0, 1, 2} : std::vector<std::uint64_t>{1, 2}));
        REQUIRE(channel.stats().taken == 0);
        require_sound(*state.ready.arena);
        REQUIRE(channel.acks().wait({}, no_wait()).ok());
      });
}

TEST_CASE("dead_letters() without memory keeps the messages") {
  const std::size_t words = GENERATE(kInline, kBlock);
  fail_each_allocation(
      [&] {
        Ready ready = with_messages(3, words);
        header_of(*ready.channel).max_attempts = 1;
        for (int i = 0; i < 3; ++i) take(*ready.channel, no_wait()).value().nack(patience()).value();
        return ready;
      },
      [](Ready& ready) { static_cast<void>(ready.channel->dead_letters(no_wait()).ok()); },
      [](Ready& ready, bool) {
        REQUIRE(ready.channel->dead_letters(patience()).value().size() == 3);
        require_sound(*ready.arena);
      });
}

TEST_CASE("Batches that run out of memory keep order and lose nothing") {
  struct State {
    Ready ready;
    std::size_t put = 0;
    std::vector<std::uint64_t> got{};
  };
  fail_each_allocation(
      [] {
        State state{with_messages(0, kInline, 64)};
        state.got.reserve(64);
        return state;
      },
      [](State& state) {
        std::optional<Message> messages[20];
        Outgoing out[20];
        for (std::size_t i = 0; i < 20; ++i) {
          messages[i].emplace(*state.ready.channel, i, i % 3 == 0 ? kBlock : kInline);
          if (messages[i]->out.size() == 0) return;
          out[i] = std::move(messages[i]->out);
        }
        const Status went = state.ready.channel->sending().put_many(out, no_wait());
        state.put = went.ok() ? 20 : went.error().completed;
        auto got = get_several(*state.ready.channel, 15, no_wait());
        if (!got) return;
        for (const Incoming& message : *got) state.got.push_back(number_in(message.frame()));
      },
      [](State& state, bool reached) {
        for (const std::uint64_t number : drain(*state.ready.channel)) state.got.push_back(number);
        if (!reached) REQUIRE(state.got.size() == 20);
        REQUIRE(state.got.size() >= state.put);
        for (std::size_t i = 0; i < state.got.size(); ++i) REQUIRE(state.got[i] == i);
        require_sound(*state.ready.arena);
      });
}

TEST_CASE("A recovery that runs out of memory blocks no later recovery") {
  struct State {
    Ready ready;
    std::vector<std::uint64_t> got{};
  };
  fail_each_allocation(
      [] {
        State state{with_a_death(kBlock)};
        state.ready.arena->participants().check(0);
        return state;
      },
      [](State& state) {
        if (state.ready.arena->reconcile(patience()).ok()) static_cast<void>(state.ready.arena->allocator().trim());
      },
      [](State& state, bool) {
        Child other([&] {  // needs every lock to be free
          return get(*state.ready.channel, patience()).value() == 0 &&
                 !memory::needs_recovery(state.ready.arena->header());
        });
        REQUIRE(other.succeeded());
        REQUIRE(drain(*state.ready.channel) == std::vector<std::uint64_t>{1, 2});
        require_sound(*state.ready.arena);
        REQUIRE(state.ready.arena->inspector().stats().participants == 1);
      });
}

TEST_CASE("A call that runs out of memory in recovery keeps no lock") {
  using Act = void (*)(Ready&);
  const Act act = GENERATE(
      as<Act>{}, [](Ready& ready) { static_cast<void>(put(*ready.channel, 3, kBlock, no_wait()).ok()); },
      [](Ready& ready) { static_cast<void>(get(*ready.channel, no_wait()).ok()); },
      [](Ready& ready) { static_cast<void>(take(*ready.channel, no_wait()).ok()); },
      [](Ready& ready) { static_cast<void>(ready.arena->allocator().trim()); },
      [](Ready& ready) { static_cast<void>(ready.channel->tasks().shut_down(true, no_wait()).ok()); },
      [](Ready& ready) { ready.channel->membership().leave(End::kSending); }, [](Ready&) { Channel::leave_all(); },
      [](Ready& ready) { static_cast<void>(ready.channel->membership().join(End::kSending).ok()); },
      [](Ready& ready) { static_cast<void>(ready.channel->membership().begin_transfer(End::kSending).ok()); });
  fail_each_allocation(
      [] {
        Ready ready = with_a_death(kBlock);
        memory::request_recovery(ready.arena->header());
        return ready;
      },
      [&](Ready& ready) { act(ready); },
      [](Ready& ready, bool) {
        auto fresh = new_channel(ready.arena);
        REQUIRE(put(*fresh, 7).ok());
        REQUIRE(get(*fresh).value() == 7);
        require_sound(*ready.arena);
      });
}

TEST_CASE("A fork that runs out of memory makes a working child") {
  fail_each_allocation([] { return with_messages(2, kBlock); },
                       [](Ready& ready) {
                         const int pid = fork();
                         if (pid == 0) {
                           allocations_left = -1;
                           const auto number = get(*ready.channel);
                           _exit(number && *number == 0 ? 0 : 1);
                         }
                         int status = -1;
                         waitpid(pid, &status, 0);
                         allocations_left = -1;
                         if (status != 0) std::abort();
                       },
                       [](Ready& ready, bool) {
                         REQUIRE(drain(*ready.channel) == std::vector<std::uint64_t>{1});
                         require_sound(*ready.arena);
                       });
}

TEST_CASE("wake_fd works later if memory ran out at first") {
  struct State {
    Ready ready;
    bool watched = false;
  };
  fail_each_allocation([] { return State{with_messages(0, kInline)}; },
                       [](State& state) {
                         auto fd = state.ready.channel->watchers().wake_fd(End::kReceiving);
                         if (!fd) return;
                         static_cast<void>(put(*state.ready.channel, 0, kInline, no_wait()).ok());
                         state.ready.channel->watchers().wake_all();
                       },
                       [](State& state, bool) {
                         drain(*state.ready.channel);
                         const int fd = state.ready.channel->watchers().wake_fd(End::kReceiving).value();
                         put(*state.ready.channel, 1).value();
                         pollfd entry{fd, POLLIN, 0};
                         REQUIRE(poll(&entry, 1, 5'000) == 1);
                       });
}
