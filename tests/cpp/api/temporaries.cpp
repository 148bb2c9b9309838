// Loops and expressions over temporaries: the memory stays valid until the loop or expression ends. Valuable under
// AddressSanitizer.
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

Value message() {
  return Dict{{"big", kNumbers}, {"parts", List{kNumbers, kNumbers}},
              {"ints", 6},       {"floats", 6.0},
              {"text", "abc"},   {"bytes", Bytes{"abc"}}};
}

struct Stream {
  std::pair<Sender, Receiver> ends = make_pair({.arena = Arena::create({.max_bytes = 16 << 20}).value()});
  const Sender& sender = ends.first;
  const Receiver& receiver = ends.second;
  Item next() const {
    sender.put(message()).value();
    return receiver.get(60s).value();
  }
  const Receiver& with(const Value& value) const {
    sender.put(value).value();
    return receiver;
  }
};

template <class Range>
double sum(Range&& numbers) {
  double total = 0;
  for (const auto number : numbers) total += static_cast<double>(number);
  return total;
}
template <class T>
concept CanPoint = requires(T&& object) {
  std::forward<T>(object).operator->();
};

}  // namespace

// guarantee: views-of-temporaries
TEST_CASE("a loop over the value of a temporary Result is safe") {
  const Stream stream;
  for (int i = 0; i < 3; ++i) stream.sender.put(i).value();
  int expected = 0;
  for (const Item& item : stream.receiver.get_many(8, 60s).value()) CHECK(item.as<int>() == expected++);
  stream.sender.put(3).value();
  for (const Item& item : *stream.receiver.get_many(8, 60s)) CHECK(item.as<int>() == expected++);
  CHECK(expected == 4);
  for (const int each : Result<std::vector<int>>(kNumbers).value()) CHECK(each > 0);
  static_assert(!std::is_reference_v<decltype(stream.receiver.get_many(8).value())>);
  static_assert(CanPoint<Result<Item>&> && CanPoint<const Result<Item>&> && !CanPoint<Result<Item>>);
}

// guarantee: views-of-temporaries
TEST_CASE("a loop over a view of a temporary Item is safe") {
  const Stream stream;
  CHECK(sum(stream.next()["big"].span<const int>()) == 6);
  double total = 0;
  for (const int each : stream.next()["big"].span<const int>()) total += each;
  for (const int each : stream.next()["parts"][1].span<int>()) total += each;
  for (const int each : stream.with(kNumbers).get(60s).value().span<const int>()) total += each;
  for (const std::int64_t each : stream.next()["ints"].ints()) total += static_cast<double>(each);
  for (const double each : stream.next()["floats"].floats()) total += each;
  for (const std::int64_t extent : stream.next()["big"].view().shape) total += static_cast<double>(extent);
  CHECK(total == 6 + 6 + 6 + 6 + 6 + 3);
  std::string text;
  for (const char each : stream.next()["text"].as<std::string_view>()) text += each;
  for (const std::byte each : stream.next()["bytes"].as<std::span<const std::byte>>()) text += static_cast<char>(each);
  for (const std::string_view key : stream.next().keys()) text += key;
  for (const char each : stream.next()["text"].key()) text += each;
  for (const char each : stream.next().class_name()) text += each;
  CHECK(text == "abcabcbigpartsintsfloatstextbytestext");
}

// guarantee: views-of-temporaries
TEST_CASE("a loop over the parts of a temporary Item is safe") {
  const Stream stream;
  double total = 0;
  for (const Item& part : stream.next()["parts"]) total += sum(part.span<const int>());
  for (const auto& [key, value] : stream.next().entries()) total += static_cast<double>(key.size() + value.size());
  for (const Item& part : stream.with(message()).take(60s).value().item()["parts"]) total += sum(part.span<int>());
  CHECK(total == 12 + (3 + 5 + 4 + 6 + 4 + 5) + (0 + 2 + 0 + 0 + 0 + 0) + 12);
}

// guarantee: views-of-temporaries
TEST_CASE("an auto variable keeps the message of a temporary") {
  const Stream stream;
  const auto numbers = stream.next()["big"].span<const int>();
  const auto text = stream.next()["text"].as<std::string_view>();
  const auto view = stream.next()["big"].view();
  const auto keys = stream.next().keys();
  CHECK((sum(numbers) == 6 && text == "abc" && view.elements == 3 && keys.at(0) == "big"));
  std::vector<int> copy(3);
  view.copy_to(copy.data());
  CHECK(copy == kNumbers);
}

// guarantee: views-of-temporaries
TEST_CASE("views of temporary bytes, frames and taken messages are safe") {
  const Stream stream;
  std::string text;
  stream.sender.put_bytes(std::as_bytes(std::span("abc", 3))).value();
  for (const std::byte each : stream.receiver.get_bytes(60s).value().bytes()) text += static_cast<char>(each);
  stream.sender.put_bytes(std::as_bytes(std::span("def", 3))).value();
  for (const std::byte each : stream.receiver.take_bytes(60s).value().item().bytes()) text += static_cast<char>(each);
  CHECK(text == "abcdef");
  std::size_t size = 0;
  for (const std::byte each : pack(message()).value().bytes()) size += std::to_integer<unsigned>(each) < 256 ? 1 : 0;
  CHECK(size == pack(message()).value().bytes().size());
  static_assert(!CanPoint<Loaned<Point>> && CanPoint<Loaned<Point>&>);
}

// guarantee: views-of-temporaries
TEST_CASE("the parts of a temporary Value are safe to use") {
  double total = 0;
  for (const Value& each : List{1, 2}.items()) total += std::get<std::int64_t>(each.variant()) == 1 ? 1 : 2;
  for (const Value& each : Tuple{1, 2}.items()) total += std::get<std::int64_t>(each.variant()) == 1 ? 1 : 2;
  for (const Entry& each : Dict{{"a", 1}, {"b", 2}}.entries()) total += static_cast<double>(each.key.size());
  for (const Entry& each : std::get<Dict>(message().variant()).entries()) total += static_cast<double>(each.key.size());
  CHECK(total == 3 + 3 + 2 + 27);
}

// guarantee: views-of-temporaries
TEST_CASE("loops over a temporary recording and its message are safe") {
  std::string frame;
  for (const std::byte each : pack(message()).value().bytes()) frame += static_cast<char>(each);
  const test::FileInMemory file(test::small_recording(frame, frame, frame));
  double total = 0;
  for (const RecordedMessage& each : Recording::open(file.path()).value()) {
    total += sum(each.load().value()["big"].span<const int>());
  }
  CHECK(total == 18);
  std::string path;
  for (const char each : Recording::open(file.path()).value().path()) path += each;
  CHECK(path == file.path());
  const RecordedMessage& first = *Recording::open(file.path()).value().begin();
  CHECK(first.frame.size() == frame.size());
  const Stream stream;
  stream.sender.put(7).value();
  const Item& item = *stream.receiver.begin();
  CHECK(item.as<int>() == 7);
}

// guarantee: views-of-temporaries
TEST_CASE("loops over a temporary batch and handles are safe") {
  const auto buffer = [] {
    ReplayBuffer made = make_replay({.capacity = 64, .columns = {{"n"}}});
    for (int i = 0; i < 4; ++i) made.add(Dict{{"n", 7}}).value();
    made.end().value();
    return made;
  };
  const auto batch = [&] { return buffer().sample(4, 60s).value(); };
  CHECK(sum(batch().span<const std::int64_t>("n")) == 28);
  CHECK(sum(batch().weight()) == 4);
  CHECK(sum(batch().priority()) == 4);
  double total = 0;
  for (const std::int64_t each : batch().index()) total += each >= 0 ? 1 : 0;
  for (const std::string& path : batch().paths()) total += path == "n" ? 1 : 0;
  for (const std::int64_t extent : batch().view("n").shape) total += static_cast<double>(extent);
  for (const ReplayWriter& each : buffer().vector_writer(2).value().writers())
    total += each.closed() || each.stream().ok() ? 1 : 0;
  CHECK(total == 4 + 1 + 4 + 2);
  const Sender& sender = make_queue().sender();
  CHECK(!sender.closed());
  const Receiver& receiver = make_queue().receiver();
  CHECK(!receiver.closed());
  std::string name;
  for (const char each : ObservedArena{.names = {"a name"}}.name()) name += each;
  CHECK(name == "a name");
}
