// Inherited ends in a forked child.
#include <unistd.h>

#include <chrono>
#include <string>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

Arena new_arena() {
  return Arena::create({.max_bytes = 16 << 20}).value();
}

}  // namespace

// guarantee: multiprocessing-fork
TEST_CASE("a stream ends despite inherited senders after keep_only") {
  const Arena arena = new_arena();
  auto [a, b] = make_pair({.arena = arena});
  auto [c, d] = make_pair({.arena = arena});
  auto [e, f] = make_pair({.arena = arena});
  Child source([&, &a = a] {
    keep_only(a);
    const bool sent = a.put(1).ok();
    a.close();
    return sent;
  });
  Child middle([&, &b = b, &c = c] {
    keep_only(b, c);
    for (const Item& item : b) {
      if (!c.put(item.as<int>() + 1)) return false;
    }
    c.close();
    b.close();
    return true;
  });
  Child last([&, &d = d, &e = e] {
    keep_only(d, e);
    for (const Item& item : d) {
      if (!e.put(item.as<int>() + 1)) return false;
    }
    e.close();
    d.close();
    return true;
  });
  a.close();
  b.close();
  c.close();
  d.close();
  e.close();
  CHECK(f.get(60s).value().as<int>() == 3);
  CHECK(f.get(60s).code() == Code::kClosed);
  CHECK(source.succeeded());
  CHECK(middle.succeeded());
  CHECK(last.succeeded());
}

TEST_CASE("the first use of a passive end attaches the child again") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  Gate passive, go;
  Child child([&, &sender = sender] {
    keep_only();
    passive.open();
    go.wait();
    const bool sent = sender.put(5).ok();
    sender.close();
    return sent;
  });
  passive.wait();
  CHECK(receiver.stats().value().senders == 1);
  CHECK(sender.put(4).ok());  // otherwise this process would stop counting as a sender once it receives
  CHECK(receiver.get(60s).value().as<int>() == 4);
  go.open();
  CHECK(receiver.get(60s).value().as<int>() == 5);
  sender.close();
  CHECK(receiver.get(60s).code() == Code::kClosed);
  CHECK(child.succeeded());
}

TEST_CASE("a passive end is closed if the stream ended without it") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  Gate passive, go;
  Child child([&, &sender = sender, &receiver = receiver] {
    keep_only(receiver);
    passive.open();
    go.wait();
    const auto put = sender.put(5);
    return put.code() == Code::kClosed && put.error().message.find("inherited sender") != std::string::npos;
  });
  passive.wait();
  sender.close();
  CHECK(receiver.get(60s).code() == Code::kClosed);
  go.open();
  CHECK(child.succeeded());
}

TEST_CASE("the death of a child with only passive ends is not reported") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  Gate passive, never;
  Child child([&] {
    keep_only();
    passive.open();
    never.wait();
    return true;
  });
  passive.wait();
  child.kill_and_wait();
  sender.close();
  CHECK(receiver.get(60s).code() == Code::kClosed);
}

TEST_CASE("a passive end does not keep a name in use") {
  const std::string name = "keep-only-" + std::to_string(getpid());
  Gate passive, go;
  {
    auto [sender, receiver] = make_pair({.name = name});
    Child child([&, &sender = sender] {
      keep_only();
      passive.open();
      go.wait();
      return sender.closed() || !sender.put(1).ok();
    });
    passive.wait();
    sender.close();
    receiver.close();
    CHECK(open_sender(name).code() == Code::kNotFound);
    go.open();
    CHECK(child.succeeded());
  }
}

TEST_CASE("keep_only keeps ends that the child made and kept queues") {
  Queue queue = make_queue({.arena = new_arena()});
  Child child([&] {
    auto [sender, receiver] = make_pair({.arena = new_arena()});
    keep_only(queue);
    return sender.put(1).ok() && receiver.get(60s).value().as<int>() == 1 && queue.put(2).ok();
  });
  CHECK(queue.get(60s).value().as<int>() == 2);
  CHECK(child.succeeded());
}

TEST_CASE("keep_only changes nothing in a process that was not forked") {
  auto [sender, receiver] = make_pair({.arena = new_arena()});
  keep_only();
  CHECK(receiver.stats().value().senders == 1);
  CHECK(receiver.stats().value().receivers == 1);
}
