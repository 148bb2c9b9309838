// The promises of pair, Queue, Broadcast and Latest: one test for each, on every end that makes it. To cover a new
// kind of end, write an adapter. tests/python/conformance tests the same promises in Python.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace std::chrono_literals;
using namespace shmtree;
using shmtree::test::Caller;
using shmtree::test::Child;
using shmtree::test::Gate;

namespace {

template <class T>
Code code_of(const Result<T>& result) {
  return result ? Code::kOs : result.code();
}
template <class T>
std::string text_of(const Result<T>& refused) {
  return refused.error().message;
}
Result<int> number_in(const Result<Item>& got) {
  if (!got) return got.error();
  return got->as<int>();
}

// Effect of a killed peer on the calls at the other end.
enum class Death { kReported, kEndsStream, kIgnored };

// A wait that close() and a stop request end.
template <class End>
struct Wait {
  const char* name;
  bool puts;
  Code (*call)(const typename End::Writer&, const typename End::Reader&, const std::stop_token&);
};

// Calls that all adapters of channels have in common. The defaults are those of a pair.
struct Channel {
  static constexpr bool kPutWaits = true, kPolls = true, kFails = true;
  static constexpr Code kEnded = Code::kClosed;
  static constexpr Death kWriterDies = Death::kEndsStream, kReaderDies = Death::kReported;

  template <class Writer>
  static Result<std::uint64_t> put(const Writer& to, const Value& value, Timeout timeout = {},
                                   const std::stop_token& stop = {}) {
    return to.put(value, timeout, stop);
  }
  template <class Reader>
  static Result<int> get(const Reader& from, Timeout timeout = {}, const std::stop_token& stop = {}) {
    return number_in(from.get(timeout, stop));
  }
  template <class Writer>
  static void end(Writer& writer) {
    writer.close();
  }
  template <class Writer, class Reader>
  static Reader other_reader(const Writer&, const Reader& reader) {
    return Reader::open(reader.handle().value()).value();
  }
};

struct Pair : Channel {
  static constexpr const char* kName = "pair";
  using Writer = Sender;
  using Reader = Receiver;
  using Options = PairOptions;
  static Options reporting() { return {}; }
  static std::pair<Writer, Reader> make(const Options& options) { return make_pair(options); }
  static Result<Writer> open(const std::string& name, Timeout timeout = 0s) { return open_sender(name, timeout); }
  static const Receiver& polled(const Reader& reader) { return reader; }
  static std::vector<Wait<Pair>> waits() {
    using Stop = std::stop_token;
    return {
        {"put of what needs a block", true,
         [](const Sender& to, const Receiver&, const Stop& stop) {
           return code_of(to.put(std::string(50'000, 'x'), {}, stop));
         }},
        {"get_many", false,
         [](const Sender&, const Receiver& from, const Stop& stop) { return code_of(from.get_many(3, {}, stop)); }},
        {"take", false,
         [](const Sender&, const Receiver& from, const Stop& stop) { return code_of(from.take({}, stop)); }},
        {"wait_for_ack", true,
         [](const Sender& to, const Receiver&, const Stop& stop) { return code_of(to.wait_for_ack(1, {}, stop)); }},
        {"wait_for_all_ack", true,
         [](const Sender& to, const Receiver&, const Stop& stop) { return code_of(to.wait_for_all_ack({}, stop)); }},
    };
  }
};

struct QueueEnd : Channel {
  static constexpr const char* kName = "queue";
  static constexpr bool kFails = false;
  static constexpr Code kEnded = Code::kShutDown;
  static constexpr Death kWriterDies = Death::kReported;
  using Writer = Queue;
  using Reader = Queue;
  using Options = QueueOptions;
  static Options reporting() { return {.on_peer_death = OnPeerDeath::kRaise}; }
  static std::pair<Writer, Reader> make(const Options& options) {
    const Queue queue = make_queue(options);
    return {queue, Queue::open(queue.handle().value()).value()};
  }
  static Result<Writer> open(const std::string& name, Timeout timeout = 0s) { return open_queue(name, timeout); }
  static const Receiver& polled(const Reader& reader) { return reader.receiver(); }
  static void end(const Queue& queue) { queue.shutdown().value(); }
  static std::vector<Wait<QueueEnd>> waits() { return {}; }
};

struct BroadcastEnd : Channel {
  static constexpr const char* kName = "broadcast";
  static constexpr Death kWriterDies = Death::kReported, kReaderDies = Death::kIgnored;
  using Writer = Broadcast;
  using Reader = Subscriber;
  using Options = BroadcastOptions;
  static Options reporting() { return {}; }
  static std::pair<Writer, Reader> make(const Options& options) {
    const Broadcast broadcast = make_broadcast(options);
    return {broadcast, broadcast.subscribe().value()};
  }
  static Result<Writer> open(const std::string& name, Timeout timeout = 0s) { return open_broadcast(name, timeout); }
  static const Subscriber& polled(const Reader& reader) { return reader; }
  static Reader other_reader(const Writer& writer, const Reader&) { return writer.subscribe().value(); }
  static std::vector<Wait<BroadcastEnd>> waits() {
    return {{"wait_for_all_ack", true, [](const Broadcast& to, const Subscriber&, const std::stop_token& stop) {
               return code_of(to.wait_for_all_ack({}, stop));
             }}};
  }
};

// A reader of a Latest, which gets each version once. It is another object of it, so that each can close by itself.
struct Versions {
  Latest latest;
  std::shared_ptr<std::uint64_t> seen = std::make_shared<std::uint64_t>(0);

  Result<Item> get(Timeout timeout, const std::stop_token& stop) const {
    auto newer = latest.get(*seen, timeout, stop);
    if (!newer) return newer.error();
    *seen = newer->version;
    return newer->value;
  }
  Result<std::string> handle() const { return latest.handle(); }
  static Result<Versions> open(const std::string& handle) { return Versions{Latest::open(handle).value()}; }
  void close() { latest.close(); }
  bool closed() const { return latest.closed(); }
};

struct LatestEnd : Channel {
  static constexpr const char* kName = "latest";
  static constexpr bool kPutWaits = false, kPolls = false;
  static constexpr Death kWriterDies = Death::kReported, kReaderDies = Death::kIgnored;
  using Writer = Latest;
  using Reader = Versions;
  using Options = LatestOptions;
  static Options reporting() { return {}; }
  static std::pair<Writer, Reader> make(const Options& options) {
    const Latest latest = make_latest(options);
    return {latest, Versions::open(latest.handle().value()).value()};
  }
  static Result<Writer> open(const std::string& name, Timeout timeout = 0s) { return open_latest(name, timeout); }
  static Result<std::uint64_t> put(const Latest& to, const Value& value, Timeout timeout = {},
                                   const std::stop_token& stop = {}) {
    return to.publish(value, timeout, stop);
  }
  static Reader other_reader(const Writer&, const Reader& reader) {
    Reader other = Reader::open(reader.handle().value()).value();
    *other.seen = *reader.seen;
    return other;
  }
  static std::vector<Wait<LatestEnd>> waits() { return {}; }
};

template <class End>
std::vector<Wait<End>> waits_of() {
  std::vector<Wait<End>> waits = End::waits();
  waits.push_back({"get", false, [](const auto&, const auto& from, const std::stop_token& stop) {
                     return code_of(End::get(from, {}, stop));
                   }});
  if (End::kPutWaits) {
    waits.push_back({"put", true, [](const auto& to, const auto&, const std::stop_token& stop) {
                       return code_of(End::put(to, 1, {}, stop));
                     }});
  }
  return waits;
}

template <class End>
auto new_end(typename End::Options options = End::reporting()) {
  options.arena = Arena::create({.max_bytes = 16 << 20}).value();
  return End::make(options);
}

// Returns a writer and a reader with a capacity of 1, which this process has both used. A pair would otherwise assume
// that other processes use the other end.
template <class End>
auto used_end() {
  typename End::Options options = End::reporting();
  if constexpr (End::kPutWaits) options.capacity = 1;
  auto made = new_end<End>(options);
  End::put(made.first, 0, 0s).value();
  End::get(made.second, 0s).value();
  return made;
}

template <class End>
std::string own_name() {
  return std::string("api-promises-") + End::kName + "-" + std::to_string(getpid());
}

// Checks the calls of an end that is closed, or was moved from.
template <class End>
void check_refuses(typename End::Writer& writer, typename End::Reader& reader) {
  CHECK(writer.closed());
  CHECK(reader.closed());
  CHECK(End::put(writer, 1, 0s).code() == Code::kClosed);
  CHECK(End::get(reader, 0s).code() == Code::kClosed);
  CHECK(writer.handle().code() == Code::kClosed);
  CHECK(reader.handle().code() == Code::kClosed);
  CHECK(writer.stats().code() == Code::kClosed);
  if constexpr (requires { writer.wait_for_all_ack(); }) {
    CHECK(writer.wait_for_ack(0, 0s).code() == Code::kClosed);
    CHECK(writer.wait_for_all_ack(0s).code() == Code::kClosed);
    CHECK(writer.new_array(DType::kInt8, {4}, 0s).code() == Code::kClosed);
    CHECK_FALSE(writer.has_space());
    CHECK(writer.pending_acks() == 0);
  }
  if constexpr (End::kPolls) {
    CHECK(End::polled(reader).get_many(1, 0s).code() == Code::kClosed);
    CHECK(End::polled(reader).fileno().code() == Code::kClosed);
    CHECK((reader.size() == 0 && reader.empty()));
  }
  if constexpr (requires { reader.take(); }) {
    CHECK(reader.take(0s).code() == Code::kClosed);
    CHECK(reader.dead_letters().code() == Code::kClosed);
    CHECK(reader.stats().code() == Code::kClosed);
  }
  if constexpr (requires { writer.join(); }) {
    CHECK(writer.join(0s).code() == Code::kClosed);
    CHECK(writer.task_done().code() == Code::kClosed);
    CHECK((writer.unfinished_tasks() == 0 && writer.capacity() == 0));
  }
  writer.close();
  reader.close();
}

bool is_readable(int fd, int milliseconds) {
  pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&watched, 1, milliseconds) == 1;
}

}  // namespace

#define ALL_ENDS Pair, QueueEnd, BroadcastEnd, LatestEnd
#define ENDS_THAT_QUEUE Pair, QueueEnd, BroadcastEnd  // put waits, and the reader can be polled

// --- timeouts ---

// guarantee: timeouts
TEMPLATE_TEST_CASE("get returns kEmpty after its timeout", "", ALL_ENDS) {
  auto [writer, reader] = new_end<TestType>();
  for (const auto timeout : {-1ms, 0ms, 10ms}) {
    const auto began = std::chrono::steady_clock::now();
    CHECK(TestType::get(reader, timeout).code() == Code::kEmpty);
    CHECK(std::chrono::steady_clock::now() - began >= timeout);
  }
  for (const int number : {1, 2}) {
    TestType::put(writer, number).value();
    CHECK(TestType::get(reader).value() == number);
  }
}

// guarantee: timeouts
TEMPLATE_TEST_CASE("put returns kFull after its timeout and sends nothing", "", ENDS_THAT_QUEUE) {
  auto [writer, reader] = used_end<TestType>();
  TestType::put(writer, 1).value();
  for (const auto timeout : {-1ms, 0ms, 10ms}) CHECK(TestType::put(writer, 2, timeout).code() == Code::kFull);
  CHECK(reader.size() == 1);
  CHECK(TestType::get(reader).value() == 1);
  CHECK(TestType::get(reader, 0s).code() == Code::kEmpty);
}

// --- close, stop requests, moved-from objects ---

TEMPLATE_TEST_CASE("calls of closed ends return kClosed", "", ALL_ENDS) {
  auto [writer, reader] = new_end<TestType>();
  TestType::put(writer, 1).value();
  reader.close();
  writer.close();
  check_refuses<TestType>(writer, reader);
}

// guarantee: moved-from
TEMPLATE_TEST_CASE("calls of moved-from ends return kClosed", "", ALL_ENDS) {
  auto [writer, reader] = new_end<TestType>();
  auto to = std::move(writer);
  auto from = std::move(reader);
  if constexpr (TestType::kPolls) {           // a Versions is no end of the library
    check_refuses<TestType>(writer, reader);  // NOLINT(bugprone-use-after-move)
    auto copy = reader;
    CHECK(copy.closed());
    reader = std::move(from);
    CHECK_FALSE(reader.closed());
    TestType::put(to, 1, 0s).value();
    CHECK(TestType::get(reader, 0s).value() == 1);
  }
  CHECK(writer.closed());
  CHECK(writer.handle().code() == Code::kClosed);
  CHECK_FALSE(to.closed());
}

TEMPLATE_TEST_CASE("copies close together and other objects stay open", "", ALL_ENDS) {
  auto [writer, reader] = used_end<TestType>();
  auto other = TestType::Writer::open(writer.handle().value()).value();
  auto copy = writer;
  copy.close();
  CHECK(writer.closed());
  CHECK_FALSE(other.closed());
  TestType::put(other, 1, 0s).value();
  CHECK(TestType::get(reader, 0s).value() == 1);
}

// guarantee: close-ends-waits
TEMPLATE_TEST_CASE("close by another thread ends a wait and takes no message", "", ALL_ENDS) {
  for (const auto& wait : waits_of<TestType>()) {
    INFO(wait.name);
    auto [writer, reader] = used_end<TestType>();
    auto to = TestType::Writer::open(writer.handle().value()).value();
    auto from = TestType::other_reader(writer, reader);
    if (wait.puts) TestType::put(to, 1).value();
    Code told = Code::kOs;
    Caller waiting([&, to = to, from = from](const std::stop_token&) { told = wait.call(to, from, {}); });
    wait.puts ? to.close() : from.close();
    waiting.join();
    CHECK(told == Code::kClosed);
    if (!wait.puts) TestType::put(writer, 1).value();
    CHECK(TestType::get(reader, 0s).value() == 1);
    CHECK(TestType::get(reader, 0s).code() == Code::kEmpty);
  }
}

// guarantee: close-ends-waits
TEMPLATE_TEST_CASE("a stop request ends a wait and the end stays usable", "", ALL_ENDS) {
  for (const auto& wait : waits_of<TestType>()) {
    INFO(wait.name);
    auto [writer, reader] = used_end<TestType>();
    if (wait.puts) TestType::put(writer, 1).value();
    Code told = Code::kOs;
    Caller waiting([&, to = writer, from = reader](const std::stop_token& stop) { told = wait.call(to, from, stop); });
    waiting.stop();
    waiting.join();
    CHECK(told == Code::kInterrupted);
    std::stop_source stopped;
    stopped.request_stop();
    CHECK(wait.call(writer, reader, stopped.get_token()) == Code::kInterrupted);
    if (!wait.puts) TestType::put(writer, 1, 0s).value();
    CHECK(TestType::get(reader, 0s).value() == 1);
  }
}

// --- the end of a stream ---

TEMPLATE_TEST_CASE("the stream ends after its last message each time", "", ENDS_THAT_QUEUE) {
  auto [writer, reader] = new_end<TestType>();
  for (const int number : {1, 2, 3}) TestType::put(writer, number).value();
  auto copy = writer;
  TestType::end(writer);
  CHECK(TestType::put(copy, 4).code() == TestType::kEnded);
  int sum = 0;
  for (const Item& item : reader) sum += item.template as<int>();
  CHECK(sum == 6);
  for (int i = 0; i < 2; ++i) {
    CHECK(wait(std::span(&TestType::polled(reader), 1), 60s).value() == std::vector<std::size_t>{0});
    CHECK(TestType::get(reader).code() == TestType::kEnded);
  }
}

// guarantee: latest-dead-publisher, broadcast-dead-publisher
TEMPLATE_TEST_CASE("the stream ends if its maker closes before the first put", "", Pair, BroadcastEnd, LatestEnd) {
  auto [writer, reader] = new_end<TestType>();
  const Gate begun;
  Child child([&, &writer = writer, &reader = reader] {
    writer.close();  // the child's copy
    begun.open();
    return TestType::get(reader, 60s).code() == Code::kClosed;
  });
  begun.wait();
  writer.close();
  reader.close();  // the reader of a Latest could publish, too
  CHECK(child.succeeded());
}

TEMPLATE_TEST_CASE("range-for waits and ends when its reader is closed", "", ENDS_THAT_QUEUE) {
  auto [writer, reader] = used_end<TestType>();
  std::vector<int> got;
  Caller reading([&, from = reader](const std::stop_token&) {
    for (const Item& item : from) got.push_back(item.template as<int>());
  });
  TestType::put(writer, 1).value();
  while (!reader.empty()) std::this_thread::yield();
  reader.close();
  reading.join();
  CHECK(got == std::vector<int>{1});
}

// --- other processes ---

// guarantee: queue-languages
TEMPLATE_TEST_CASE("another process puts and gets by handle and by name", "", ALL_ENDS) {
  const std::string name = own_name<TestType>();
  auto [writer, reader] = TestType::make({.name = name});
  const auto other = TestType::other_reader(writer, reader);  // each subscriber has its own process
  const std::string to = writer.handle().value(), from = other.handle().value();
  Child child([&] {
    const auto by_handle = TestType::Writer::open(to).value(), by_name = TestType::open(name).value();
    const auto theirs = TestType::Reader::open(from).value();
    return TestType::put(by_handle, 1).ok() && TestType::get(theirs, 60s).value() == 1 &&
           TestType::put(by_name, 2).ok();
  });
  CHECK(child.succeeded());
  if (TestType::kPutWaits && TestType::kReaderDies == Death::kIgnored) CHECK(TestType::get(reader, 60s).value() == 1);
  CHECK(TestType::get(reader, 60s).value() == 2);
}

// guarantee: peer-died, queue-peer-died, broadcast-dead-publisher, latest-dead-publisher
TEMPLATE_TEST_CASE("a killed writer is reported after its last message", "", ALL_ENDS) {
  auto [writer, reader] = new_end<TestType>();
  const std::string handle = writer.handle().value();
  Child killed([&] {
    TestType::put(TestType::Writer::open(handle).value(), 7).value();
    return raise(SIGKILL) == 0;
  });
  CHECK(killed.was_killed());
  if (TestType::kWriterDies == Death::kEndsStream) writer.close();
  CHECK(TestType::get(reader, 60s).value() == 7);
  if constexpr (TestType::kPolls) CHECK(wait(std::span(&TestType::polled(reader), 1), 60s).value().size() == 1);
  const auto died = TestType::get(reader, 60s);
  REQUIRE(died.code() == Code::kPeerDied);
  CHECK(died.error().pids == std::vector<int>{killed.pid()});
  if (TestType::kWriterDies == Death::kEndsStream) {
    CHECK(TestType::get(reader, 60s).code() == Code::kClosed);
  } else {
    TestType::put(writer, 8).value();
    CHECK(TestType::get(reader, 60s).value() == 8);
  }
}

// guarantee: peer-died, queue-peer-died, broadcast-dead-publisher, latest-dead-publisher
TEMPLATE_TEST_CASE("a process that is killed before its first put is reported", "", Pair, QueueEnd, BroadcastEnd,
                   LatestEnd) {
  auto [writer, reader] = new_end<TestType>();
  const Gate begun;
  Child killed([&] {
    begun.open();
    return raise(SIGKILL) == 0;
  });
  begun.wait();
  CHECK(killed.was_killed());
  if (TestType::kWriterDies == Death::kEndsStream) writer.close();
  const auto died = TestType::get(reader, 60s);
  REQUIRE(died.code() == Code::kPeerDied);
  CHECK(died.error().pids == std::vector<int>{killed.pid()});
  if (TestType::kWriterDies == Death::kReported) {
    TestType::put(writer, 1).value();
    CHECK(TestType::get(reader, 60s).value() == 1);
  }
}

// guarantee: queue-languages
TEMPLATE_TEST_CASE("get waits after a kill with OnPeerDeath::kWait", "", ENDS_THAT_QUEUE) {
  auto [writer, reader] = new_end<TestType>({.on_peer_death = OnPeerDeath::kWait});
  const std::string handle = writer.handle().value();
  Child killed([&] {
    TestType::put(TestType::Writer::open(handle).value(), 7).value();
    return raise(SIGKILL) == 0;
  });
  CHECK(killed.was_killed());
  CHECK(TestType::get(reader, 60s).value() == 7);
  CHECK(TestType::get(reader, 300ms).code() == Code::kEmpty);
}

// guarantee: peer-died
TEMPLATE_TEST_CASE("put reports a killed reader or continues", "", ALL_ENDS) {
  typename TestType::Options options = TestType::reporting();
  if constexpr (TestType::kPutWaits) options.capacity = 1;
  auto [writer, reader] = new_end<TestType>(options);
  Child killed([&, &reader = reader] { return TestType::get(reader, 60s).ok() && raise(SIGKILL) == 0; });
  TestType::put(writer, 1).value();
  CHECK(killed.was_killed());
  reader.close();
  if (TestType::kReaderDies == Death::kIgnored) {
    for (int i = 0; i < 20; ++i) CHECK(TestType::put(writer, i, 60s).ok());
  } else {
    auto refused = TestType::put(writer, 2, 60s);
    if (refused) refused = TestType::put(writer, 3, 60s);
    REQUIRE(refused.code() == Code::kPeerDied);
    CHECK(refused.error().pids == std::vector<int>{killed.pid()});
  }
}

TEMPLATE_TEST_CASE("get reports fail() after the last object has closed", "", Pair, BroadcastEnd, LatestEnd) {
  auto [writer, reader] = new_end<TestType>();
  const std::string handle = writer.handle().value(), again = writer.handle().value();
  Child fails([&, &writer = writer, &reader = reader] {
    auto one = TestType::Writer::open(handle).value(), two = TestType::Writer::open(again).value();
    writer.close();  // the child's copies
    reader.close();
    TestType::put(one, 1).value();
    one.fail();
    TestType::put(two, 2).value();
    two.close();
    return one.closed();
  });
  REQUIRE(fails.succeeded());
  writer.close();
  if (TestType::kPolls) CHECK(TestType::get(reader, 60s).value() == 1);
  CHECK(TestType::get(reader, 60s).value() == 2);
  const auto failed = TestType::get(reader, 60s);
  REQUIRE(failed.code() == Code::kPeerDied);
  CHECK(failed.error().pids == std::vector<int>{fails.pid()});
  CHECK(failed.error().exit_code == -1);
}

// --- names and handles ---

// guarantee: server-restart, names-last-user
TEMPLATE_TEST_CASE("a name is used once and opened with exist_ok", "", ALL_ENDS) {
  typename TestType::Options options{.name = own_name<TestType>()};
  CHECK(TestType::open(options.name).code() == Code::kNotFound);
  CHECK(TestType::open(options.name, 1ms).code() == Code::kTimeout);
  bool is_open = false;
  std::thread opener([&] { is_open = TestType::open(options.name, 60s).ok(); });
  auto [writer, reader] = TestType::make(options);
  opener.join();
  CHECK(is_open);
  CHECK_THROWS_AS(TestType::make(options), BadResult);
  options.exist_ok = true;
  {
    auto [to, from] = TestType::make(options);
    TestType::put(to, 1).value();
    CHECK(TestType::get(reader, 0s).value() == 1);
  }
  options.arena = Arena::create().value();
  CHECK_THROWS_AS(TestType::make(options), BadResult);
  writer.close();
  CHECK(TestType::open(options.name).ok());  // the name exists as long as a process uses it
  reader.close();
  CHECK(TestType::open(options.name).code() == Code::kNotFound);
  options.name.clear();
  CHECK_THROWS_AS(TestType::make(options), BadResult);
}

TEMPLATE_TEST_CASE("exist_ok with other options is refused with both values", "", ALL_ENDS) {
  typename TestType::Options options{.name = own_name<TestType>(), .exist_ok = true};
  const auto made = TestType::make(options);
  const auto set = [&](std::uint64_t number) {
    if constexpr (requires { options.history; })
      options.history = number;
    else
      options.capacity = number;
  };
  set(16);
  try {
    TestType::make(options);
    FAIL("made with other options");
  } catch (const BadResult& refused) {
    CHECK(refused.error().code == Code::kInvalid);
    CHECK(refused.error().message.find(", not 16") != std::string::npos);
  }
}

// guarantee: queue-languages, moved-from
TEMPLATE_TEST_CASE("names and handles of other kinds are refused", "", ALL_ENDS) {
  const std::string name = own_name<TestType>();
  auto [writer, reader] = TestType::make({.name = name});
  const auto pair = make_pair({.name = name + "-p"});
  const Queue queue = make_queue({.name = name + "-q"});
  const Broadcast broadcast = make_broadcast({.name = name + "-b"});
  const Latest latest = make_latest({.name = name + "-l"});
  int by_name = 0, by_handle = 0;
  for (const char* kind : {"-p", "-q", "-b", "-l"}) {
    const auto found = TestType::open(name + kind);
    by_name += found.ok() ? 1 : 0;
    CHECK((found.ok() || found.code() == Code::kInvalid));
    CHECK((found.ok() || found.error().message.starts_with("the name \"" + name + kind + "\" belongs to a ")));
  }
  for (const auto& given : {pair.first.handle(), queue.handle(), broadcast.handle(), latest.handle()}) {
    const auto found = TestType::Writer::open(given.value());
    by_handle += found.ok() ? 1 : 0;
    CHECK((found.ok() || found.code() == Code::kInvalid || found.code() == Code::kIncompatible));
  }
  CHECK((by_name == 1 && by_handle == 1));
  const std::string handle = writer.handle().value();
  for (const std::string& text :
       {std::string(), std::string("0"), std::string("no handle"), handle + "0", handle.substr(1), "0" + handle}) {
    CHECK(TestType::Writer::open(text).code() == Code::kInvalid);
  }
  CHECK(TestType::Writer::open(handle).ok());
}

// --- what arrives, and when ---

// guarantee: read-only-arrays
TEMPLATE_TEST_CASE("arrays arrive in place as promised and never change", "", ALL_ENDS) {
  auto [writer, reader] = new_end<TestType>();
  const auto made = [&to = writer] {
    if constexpr (requires { to.sender(); })
      return to.sender().new_array(DType::kInt32, {10'000}).value();
    else
      return to.new_array(DType::kInt32, {10'000}).value();
  }();
  for (int& element : made.template span<int>()) element = 7;
  TestType::put(writer, made).value();
  const Item item = reader.get({}, {}).value();
  CHECK(static_cast<const void*>(item.view().data) == made.data);
  const bool read_only = TestType::kReaderDies == Death::kIgnored;  // others read the same array
  CHECK(item.view().read_only == read_only);
  if (read_only) {
    CHECK_THROWS_AS(item.view().mutable_data(), BadResult);
    CHECK_THROWS_AS(item.span<int>(), BadResult);
  }
  for (int i = 0; i < 50; ++i) {
    TestType::put(writer, std::vector<int>(10'000, i)).value();
    CHECK(reader.get({}, {}).value().template span<const int>()[0] == i);
  }
  reader.close();
  writer.close();
  for (const int each : item.span<const int>()) REQUIRE(each == 7);
}

TEMPLATE_TEST_CASE("fileno and wait report readers with messages", "", ENDS_THAT_QUEUE) {
  auto [writer, reader] = new_end<TestType>();
  auto [other_writer, idle] = used_end<TestType>();
  const std::vector<std::decay_t<decltype(TestType::polled(reader))>> both{TestType::polled(idle),
                                                                           TestType::polled(reader)};
  const std::vector<std::size_t> none, second{1};
  CHECK(wait(both, 10ms).value() == none);
  const int fd = both[1].fileno().value();
  CHECK_FALSE(is_readable(fd, 0));
  {
    std::vector<std::size_t> ready;
    Caller waiting([&](const std::stop_token&) { ready = wait(both, 60s).value(); });
    TestType::put(writer, 1).value();
    waiting.join();
    CHECK(ready == second);
  }
  TestType::put(writer, 2).value();
  for (int i = 0; i < 2; ++i) {
    CHECK(is_readable(fd, 60'000));
    CHECK(wait(both).value() == second);
    TestType::get(reader, 0s).value();
  }
  CHECK_FALSE(is_readable(fd, 0));
  Code told = Code::kOs;
  Caller stopped([&](const std::stop_token& stop) { told = wait(both, std::nullopt, stop).code(); });
  stopped.stop();
  stopped.join();
  CHECK(told == Code::kInterrupted);
  CHECK(wait(std::span(both).first(0)).value() == none);
  reader.close();
  CHECK(wait(both).value() == second);
}

// --- close during calls ---

// guarantee: close-during-put
TEMPLATE_TEST_CASE("no message is lost when a thread closes the writer", "", Pair, BroadcastEnd) {
  for (int round = 0; round < 100; ++round) {
    auto [writer, reader] = new_end<TestType>({.capacity = static_cast<std::uint64_t>(1 + round % 4)});
    const std::vector<float> message(round % 2 == 0 ? 5 : 60'000);
    std::atomic<int> put{0}, received{0};
    Code end = Code::kOs;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, to = writer] {
        while (to.put(Value(message))) ++put;
      });
    }
    threads.emplace_back([&, from = reader] {
      auto next = from.get(60s);
      for (; next; next = from.get(60s)) ++received;
      end = next.code();
    });
    while (received < 10 + round % 7) std::this_thread::yield();
    writer.close();
    for (std::thread& thread : threads) thread.join();
    CAPTURE(round);
    REQUIRE(put == received);
    REQUIRE(end == Code::kClosed);
    REQUIRE(reader.size() == 0);
  }
}
