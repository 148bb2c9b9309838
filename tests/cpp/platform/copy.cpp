// Copies write the right bytes, and no others, for any size and alignment.
#include "platform/copy.h"

#include <algorithm>
#include <cstdint>
#include <span>
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

TEST_CASE("Copies side by side write the source bytes and no others") {
  constexpr std::size_t kSizes[] = {0, 1, 63, 64, 100, 4096, 7056, 28'224, 2048, 5000, 65'537};
  for (const Stores stores : {Stores::kCached, Stores::kStreamed}) {
    for (const std::size_t copies : {1u, 3u, 4u, 5u, 127u, 300u}) {
      CAPTURE(static_cast<int>(stores), copies);
      const std::vector<std::uint8_t> source = numbered(100'000);
      std::vector<std::size_t> begins{0};
      for (std::size_t i = 0; i < copies; ++i) begins.push_back(begins.back() + kSizes[i % std::size(kSizes)] + i % 3);
      std::vector<std::uint8_t> target(begins.back(), 0xee);
      const auto size = [&](std::size_t i) { return kSizes[i % std::size(kSizes)]; };
      const auto from = [&](std::size_t i) { return i * 97 % 30'000; };
      {
        SideBySide all(stores);
        for (std::size_t i = 0; i < copies; ++i) {
          all.add(reinterpret_cast<std::byte*>(target.data() + begins[i]),
                  reinterpret_cast<const std::byte*>(source.data() + from(i)), size(i));
        }
      }
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < copies; ++i) {
        const std::span copied = std::span(target).subspan(begins[i], size(i));
        const std::span left = std::span(target).first(begins[i + 1]).subspan(begins[i] + size(i));
        wrong += !std::ranges::equal(copied, std::span(source).subspan(from(i), size(i)));
        wrong += !std::ranges::all_of(left, [](std::uint8_t byte) { return byte == 0xee; });
      }
      CHECK(wrong == 0);
    }
  }
}
