// Results: a value, or an error that takes one word.
#include "shmtree/base/result.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/catch2.h"

using namespace shmtree;

TEST_CASE("A Status takes two words") {
  static_assert(sizeof(Status) <= 2 * sizeof(void*));
  CHECK(success().ok());
}

TEST_CASE("An error of a code alone has no details") {
  const Status empty = Code::kEmpty;
  CHECK(!empty.ok());
  CHECK(empty.code() == Code::kEmpty);
  CHECK(empty.error().code == Code::kEmpty);
  CHECK(empty.error().message.empty());
  const Status same = Error{.code = Code::kEmpty};
  CHECK(&empty.error() == &same.error());  // neither has allocated memory
}

TEST_CASE("An error keeps all of its details") {
  const Status first = Error{Code::kPeerDied, std::string(100, 'x'), 5, 3, {7, 8}, 9, 10, 11};
  const auto is_whole = [](const Error& error) {
    return error.code == Code::kPeerDied && error.message == std::string(100, 'x') && error.os_errno == 5 &&
           error.exit_code == 3 && error.pids == std::vector<int>{7, 8} && error.ticket == 9 && error.completed == 10 &&
           error.missed == 11;
  };
  CHECK(first.code() == Code::kPeerDied);
  CHECK(is_whole(first.error()));

  Status copy = first;
  CHECK(is_whole(copy.error()));
  CHECK(&copy.error() != &first.error());
  Status moved = std::move(copy);
  CHECK(is_whole(moved.error()));
  CHECK(is_whole(std::move(moved).error()));
  moved = first;
  CHECK(is_whole(moved.error()));
  moved = success();
  CHECK(moved.ok());
}

TEST_CASE("An error keeps each single detail") {
  CHECK(Status(Error{.code = Code::kFull, .completed = 3}).error().completed == 3);
  CHECK(Status(Error{.code = Code::kOverrun, .missed = 4}).error().missed == 4);
  CHECK(Status(Error{.code = Code::kCorrupt, .ticket = 5}).error().ticket == 5);
  CHECK(Status(Error{.code = Code::kOs, .os_errno = 6}).error().os_errno == 6);
  CHECK(Status(Error{.code = Code::kPeerDied, .pids = {7}}).error().pids == std::vector<int>{7});
  CHECK(Status(Error{.code = Code::kInvalid, .message = "8"}).error().message == "8");
}

TEST_CASE("value() throws the error with its details") {
  const Result<std::unique_ptr<int>> result = Error{Code::kInvalid, "a sentence"};
  try {
    (void)result.value();
    FAIL("value() returned");
  } catch (const BadResult& bad) {
    CHECK(bad.error().message == "a sentence");
    CHECK(std::string(bad.what()) == "a sentence");
  }
}

TEST_CASE("value_or() and and_then() use the value or the error") {
  CHECK(Result<int>(3).value_or(4) == 3);
  CHECK(Result<int>(Code::kEmpty).value_or(4) == 4);
  const Result<std::string> text("one");
  CHECK(text.value_or("two") == "one");
  CHECK(Result<std::unique_ptr<int>>(std::make_unique<int>(5)).value_or(nullptr) != nullptr);

  const auto half = [](int number) -> Result<double> {
    if (number % 2 != 0) return Error{Code::kInvalid, "an odd number"};
    return number / 2.0;
  };
  CHECK(Result<int>(6).and_then(half).value() == 3.0);
  CHECK(Result<int>(7).and_then(half).error().message == "an odd number");
  CHECK(Result<int>(Error{Code::kFull, "no space"}).and_then(half).error().message == "no space");
}

TEST_CASE("a result is equal to its value only") {
  CHECK(Result<int>(3) == 3);
  CHECK(Result<int>(3) != 4);
  CHECK(Result<int>(Code::kEmpty) != 3);
}
