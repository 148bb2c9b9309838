// Safe uses of calls that return references and views. Compilers must not report them as dangling references, so these
// warnings are errors here, whatever the build does with warnings.
#if defined(__clang__)
#pragma clang diagnostic error "-Wdangling"
#elif defined(__GNUC__) && __GNUC__ >= 14
#pragma GCC diagnostic error "-Wdangling-reference"
#endif

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/recordings.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

struct Point {
  double x = 0, y = 0;
};

const std::vector<int> kNumbers{1, 2, 3};
constexpr std::string_view kBytes = "abc";

Value message() {
  return Dict{{"big", kNumbers}, {"nested", Dict{{"parts", List{kNumbers, kNumbers}}}},
              {"ints", 6},       {"floats", 6.0},
              {"text", "abc"},   {"bytes", Bytes{std::string(kBytes)}}};
}

std::pair<Sender, Receiver> new_pair() {
  return make_pair({.arena = Arena::create({.max_bytes = 16 << 20}).value()});
}
Item received() {
  const auto [sender, receiver] = new_pair();
  sender.put(message()).value();
  return receiver.get().value();
}

template <class Numbers>
int sum(const Numbers& numbers) {
  int total = 0;
  for (const auto number : numbers) total += static_cast<int>(number);
  return total;
}

}  // namespace

TEST_CASE("views of an Item from a temporary Item do not warn") {
  const Item item = received();
  int total = 0;
  for (const int each : item["big"].span<const int>()) total += each;
  for (const int each : item["nested"]["parts"][1].span<int>()) total += each;
  for (const int each : item["nested"]["parts"].at(0).span<int>()) total += each;
  for (const int each : item[std::string("big")].span<int>()) total += each;
  for (const int each : item.find("big")->span<int>()) total += each;
  for (const int each : item.get_or("big", Item()).span<int>()) total += each;
  for (const int each : item.as<Item>()["big"].span<int>()) total += each;
  for (const int each : (*item.begin()).span<int>()) total += each;
  for (const int each : item["big"].span<int>().subspan(0)) total += each;
  for (const std::int64_t each : item["ints"].ints()) total += static_cast<int>(each);
  for (const double each : item["floats"].floats()) total += static_cast<int>(each);
  CHECK(total == 11 * sum(kNumbers));

  const int& front = item["big"].span<const int>().front();
  const int& second = item["big"].span<const int>()[1];
  const double& number = item["floats"].floats()[0];
  CHECK((front == 1 && second == 2 && number == 6.0));
}

TEST_CASE("texts and bytes and shapes of a temporary Item do not warn") {
  const Item item = received();
  std::string text;
  for (const char each : item["text"].as<std::string_view>()) text += each;
  for (const std::byte each : item["bytes"].as<std::span<const std::byte>>()) text += static_cast<char>(each);
  CHECK(text == "abcabc");
  const std::string_view key = item["big"].key(), whole = item["text"].as<std::string_view>();
  CHECK((key == "big" && whole == "abc" && item["text"].class_name().empty()));

  const ArrayView view = item["big"].view();
  for (const std::int64_t extent : item["big"].view().shape) CHECK(extent == 3);
  const std::int64_t& stride = item["big"].view().strides[0];
  CHECK((view.elements == 3 && stride == sizeof(int)));
}

TEST_CASE("the parts of a temporary Item do not warn") {
  const Item item = received();
  int total = 0;
  for (const Item& part : item["nested"]["parts"]) total += sum(part.span<const int>());
  for (const auto& [key, value] : item["nested"].entries()) total += static_cast<int>(value.size());
  for (const std::string_view key : item["nested"].keys()) total += static_cast<int>(key.size());
  const Item& part = item["nested"]["parts"][0];
  for (const int each : part.span<const int>()) total += each;
  CHECK(total == 3 * sum(kNumbers) + 2 + 5);
}

TEST_CASE("messages of streams and Latest and Broadcast do not warn") {
  int total = 0;
  {
    auto [sender, receiver] = new_pair();
    sender.put(message()).value();
    sender.close();
    for (const Item& item : receiver) {
      for (const int each : item["big"].span<const int>()) total += each;
    }
  }
  const Arena arena = Arena::create({.max_bytes = 16 << 20}).value();
  const Latest latest = make_latest({.arena = arena});
  latest.publish(message()).value();
  const Version newest = latest.get().value();
  for (const int each : newest.value["big"].span<const int>()) total += each;

  const Broadcast broadcast = make_broadcast({.arena = arena});
  const Subscriber subscriber = broadcast.subscribe().value();
  broadcast.put(message()).value();
  const Result<Item> result = subscriber.get();
  for (const int each : (*result)["big"].span<const int>()) total += each;
  const Item& item = result.value();
  for (const int each : item["big"].span<const int>()) total += each;
  CHECK(total == 4 * sum(kNumbers));
}

TEST_CASE("taken messages and flat messages and loans do not warn") {
  const auto [sender, receiver] = new_pair();
  sender.put(message()).value();
  TakenItem taken = receiver.take().value();
  int total = 0;
  for (const int each : taken.item()["big"].span<const int>()) total += each;
  const Item& item = taken.item();
  CHECK(total + sum(item["big"].span<const int>()) == 2 * sum(kNumbers));
  taken.ack().value();

  Loaned<Point> loan = sender.loan<Point>().value();
  Point& point = *loan;
  point.x = 1;
  sender.put(std::move(loan)).value();
  const FlatItem flat = receiver.get_bytes().value();
  const Point& read = flat.as<Point>();
  const double& x = flat.as<Point>().x;
  CHECK((read.x == 1 && x == 1));

  LoanedBytes bytes = sender.loan_bytes(3).value();
  for (std::byte& each : bytes.bytes()) each = std::byte{1};
  sender.put(std::move(bytes)).value();
  TakenBytes taken_bytes = receiver.take_bytes().value();
  total = 0;
  for (const std::byte each : taken_bytes.item().bytes()) total += static_cast<int>(each);
  CHECK(total == 3);
  taken_bytes.ack().value();
}

TEST_CASE("frames and recordings do not warn") {
  const Frame frame = pack(message()).value();
  std::string copy;
  for (const std::byte each : frame.bytes()) copy += static_cast<char>(each);
  const Item unpacked = unpack(frame).value();
  for (const int each : unpacked["big"].span<const int>()) CHECK(each > 0);

  const test::FileInMemory file(test::small_recording(copy, copy, copy));
  const Recording recording = Recording::open(file.path()).value();
  const std::string& path = recording.path();
  CHECK(path == file.path());
  int total = 0;
  for (const RecordedMessage& each : recording) {
    const Item item = each.load().value();
    for (const int number : item["big"].span<const int>()) total += number;
    for (const char letter : each.channel) total += letter == 'o' ? 1 : 0;
  }
  CHECK(total == 3 * sum(kNumbers) + 3);
}

TEST_CASE("replay batches and writers do not warn") {
  const ReplayBuffer buffer = make_replay({.capacity = 64, .columns = {{"n"}}});
  const ReplayVectorWriter vector = buffer.vector_writer(2).value();
  for (const ReplayWriter& writer : vector.writers()) writer.add(Dict{{"n", 7}}).value();
  for (const ReplayWriter& writer : vector.writers()) writer.end().value();
  const ReplayBatch batch = buffer.sample(4, 10s).value();
  int total = 0;
  for (const std::string& path : batch.paths()) {
    for (const std::int64_t each : batch.span<const std::int64_t>(path)) total += static_cast<int>(each);
  }
  for (const std::int64_t each : batch.span<const std::int64_t>(std::string("n"))) total += static_cast<int>(each);
  const std::int64_t& first = batch.span<const std::int64_t>("n")[0];
  for (const std::int64_t extent : batch.view("n").shape) total += static_cast<int>(extent);
  CHECK((total == 8 * 7 + 4 && first == 7));
  for (const float each : batch.weight()) CHECK(each <= 1);
  for (const std::int64_t each : batch.index()) CHECK(each >= 0);
}

TEST_CASE("references into handles and Values and Errors do not warn") {
  const Queue queue = make_queue({.capacity = 1, .arena = Arena::create({.max_bytes = 16 << 20}).value()});
  const Sender& sender = queue.sender();
  const Receiver& receiver = queue.receiver();
  sender.put(1).value();
  CHECK(receiver.get().value().as<int>() == 1);

  const Value value = message();
  int total = 0;
  for (const Entry& entry : std::get<Dict>(value.variant()).entries()) total += static_cast<int>(entry.key.size());
  const List list{1, 2};
  for (const Value& each : list.items()) total += each.variant().index() != 0 ? 1 : 0;
  CHECK(total == 3 + 6 + 4 + 6 + 4 + 5 + 2);

  const Result<Item> empty = receiver.get(0s);
  const Error& error = empty.error();
  const std::string& text = empty.error().message;
  CHECK((error.code == Code::kEmpty && !text.empty()));
  const std::vector<ObservedArena> arenas = observe();
  for (const ObservedArena& arena : arenas) {
    for (const char each : arena.name()) CHECK(each != '\0');
  }
}
