// Copies write the right bytes, and no others, for any size and alignment.
#include "platform/copy.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/catch2.h"

using namespace shmtree::platform;

namespace {

std::vector<std::uint8_t> numbered(std::size_t bytes) {
  std::vector<std::uint8_t> made(bytes);
  std::uint32_t state = 1;
  for (std::uint8_t& byte : made) byte = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return made;
}

}  // namespace

TEST_CASE("A copy writes the source bytes and no others") {
  constexpr std::size_t kMargin = 256;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4097}, kStreamedBytes - 1, kStreamedBytes, kStreamedBytes + 1,
        kStreamedBytes + 63, kStreamedBytes + 65, kStreamedBytes + 9 * 4096 + 100}) {
    for (const std::size_t from : {std::size_t{0}, std::size_t{1}, std::size_t{16}}) {
      for (const std::size_t to : {std::size_t{0}, std::size_t{7}, std::size_t{64}}) {
        CAPTURE(bytes, from, to);
        const std::vector<std::uint8_t> source = numbered(bytes + from);
        std::vector<std::uint8_t> target(bytes + 2 * kMargin, 0xee);
        copy_bytes(target.data() + kMargin + to, source.data() + from, bytes);
        const auto begin = target.begin() + static_cast<std::ptrdiff_t>(kMargin + to);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        const auto is_left = [](std::uint8_t byte) { return byte == 0xee; };
        REQUIRE(std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from)));
        REQUIRE(std::all_of(target.begin(), begin, is_left));
        REQUIRE(std::all_of(end, target.end(), is_left));
      }
    }
  }
}
