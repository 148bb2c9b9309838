// Random numbers of those who draw.
#pragma once

#include <cstdint>

namespace shmtree::replay {

// Counter-based random numbers (splitmix64, G. Steele et al., OOPSLA 2014): a child of a fork goes on with other ones,
// since the key is the participant's.
class Random {
 public:
  explicit Random(std::uint64_t key) noexcept : state_(key * 0x9e3779b97f4a7c15u) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // 0 to bound - 1, each as likely (D. Lemire, ACM TOMACS 2019, without the last 2^-64).
  std::uint64_t below(std::uint64_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<Wide>(next()) * bound >> 64);
  }
  // 0 up to, and without, 1.
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace shmtree::replay
