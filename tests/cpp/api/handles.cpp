#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/held_child.h"
#include "support/process.h"

using namespace std::chrono_literals;
using shmtree::Code;
using shmtree::test::HeldChild;

namespace {

// A process without objects of the library. `body` gets only the text that tell() writes to the pipe.
struct Stranger {
  int to_child[2];
  pid_t pid;

  template <class Body>
  explicit Stranger(
      Body body, const std::function<void()>& begin = [] {}) {
    REQUIRE(pipe(to_child) == 0);
    pid = fork();
    if (pid == 0) {
      alarm(120);
      begin();
      char text[1024]{};
      std::size_t size = 0;
      for (ssize_t n; size == 0 || text[size - 1] != '\n'; size += static_cast<std::size_t>(n)) {
        n = read(to_child[0], text + size, sizeof text - size);
        if (n <= 0) _exit(90);
      }
      text[size - 1] = 0;
      _exit(body(std::string(text)));
    }
  }
  void tell(std::string text) {
    text += '\n';
    REQUIRE(write(to_child[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  int exit_status() {
    int status = 0;
    waitpid(pid, &status, 0);
    close(to_child[0]);
    close(to_child[1]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

std::string unique_name(const char* what) {
  return std::string("cpp-") + what + "-" + std::to_string(getpid());
}

int send_one(shmtree::Result<shmtree::Sender> sender) {
  if (!sender) return 1;
  if (!sender->put(shmtree::Dict{{"from", "a stranger"}}, 30s)) return 2;
  return sender->wait_for_all_ack(30s) ? 0 : 3;
}

}  // namespace

TEST_CASE("an unrelated process opens an end by its handle") {
  Stranger other([](const std::string& text) { return send_one(shmtree::Sender::open(text)); });
  auto [sender, receiver] = shmtree::make_pair();
  other.tell(sender.handle().value());
  CHECK(receiver.get(30s).value()["from"].as<std::string>() == "a stranger");
  CHECK(other.exit_status() == 0);
}

TEST_CASE("an unrelated process opens a pair by its name") {
  Stranger other([](const std::string& text) { return send_one(shmtree::open_sender(text)); });
  const std::string name = unique_name("named");
  auto [sender, receiver] = shmtree::make_pair({.name = name});
  other.tell(name);
  CHECK(receiver.get(30s).value()["from"].as<std::string>() == "a stranger");
  CHECK(other.exit_status() == 0);
}

// guarantee: names-last-user
TEST_CASE("a forked child keeps the name of its pair in use") {
  const std::string name = unique_name("forked");
  auto [sender, receiver] = shmtree::make_pair({.name = name});
  shmtree::test::Gate joined;
  Stranger child([&, to = sender](const std::string&) { return send_one(to); }, [&] { joined.open(); });
  joined.wait();
  sender.close();
  receiver.close();
  auto again = shmtree::open_receiver(name);
  REQUIRE(again.ok());
  child.tell("go on");
  CHECK(again->get(30s).value()["from"].as<std::string>() == "a stranger");
  CHECK(child.exit_status() == 0);
}

// guarantee: names-last-user
TEST_CASE("a forked child holds a name before fork returns") {
  const std::string name = unique_name("at-once");
  auto [sender, receiver] = shmtree::make_pair({.name = name});
  HeldChild child([to = sender] { return send_one(to); });
  sender.close();
  receiver.close();
  CHECK_THROWS_AS(shmtree::make_pair({.name = name}), shmtree::BadResult);
  auto again = shmtree::open_receiver(name);
  child.let_go();
  REQUIRE(again.ok());
  CHECK(again->get(30s).value()["from"].as<std::string>() == "a stranger");
  CHECK(child.exit_status() == 0);
}

// guarantee: names-last-user
TEST_CASE("a child killed before it ran frees its name") {
  const std::string name = unique_name("killed-at-once");
  {
    auto [sender, receiver] = shmtree::make_pair({.name = name});
    HeldChild child([] { return 0; });
    sender.close();
    receiver.close();
    child.kill();
  }
  CHECK(shmtree::open_sender(name).code() == Code::kNotFound);
  CHECK(shmtree::make_pair({.name = name}).first.has_space());
}

// guarantee: names-last-user
TEST_CASE("concurrently forked children leave no name behind") {
  const std::string name = unique_name("many");
  {
    auto [sender, receiver] = shmtree::make_pair({.name = name});
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        for (int round = 0; round < 10; ++round) {
          const pid_t pid = fork();
          if (pid == 0) _exit(0);
          waitpid(pid, nullptr, 0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(shmtree::open_sender(name).code() == Code::kNotFound);
}

// guarantee: names-last-user
TEST_CASE("an end opened by handle keeps the name in use") {
  const std::string name = unique_name("handed");
  Stranger owner([&](const std::string& handle) {
    auto sender = shmtree::Sender::open(handle);
    auto by_name = shmtree::open_sender(name);
    if (!sender || !by_name) return 1;
    by_name->close();
    if (!sender->put("joined", 30s) || !sender->wait_for_all_ack(30s)) return 2;
    auto receiver = shmtree::open_receiver(name);
    // a message of the parent, which had released both ends and opened the name again
    return receiver && receiver->get(30s) ? 0 : 3;
  });
  auto [sender, receiver] = shmtree::make_pair({.name = name});
  owner.tell(sender.handle().value());
  CHECK(receiver.get(30s).value().as<std::string>() == "joined");
  sender.close();
  receiver.close();
  auto again = shmtree::open_sender(name);
  REQUIRE(again.ok());
  again->put("there still", 30s).value();
  CHECK(owner.exit_status() == 0);
}

TEST_CASE("a named pair has an arena of its own") {
  auto [sender, receiver] = shmtree::make_pair();
  auto [named_sender, named_receiver] = shmtree::make_pair({.name = unique_name("own")});
  const std::uint64_t before = shmtree::Arena::shared().value().usage().used_bytes;
  named_sender.put(std::vector<double>(100'000)).value();
  CHECK(shmtree::Arena::shared().value().usage().used_bytes == before);
  sender.put(std::vector<double>(100'000)).value();
  CHECK(shmtree::Arena::shared().value().usage().used_bytes > before);
}

TEST_CASE("an array is sent in place by any handle of its arena") {
  auto [sender, receiver] = shmtree::make_pair({.name = unique_name("arrays")});
  const shmtree::Sender again = shmtree::Sender::open(sender.handle().value()).value();
  shmtree::ArrayRef array = again.new_array(shmtree::DType::kFloat64, {100'000}).value();
  const void* const place = array.data;
  sender.put(std::move(array)).value();
  CHECK(receiver.get(30s).value().view().data == place);
}
