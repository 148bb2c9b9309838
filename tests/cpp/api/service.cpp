// Services and their clients, in one process, in forked children, and in processes that are killed.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;

namespace {

Service new_service(ServiceOptions options = {}) {
  if (!options.arena) options.arena = Arena::create({.max_bytes = 64 << 20}).value();
  return Service::create(options).value();
}

// Answers `count` requests with twice their value.
bool double_all(const Service& service, int count) {
  for (int i = 0; i < count; ++i) {
    auto request = service.get(60s);
    if (!request || !request->reply(2 * request->value().as<int>())) return false;
  }
  return true;
}

bool has_received(const Client& client, std::uint64_t count) {
  for (int i = 0; i < 60'000; ++i) {
    if (client.stats().value().received >= count) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

}  // namespace

TEST_CASE("a call returns the reply of a server in another process") {
  const Service service = new_service();
  Child server([&] { return double_all(service, 3); });
  Client client = Client::open(service).value();
  Service(service).close();  // This process does not serve.
  for (const int x : {1, 2, 3}) CHECK(client.call(x, 60s).value().as<int>() == 2 * x);
  CHECK(server.succeeded());
}

TEST_CASE("replies of any order and size reach their requests") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  std::vector<Pending> sent;
  for (int i = 0; i < 300; ++i) sent.push_back(client.submit(i).value());
  CHECK_FALSE(sent[0].done());
  std::vector<Request> requests;
  for (int i = 0; i < 300; ++i) requests.push_back(service.get(0s).value());
  CHECK(service.get(0s).code() == Code::kEmpty);
  for (auto it = requests.rbegin(); it != requests.rend(); ++it) {
    const int x = it->value().as<int>();
    it->reply(Dict{{"x", x}, {"array", std::vector<double>(x == 7 ? 100'000 : 1, x)}}).value();
  }
  for (int i = 0; i < 300; ++i) {
    const Item reply = sent[static_cast<std::size_t>(i)].get(60s).value();
    CHECK((reply["x"].as<int>() == i && reply["array"].span<const double>()[0] == i));
  }
  CHECK(sent[0].done());
  CHECK(sent[0].get(0s).value()["x"].as<int>() == 0);  // A second get() returns it again.
}

TEST_CASE("calls of many threads get their own replies") {
  const Service service = new_service();
  Child server([&] { return double_all(service, 8 * 50); });
  const Client client = Client::open(service).value();
  Service(service).close();
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) right += client.call(1000 * t + i, 60s).value().as<int>() == 2 * (1000 * t + i);
    });
  }
  for (auto& each : threads) each.join();
  CHECK(right == 8 * 50);
  CHECK(server.succeeded());
}

TEST_CASE("get_many of a service waits within for more requests") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const Pending first = client.submit(1).value();
  std::optional<Pending> second;
  std::jthread later([&] {
    if (has_received(client, 1)) second = client.submit(2).value();
  });
  auto requests = service.get_many(2, 60s, 60s).value();
  REQUIRE(requests.size() == 2);
  CHECK((requests[0].value().as<int>() == 1 && requests[1].value().as<int>() == 2));
  CHECK(service.get_many(0).code() == Code::kInvalid);
  CHECK(service.get_many(1, 0s).code() == Code::kEmpty);
  const Pending third = client.submit(3).value();
  CHECK(service.get_many(2, 60s, 1ms).value().size() == 1);
}

TEST_CASE("a call returns the last result of a stream") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const Pending sent = client.submit(1).value(), ended = client.submit(2).value();
  Request request = service.get(60s).value();
  for (int i = 0; i < 3; ++i) request.stream(i).value();
  CHECK_FALSE(sent.done());
  request.reply("last").value();
  CHECK(request.stream(4).code() == Code::kInvalid);
  request = service.get(60s).value();
  request.stream("part").value();
  request.end().value();
  CHECK(sent.get(60s).value().as<std::string>() == "last");
  CHECK(ended.get(60s).value().is_none());
}

TEST_CASE("a request is cancelled once its client is closed") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const Pending sent = client.submit(1).value();
  Request request = service.get(60s).value();
  CHECK_FALSE(request.cancelled());
  Client(client).close();
  CHECK(request.cancelled());
  CHECK(request.stream(1).code() == Code::kClosed);
}

TEST_CASE("a failed request gives kRemoteError with kind and text") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const Pending sent = client.submit(1).value();
  Request request = service.get(60s).value();
  request.fail("no such thing", "KeyError").value();
  CHECK(request.fail("again").ok());  // The client has a failure.
  CHECK(request.reply(1).code() == Code::kClosed);
  const auto reply = sent.get(60s);
  REQUIRE(reply.code() == Code::kRemoteError);
  CHECK(reply.error().kind == "KeyError");
  CHECK(reply.error().message == "KeyError: no such thing");
  CHECK_FALSE(reply.error().dropped);
}

TEST_CASE("a dropped request gives kRemoteError with dropped") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const Pending sent = client.submit(1).value();
  { const Request request = service.get(60s).value(); }
  const auto reply = sent.get(60s);
  REQUIRE(reply.code() == Code::kRemoteError);
  CHECK(reply.error().dropped);
  CHECK(reply.error().message == "the server dropped the request without an answer");
}

TEST_CASE("a second reply and a reply that cannot be sent are errors") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  Pending sent = client.submit(1).value();
  Request request = service.get(60s).value();
  request.reply("one").value();
  CHECK(request.reply("two").code() == Code::kInvalid);
  CHECK(request.fail("three").code() == Code::kInvalid);
  CHECK(sent.get(60s).value().as<std::string>() == "one");

  sent = client.submit(1).value();
  request = service.get(60s).value();
  CHECK(request.reply(std::string("\xff")).code() == Code::kInvalid);
  CHECK(request.fail("ignored").ok());
  const auto reply = sent.get(60s);
  REQUIRE(reply.code() == Code::kRemoteError);
  CHECK(reply.error().kind == "invalid");
  CHECK(reply.error().message.find("not UTF-8") != std::string::npos);
}

TEST_CASE("a call times out and its request is dropped") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const auto reply = client.call(1, 1ms);
  REQUIRE(reply.code() == Code::kTimeout);
  CHECK(reply.error().message == "no reply within 0.001 s");
  client.submit(2).value();
  Request request = service.get(60s).value();  // The deadline of the first one has passed.
  CHECK(request.value().as<int>() == 2);
}

TEST_CASE("a full service gives kTimeout to a call and kFull to submit") {
  const Service service = new_service({.capacity = 1});
  const Client client = Client::open(service).value();
  const Pending first = client.submit(1, 0s).value();
  CHECK(client.submit(2, 0s).code() == Code::kFull);
  CHECK(client.call(2, 1ms).code() == Code::kTimeout);
}

TEST_CASE("close of the client fails its requests") {
  const Service service = new_service();
  Client client = Client::open(service).value();
  const Pending sent = client.submit(1).value();
  Result<Item> called = Error{};
  Caller calling([&](const std::stop_token&) { called = client.call(2); });
  client.close();
  calling.join();
  CHECK(called.code() == Code::kClosed);
  CHECK(sent.get(60s).code() == Code::kClosed);
  CHECK(client.call(3).code() == Code::kClosed);
  CHECK(client.closed());
  CHECK(service.get(0s).code() == Code::kEmpty);  // The client waits for no reply any more.
}

TEST_CASE("close of the service ends get") {
  Service service = new_service();
  Result<Request> got = Error{};
  Caller getting([&](const std::stop_token&) { got = service.get(); });
  service.close();
  getting.join();
  CHECK(got.code() == Code::kClosed);
  CHECK(service.closed());
}

// guarantee: service-dead-server
TEST_CASE("a killed server fails the requests in flight") {
  const Service service = new_service();
  std::optional<Request> held;
  Child server([&]() -> bool {
    held = service.get(60s).value();
    for (;;) pause();
  });
  const Client client = Client::open(service).value();
  Service(service).close();
  const Pending begun = client.submit(1).value(), waiting = client.submit(2).value();
  REQUIRE(has_received(client, 1));
  server.kill_and_wait();
  const auto reply = begun.get(60s);
  REQUIRE(reply.code() == Code::kPeerDied);
  CHECK(reply.error().pids == std::vector<int>{server.pid()});
  CHECK(reply.error().message == "server process " + std::to_string(server.pid()) +
                                     " was killed; a server may have handled this request before it exited");
  const auto other = waiting.get(60s);
  REQUIRE(other.code() == Code::kPeerDied);
  CHECK(other.error().message.ends_with("; no server has handled this request"));
}

TEST_CASE("a server that exits fails the requests that it has not begun") {
  const Service service = new_service();
  test::Gate gate;
  Child server([&] {
    Service mine = service;
    gate.wait();
    mine.close();
    return true;
  });
  const Client client = Client::open(service).value();
  Service(service).close();
  const Pending sent = client.submit(1).value();
  gate.open();
  CHECK(sent.get(60s).code() == Code::kPeerDied);
}

// guarantee: service-waits
TEST_CASE("requests wait for the next server with kBoth") {
  const std::string name = "cpp-service-" + std::to_string(getpid());
  const Service service = Service::create({.name = name, .keep_open = KeepOpen::kBoth}).value();
  const auto serve_one = [&](bool dies) {
    const Service mine = Service::create({.name = name, .keep_open = KeepOpen::kBoth}).value();
    Request request = mine.get(60s).value();
    if (dies) raise(SIGKILL);
    return request.reply(request.value()).ok();
  };
  const Client client = Client::open(name).value();
  Service(service).close();
  std::optional<Child> first(std::in_place, [&] { return serve_one(true); });
  const Pending begun = client.submit(1).value();
  CHECK(begun.get(60s).code() == Code::kPeerDied);
  CHECK(first->was_killed());
  const Pending waiting = client.submit(2).value();
  CHECK_FALSE(waiting.done());
  Child second([&] { return serve_one(false); });
  CHECK(waiting.get(60s).value().as<int>() == 2);
  CHECK(second.succeeded());
}

TEST_CASE("retry sends the request again after a server was killed") {
  const std::string name = "cpp-retry-" + std::to_string(getpid());
  const Service kept = Service::create({.name = name}).value();
  const auto serve_one = [&](bool dies) {
    const Service mine = Service::create({.name = name}).value();
    Request request = mine.get(60s).value();
    if (dies) raise(SIGKILL);
    return request.reply(request.value()).ok();
  };
  const Client client = Client::open(name).value();
  Service(kept).close();
  Child first([&] { return serve_one(true); });
  Result<Item> reply = Error{};
  std::thread calling([&] { reply = client.call(5, 60s, std::nullopt); });
  CHECK(first.was_killed());
  Child second([&] { return serve_one(false); });
  calling.join();
  CHECK(reply.value().as<int>() == 5);
  CHECK(second.succeeded());
}

TEST_CASE("a forked child of a client gets replies of its own") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const Pending of_parent = client.submit(1).value();
  Child child(
      [&] { return of_parent.get(0s).code() == Code::kInvalid && client.call(21, 60s).value().as<int>() == 42; });
  for (int i = 0; i < 2; ++i) {
    Request request = service.get(60s).value();
    request.reply(2 * request.value().as<int>()).value();
  }
  CHECK(of_parent.get(60s).value().as<int>() == 2);
  CHECK(child.succeeded());
}

TEST_CASE("a reply to a client that was killed gives kClosed") {
  const Service service = new_service();
  constexpr int kRequests = 200;
  Child asker([&] {
    const Client client = Client::open(service).value();
    std::vector<Pending> sent;
    for (int i = 0; i < kRequests; ++i) sent.push_back(client.submit(i).value());
    sent[0].get().ok();
    return false;
  });
  std::vector<Request> requests;
  for (int i = 0; i < kRequests; ++i) requests.push_back(service.get(60s).value());
  asker.kill_and_wait();
  bool is_closed = false;  // The death is detected a little later.
  for (auto it = requests.begin(); it != requests.end() && !is_closed; ++it) {
    const Status sent = it->reply(1);
    is_closed = !sent && sent.code() == Code::kClosed;
    if (!is_closed) std::this_thread::sleep_for(10ms);
  }
  CHECK(is_closed);
}

TEST_CASE("descriptors announce requests and replies") {
  const Service service = new_service();
  const Client client = Client::open(service).value();
  const auto is_readable = [](int fd, int timeout_ms) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, timeout_ms) == 1;
  };
  CHECK_FALSE(is_readable(service.fileno().value(), 0));
  const Pending sent = client.submit(1).value();
  CHECK(is_readable(service.fileno().value(), 60'000));
  CHECK_FALSE(is_readable(client.fileno().value(), 0));
  service.get(0s).value().reply(2).value();
  CHECK(is_readable(client.fileno().value(), 60'000));
  CHECK(sent.done());
}

TEST_CASE("a client opens a handle and refuses other channels") {
  const Service service = new_service();
  const Client client = Client::open_handle(service.handle().value()).value();
  const Pending sent = client.submit(1).value();
  CHECK(service.get(0s).value().value().as<int>() == 1);
  const auto [sender, receiver] = make_pair({.name = "cpp-pair-" + std::to_string(getpid())});
  CHECK(Client::open("cpp-pair-" + std::to_string(getpid())).code() == Code::kInvalid);
  CHECK(Client::open_handle(sender.handle().value()).code() == Code::kInvalid);
  CHECK(Sender::open(service.handle().value()).code() == Code::kInvalid);
  CHECK(Client::open("no-such-service").code() == Code::kNotFound);
  CHECK(Service::create({.keep_open = KeepOpen::kNo}).code() == Code::kInvalid);
}

TEST_CASE("moved-from objects return errors") {
  Service service = new_service();
  Client client = Client::open(service).value();
  Pending sent = client.submit(1).value();
  Request request = service.get(0s).value();
  Request taken = std::move(request);
  CHECK(request.reply(1).code() == Code::kInvalid);
  CHECK(request.value().is_none());
  const Service other = std::move(service);
  CHECK(service.get(0s).code() == Code::kClosed);
  const Client asks = std::move(client);
  CHECK(client.call(1, 0s).code() == Code::kClosed);
  CHECK((service.closed() && client.closed()));
  const Pending kept = std::move(sent);
  CHECK(sent.get(0s).code() == Code::kInvalid);
  CHECK((taken.reply(7).ok() && kept.get(60s).value().as<int>() == 7));
}

// Every request gets a reply or an error, and no reply goes to another request.
// guarantee: service-failures
TEST_CASE("servers killed at random points lose no request") {
  const auto seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string name = "cpp-kills-" + std::to_string(getpid());
  const Service kept = Service::create({.name = name, .keep_open = KeepOpen::kBoth}).value();
  const Client client = Client::open(name).value();
  Service(kept).close();
  const auto serve = [&] {
    const Service mine = Service::create({.name = name, .keep_open = KeepOpen::kBoth}).value();
    return double_all(mine, 1 << 30);
  };
  int replied = 0, died = 0;
  for (int round = 0; round < 20; ++round) {
    Child server(serve);
    std::vector<Pending> sent;
    for (int i = 0; i < 30; ++i) sent.push_back(client.submit(1000 * round + i, 60s).value());
    const auto received = client.stats().value().put - 30 + std::uniform_int_distribution<std::uint64_t>(0, 30)(random);
    REQUIRE(has_received(client, received));
    server.kill_and_wait();
    Child next(serve);
    for (int i = 0; i < 30; ++i) {
      const auto reply = sent[static_cast<std::size_t>(i)].get(60s);
      if (reply) {
        ++replied;
        CHECK(reply->as<int>() == 2 * (1000 * round + i));
      } else {
        ++died;
        CHECK(reply.code() == Code::kPeerDied);
      }
    }
  }
  CHECK(replied + died == 20 * 30);
  CHECK(replied >= 20);
}
