// Messages that a reader could not build, and gave back: its next get() returns them.
#include "support/broadcasts.h"
#include "support/caller.h"
#include "support/catch2.h"
#include "support/process.h"

using namespace shmtree;
using namespace shmtree::test;
using broadcast::FailedBuild;
using broadcast::Received;

namespace {

using Numbers = std::vector<std::uint64_t>;

// Makes `reader` read the next message, which must be `number`, and give it back.
void give_back(Subscriber& reader, std::uint64_t number, FailedBuild how = FailedBuild::kCounted) {
  auto received = std::make_unique<Received>();
  reader.get(received->message, no_wait()).value();
  REQUIRE(number_in(received->message) == number);
  reader.give_back(std::move(received), how);
}

}  // namespace

// guarantee: kept-without-memory
TEST_CASE("A returned message is delivered next and counts as unread") {
  const std::size_t words = GENERATE(kSmallWords, kBlockWords);
  const auto policy = GENERATE(Policy::kBlock, Policy::kSkip, Policy::kRaise);
  const auto ring = new_ring({.capacity = 2});
  const auto reader = subscribe_and_claim(ring, policy);
  put(*ring, 0, words).value();
  put(*ring, 1, words).value();
  for (int i = 1; i < static_cast<int>(broadcast::kMaxFailedBuilds); ++i) give_back(*reader, 0);
  CHECK(reader->size() == 2);
  CHECK(reader->ready());
  put(*ring, 2, words).value();  // a put does not wait for the message that was given back
  CHECK(all_of(*reader) == Numbers{0, 1, 2});
  CHECK(reader->missed() == 0);
  CHECK(reader->size() == 0);
  CHECK(check_ring(*ring).empty());
}

TEST_CASE("Messages returned out of order are delivered in order") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring);
  std::vector<std::unique_ptr<Received>> read;
  for (std::uint64_t i = 0; i < 3; ++i) {
    put(*ring, i).value();
    read.push_back(std::make_unique<Received>());
    reader->get(read.back()->message, no_wait()).value();
  }
  for (const std::size_t i : {1, 2, 0}) reader->give_back(std::move(read[i]), FailedBuild::kInterrupted);
  put(*ring, 3).value();
  CHECK(reader->size() == 4);
  CHECK(all_of(*reader) == Numbers{0, 1, 2, 3});
}

// guarantee: kept-without-memory
TEST_CASE("A message is dropped as missed after eight failed builds") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const auto reader = subscribe_and_claim(ring);
  const std::uint64_t empty = used_bytes(*arena);
  put(*ring, 0, kBlockWords).value();
  for (std::uint32_t i = 0; i < broadcast::kMaxFailedBuilds; ++i) {
    CHECK(reader->missed() == 0);
    give_back(*reader, 0);
  }
  CHECK(reader->missed() == 1);
  CHECK(reader->size() == 0);
  CHECK(used_bytes(*arena) == empty);
  put(*ring, 1).value();
  CHECK(all_of(*reader) == Numbers{1});
}

TEST_CASE("Only failed builds of one message count toward the limit") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring);
  for (std::uint64_t number = 0; number < 3; ++number) {
    put(*ring, number).value();
    for (int i = 0; i < 20; ++i) give_back(*reader, number, FailedBuild::kInterrupted);
    for (int i = 0; i < 7; ++i) give_back(*reader, number);
    CHECK(next(*reader) == number);
  }
  CHECK(reader->missed() == 0);
}

TEST_CASE("A kRaise subscriber gets kOverrun for a dropped message") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring, Policy::kRaise);
  put(*ring, 0).value();
  for (std::uint32_t i = 0; i < broadcast::kMaxFailedBuilds; ++i) give_back(*reader, 0);
  broadcast::Incoming message;
  const auto told = reader->get(message, no_wait());
  CHECK(told.code() == Code::kOverrun);
  CHECK(told.error().missed == 1);
  CHECK(reader->get(message, no_wait()).code() == Code::kEmpty);
}

TEST_CASE("A newer message replaces a returned one for kLatest") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring, Policy::kLatest);
  put(*ring, 0).value();
  give_back(*reader, 0);
  CHECK(reader->size() == 1);
  give_back(*reader, 0);
  put(*ring, 1).value();
  CHECK(reader->size() == 1);
  CHECK(next(*reader) == 1);
  CHECK(reader->missed() == 1);
  CHECK(reader->size() == 0);
}

TEST_CASE("kLatest keeps only the newer of two returned messages") {
  const bool newer_first = GENERATE(false, true);
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring, Policy::kLatest);
  std::unique_ptr<Received> read[2];
  for (std::uint64_t i = 0; i < 2; ++i) {
    put(*ring, i, kBlockWords).value();
    read[i] = std::make_unique<Received>();
    reader->get(read[i]->message, no_wait()).value();
  }
  reader->give_back(std::move(read[newer_first ? 1 : 0]), FailedBuild::kCounted);
  reader->give_back(std::move(read[newer_first ? 0 : 1]), FailedBuild::kCounted);
  CHECK(reader->size() == 1);
  CHECK(reader->missed() == 1);
  CHECK(next(*reader) == 1);
  CHECK(reader->missed() == 1);
}

TEST_CASE("A returned message wakes another waiting thread") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring);
  put(*ring, 7).value();
  auto received = std::make_unique<Received>();
  reader->get(received->message, no_wait()).value();
  std::optional<std::uint64_t> got;
  Caller waiting([&](const std::stop_token&) { got = next(*reader, patience(60'000)); });
  reader->give_back(std::move(received), FailedBuild::kCounted);
  waiting.join();
  CHECK(got == 7);
}

TEST_CASE("Close drops returned messages and those returned later") {
  const auto arena = new_arena();
  const auto ring = new_ring({}, arena);
  const auto reader = subscribe_and_claim(ring);
  const std::uint64_t empty = used_bytes(*arena);
  put(*ring, 0, kBlockWords).value();
  put(*ring, 1, kBlockWords).value();
  auto later = std::make_unique<Received>();
  give_back(*reader, 0, FailedBuild::kInterrupted);
  broadcast::Incoming first;
  reader->get(first, no_wait()).value();
  reader->get(later->message, no_wait()).value();
  auto again = std::make_unique<Received>();
  again->message = std::move(first);
  reader->give_back(std::move(again), FailedBuild::kInterrupted);
  reader->close();
  reader->give_back(std::move(later), FailedBuild::kInterrupted);
  CHECK(reader->get(first, no_wait()).code() == Code::kClosed);
  CHECK(used_bytes(*arena) <= empty);
}

TEST_CASE("A forked child gets no message that its parent returned") {
  const auto ring = new_ring();
  const auto reader = subscribe_and_claim(ring);
  put(*ring, 0, kBlockWords).value();
  give_back(*reader, 0);
  Child child([&] {
    broadcast::Incoming message;
    return reader->get(message, no_wait()).code() == Code::kClosed;
  });
  CHECK(child.succeeded());
  CHECK(all_of(*reader) == Numbers{0});
}
