// Checks that survivors of a death find a channel in order, with the messages that were put before it.
#pragma once

#include <functional>
#include <vector>

#include "support/catch2.h"
#include "support/channel_check.h"
#include "support/channels.h"
#include "support/waits.h"

namespace shmtree::test {

using Numbers = std::vector<std::uint64_t>;
constexpr std::uint64_t kSurvivors = 1'000'000;  // number in the message that a survivor puts

// Requires that a survivor can put without blocking, that all invariants hold, and that all memory is returned.
inline void survive(Channel& channel, const std::function<void()>& check_contents) {
  Arena& arena = *channel.arena();
  CountedWaits waits;
  REQUIRE(put(channel, kSurvivors, 1, waits.until(Deadline::after_ns(60'000'000'000))).ok());
  REQUIRE(waits.blocks == 0);
  arena.participants().check(0);
  REQUIRE(arena.reconcile(patience()).ok());
  REQUIRE(channel::check(arena) == "");
  check_contents();
  REQUIRE(channel.size() == 0);
  REQUIRE(channel::check(arena) == "");
  REQUIRE(channel.stats().queued_bytes == 0);
  REQUIRE(channel.stats().taken == 0);
}
// Like survive(), with a check of the messages before the survivor's own message.
inline void survive_with(Channel& channel, const std::function<bool(const Numbers&)>& contents_are_right) {
  survive(channel, [&] {
    Numbers numbers = drain(channel);
    REQUIRE_FALSE(numbers.empty());
    REQUIRE(numbers.back() == kSurvivors);
    numbers.pop_back();
    REQUIRE(contents_are_right(numbers));
  });
}

inline ChannelOptions unlimited() {
  return with_capacity(0);
}
inline std::function<void(Channel&)> putting(std::uint64_t from, std::uint64_t count, std::size_t words) {
  return [=](Channel& channel) {
    for (std::uint64_t i = from; i < from + count; ++i) put(channel, i, words).value();
  };
}
// Returns a check that the numbers are consecutive and begin with `from`, and that there are `least` to `most` of them.
inline std::function<bool(const Numbers&)> run_of(std::uint64_t from, std::uint64_t least, std::uint64_t most) {
  return [=](const Numbers& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] != from + i) return false;
    }
    return numbers.size() >= least && numbers.size() <= most;
  };
}
// Returns a check that the numbers are the last ones of 0 to count - 1, and at least `least` of them.
inline std::function<bool(const Numbers&)> tail_of(std::uint64_t count, std::uint64_t least) {
  return [=](const Numbers& numbers) {
    return numbers.size() <= count && run_of(count - numbers.size(), least, count)(numbers);
  };
}

}  // namespace shmtree::test
