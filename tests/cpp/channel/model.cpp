// A channel compared with a plain model of it, and many threads and processes at once.
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

struct Model {
  struct Item {
    std::uint64_t number, ticket;
    std::uint32_t attempts;  // attempts to receive it so far
    bool operator<(const Item& other) const { return ticket < other.ticket; }
  };
  std::uint64_t capacity = 0, max_unacked = 0, max_attempts = 0, next_ticket = 0, tasks_done = 0;
  bool reserved[2] = {};
  std::deque<Item> ring;
  std::map<std::uint64_t, Item> returned, rejected;

  std::uint64_t done() const { return tasks_done + rejected.size(); }

  bool full() const { return capacity != 0 && ring.size() + returned.size() >= capacity; }
  bool empty() const { return ring.empty() && returned.empty(); }
  Item pop() {
    Item item{};
    if (!returned.empty()) {
      item = returned.begin()->second;
      returned.erase(returned.begin());
    } else {
      item = ring.front();
      ring.pop_front();
    }
    ++item.attempts;
    return item;
  }
  void give_back(const Item& item) {
    const bool is_used_up = max_attempts != 0 && item.attempts >= max_attempts;
    (is_used_up ? rejected : returned).emplace(item.ticket, item);
  }
};

struct Run {
  std::mt19937_64 random;
  std::shared_ptr<Arena> arena = new_arena(64 * kMiB);
  std::shared_ptr<Channel> channel;
  Model model;
  std::vector<std::pair<Delivery, Model::Item>> taken;
  std::uint64_t number = 0;

  Run(std::uint64_t seed, std::uint64_t capacity) : random(seed) {
    ChannelOptions options = with_capacity(capacity);
    options.max_unacked = model.max_unacked = seed % 2 * 3;
    options.max_attempts = model.max_attempts = seed % 4;
    channel = new_channel(arena, options);
    model.capacity = capacity;
  }
  std::uint64_t below(std::uint64_t n) { return random() % n; }
  std::size_t words() { return below(4) == 0 ? 61 + below(600) : 1 + below(60); }

  void expect(Incoming& message, const Model::Item& item) {
    REQUIRE(message.ticket() == item.ticket);
    REQUIRE(number_in(message.frame()) == item.number);
    REQUIRE(message.attempts() == item.attempts);
    REQUIRE(message.redelivered() == (item.attempts > 1));
  }
  void put_one() {
    auto ticket = put(*channel, ++number, words(), no_wait());
    REQUIRE(ticket.ok() == !model.full());
    if (!ticket) return;
    REQUIRE(*ticket == model.next_ticket);
    model.ring.push_back({number, model.next_ticket++, 0});
  }
  void put_several() {
    std::vector<std::unique_ptr<Message>> messages;
    std::vector<Outgoing> batch;
    for (std::uint64_t i = 0, n = below(90); i < n; ++i) {
      messages.push_back(std::make_unique<Message>(*channel, number + 1 + i, words()));
      batch.push_back(std::move(messages.back()->out));
    }
    auto went = channel->sending().put_many(batch, no_wait());
    const std::uint64_t count = went ? batch.size() : went.error().completed;
    for (std::uint64_t i = 0; i < count; ++i) {
      REQUIRE_FALSE(model.full());
      model.ring.push_back({++number, model.next_ticket++, 0});
    }
    if (!went) REQUIRE(model.full());
    number += batch.size();
  }
  void get_one() {
    auto message = get_message(*channel, no_wait());
    REQUIRE(message.ok() == !model.empty());
    if (message) expect(*message, model.pop());
  }
  void get_some() {
    const std::size_t most = 1 + below(100);
    auto messages = get_several(*channel, most, no_wait());
    REQUIRE(messages.ok() == !model.empty());
    if (!messages) return;
    REQUIRE(messages->size() == std::min<std::size_t>(most, model.ring.size() + model.returned.size()));
    for (Incoming& message : *messages) expect(message, model.pop());
  }
  void take_one() {
    auto delivery = channel->take(no_wait());
    const bool is_too_many = model.max_unacked != 0 && taken.size() >= model.max_unacked;
    REQUIRE(delivery.ok() == (!model.empty() && !is_too_many));
    if (!delivery) return;
    Model::Item item = model.pop();
    expect(delivery->message(), item);
    taken.emplace_back(std::move(*delivery), item);
  }
  // Ends a delivery in a random way. Returns true if that acknowledged the message.
  bool settle(Delivery& delivery, Model::Item& item) {
    switch (below(8)) {
      case 0:
        item.attempts = 0;
        REQUIRE(delivery.requeue(patience()).ok());
        model.returned.emplace(item.ticket, item);
        return false;
      case 1:
      case 2:
      case 3:
        REQUIRE(delivery.nack(patience()).ok());
        model.give_back(item);
        return false;
      default: REQUIRE(delivery.ack(patience()).ok()); return true;
    }
  }
  void look_at_rejected() {
    auto found = channel->dead_letters(patience()).value();
    REQUIRE(found.size() == model.rejected.size());
    auto were = std::exchange(model.rejected, {});
    auto expected = were.begin();
    for (Delivery& delivery : found) {
      expect(delivery.message(), expected->second);
      if (settle(delivery, expected->second)) ++model.tasks_done;
      ++expected;
    }
  }
  void settle_one() {
    if (taken.empty()) return;
    auto& [delivery, item] = taken[below(taken.size())];
    settle(delivery, item);
    std::swap(taken.back(), *std::find_if(taken.begin(), taken.end(), [](auto& pair) { return pair.first.settled(); }));
    taken.pop_back();
  }
  void reopen() {
    channel->membership().leave(End::kSending);
    channel->membership().join(End::kSending).value();
    REQUIRE(Channel::open(arena, channel->block(), patience()).value() == channel);
  }
  void finish_task() {
    const bool any = model.done() < model.next_ticket;
    REQUIRE(channel->tasks().done().ok() == any);
    model.tasks_done += any;
    REQUIRE(channel->tasks().join(no_wait()).ok() == (model.done() == model.next_ticket));
  }
  // Reserves or releases an end for this process, which may go on using the end. Nothing reserves an end twice.
  void reserve_or_release() {
    const std::uint64_t which = below(2);
    const End end = which == 0 ? End::kSending : End::kReceiving;
    if (below(2) == 0) {
      REQUIRE(channel->tasks().reserve(end, no_wait()).ok() == !model.reserved[which]);
      model.reserved[which] = true;
    } else {
      REQUIRE(channel->tasks().release(end) == model.reserved[which]);
      model.reserved[which] = false;
    }
  }
  void shut_down(bool discard) {
    REQUIRE(channel->tasks().shut_down(discard, patience()).ok());
    REQUIRE(code_of(put(*channel, 1, 1, no_wait())) == Code::kShutDown);
    if (discard) {
      const std::uint64_t received = model.next_ticket - model.ring.size() - model.returned.size();
      REQUIRE(channel->tasks().unfinished() == received - std::min(received, model.done()));
      REQUIRE(channel->size() == 0);
      model.ring.clear();
      model.returned.clear();
    }
    while (!model.empty()) get_one();
    REQUIRE(code_of(get(*channel, no_wait())) == Code::kShutDown);
  }
  void step() {
    switch (below(15)) {
      case 14: return look_at_rejected();
      case 12: return finish_task();
      case 13: return reserve_or_release();
      case 0: return put_several();
      case 1: return get_some();
      case 2:
      case 3: return take_one();
      case 4:
      case 5: return settle_one();
      case 6: return reopen();
      case 7:
      case 8: return get_one();
      default: return put_one();
    }
  }
  void check() {
    REQUIRE(channel->size() == model.ring.size() + model.returned.size());
    REQUIRE(channel->sending().has_space() == !model.full());
    REQUIRE(channel->stats().taken == taken.size());
    REQUIRE(channel->stats().dead_letters == model.rejected.size());
    REQUIRE(channel->tasks().unfinished() == model.next_ticket - std::min(model.next_ticket, model.done()));
    REQUIRE(channel->acks().pending() == model.ring.size() + model.returned.size() + taken.size());
  }
};

}  // namespace

// guarantee: get-once-in-order
TEST_CASE("A channel behaves like a model queue at every step") {
  for (const std::uint64_t capacity : {0u, 1u, 5u, 64u, 100u}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      INFO("capacity " << capacity << ", seed " << seed);
      Run run(seed, capacity);
      const int steps = under_valgrind() ? 200 : 3'000;
      for (int i = 0; i < steps; ++i) {
        run.step();
        run.check();
        if (i % 500 == 0) {
          REQUIRE(channel::check(*run.arena) == "");
          memory::request_recovery(run.arena->header());  // a reconcile changes nothing in any state of the channel
          REQUIRE(run.arena->reconcile(patience()).ok());
          run.check();
        }
      }
      run.shut_down(seed % 2 == 0);
      run.taken.clear();
      run.channel.reset();
      run.arena->participants().check(0);
      REQUIRE(run.arena->reconcile(patience()).ok());
      REQUIRE(check_arena(*run.arena) == "");
      REQUIRE(used_bytes(*run.arena) == 0);
    }
  }
}

TEST_CASE("Concurrent threads lose nothing and keep the sender order") {
  const std::uint64_t each = kThreadSanitizer || under_valgrind() ? 1'000 : 20'000;
  for (const std::uint64_t capacity : {0u, 3u, 100u}) {
    auto channel = new_channel(new_arena(64 * kMiB), with_capacity(capacity));
    std::atomic<std::uint64_t> received{0}, refused{0}, unacked{0}, torn{0}, disordered{0}, failed_acks{0};
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t i = 1; i <= each; ++i) {
          if (!put(*channel, thread << 32 | i, i % 5 == 0 ? 200 : 3).ok()) ++refused;
        }
        if (!channel->acks().wait({}, patience()).ok()) ++unacked;
      });
      threads.emplace_back([&, thread] {
        std::map<std::uint64_t, std::uint64_t> last;
        while (received + refused < 4 * each) {
          const auto expect = [&](Incoming& message) {
            const std::uint64_t number = number_in(message.frame());
            if (number == kTorn) ++torn;
            if (last[number >> 32] >= number) ++disordered;
            last[number >> 32] = number;
            ++received;
          };
          if (thread == 0) {
            auto delivery = channel->take(patience(20));
            if (delivery) expect(delivery->message());
            if (delivery && !delivery->ack(patience()).ok()) ++failed_acks;
          } else {
            auto message = get_message(*channel, patience(20));
            if (message) expect(*message);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(refused == 0);
    CHECK(unacked == 0);
    CHECK(torn == 0);
    CHECK(disordered == 0);
    CHECK(failed_acks == 0);
    REQUIRE(received == 4 * each);
    REQUIRE(channel->size() == 0);
    REQUIRE(check_arena(*channel->arena()) == "");
  }
}

TEST_CASE("A fork while threads put and get leaves both sides working") {
  if (kThreadSanitizer) return;  // its runtime does not support threads in a child of a process with threads
  auto channel = new_channel(new_arena(), with_capacity(50));
  // Makes this process count as a user of both ends, so that a late thread does not leave one of them to the children
  // only.
  put(*channel, 1).value();
  REQUIRE(get(*channel).value() == 1);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 1; !stop; ++i) {
        auto went = put(*channel, i, i % 3 == 0 ? 200 : 5, patience(100));
        if (!went && went.code() != Code::kFull) ++wrong;
      }
    });
    threads.emplace_back([&] {
      while (!stop) {
        auto message = get_message(*channel, patience(100));
        if (message ? number_in(message->frame()) == kTorn : message.code() != Code::kEmpty) ++wrong;
      }
    });
  }
  auto fresh = new_channel(channel->arena());
  for (int i = 0; i < (under_valgrind() ? 5 : 60); ++i) {
    Child child([&] {
      for (std::uint64_t n = 0; n < 20; ++n) {
        if (!put(*channel, n, 100).ok() || !get(*channel).ok()) return false;
        if (!put(*fresh, n).ok() || get(*fresh).value() != n) return false;
      }
      Channel::leave_all();
      return true;
    });
    REQUIRE(child.succeeded());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
  drain(*channel);
  channel->arena()->participants().check(0);
  REQUIRE(channel->arena()->reconcile(patience()).ok());
  REQUIRE(check_arena(*channel->arena()) == "");
}

TEST_CASE("Sixteen senders and sixteen receivers transfer all messages") {
  constexpr std::uint64_t kEach = 300;
  auto arena = new_arena(64 * kMiB);
  auto channel = new_channel(arena, with_capacity(8));
  auto counts = new_channel(arena, with_capacity(0));
  std::vector<std::unique_ptr<Child>> children;
  for (std::uint64_t thread = 0; thread < 16; ++thread) {
    children.push_back(std::make_unique<Child>([&] {
      for (std::uint64_t i = 0; i < kEach; ++i)
        if (!put(*channel, i + 1, 2, patience(60'000)).ok()) return false;
      return true;
    }));
    children.push_back(std::make_unique<Child>([&] {
      std::uint64_t count = 0;
      for (;; ++count) {
        auto number = get(*channel, patience(60'000));
        if (!number) return false;
        if (*number == 0) break;
      }
      return put(*counts, count).ok();
    }));
  }
  for (std::size_t i = 0; i < 32; i += 2) REQUIRE(children[i]->succeeded());
  for (int i = 0; i < 16; ++i) REQUIRE(put(*channel, 0).ok());
  std::uint64_t total = 0;
  for (int i = 0; i < 16; ++i) total += get(*counts).value();
  REQUIRE(total == 16 * kEach);
}

TEST_CASE("Space freed by a batch wakes every sender that waits") {
  auto channel = new_channel(new_arena(), with_capacity(8));
  for (std::uint64_t i = 0; i < 8; ++i) put(*channel, i).value();
  std::vector<std::unique_ptr<Child>> senders;
  for (int i = 0; i < 8; ++i) senders.push_back(std::make_unique<Child>([&] { return put(*channel, 100).ok(); }));
  // The senders may be asleep or not yet. Either way all of them get through.
  for (int i = 0; i < 2; ++i) REQUIRE(get_several(*channel, 8).value().size() > 0);
  for (auto& sender : senders) REQUIRE(sender->succeeded());
}
