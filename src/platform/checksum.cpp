#include "platform/checksum.h"

#include <array>
#include <cstring>

#include "platform/never_destroyed.h"

namespace shmtree::platform {

namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // with reversed bits

using Table = std::array<std::uint32_t, 256>;

// kTables[k][b] is the checksum of byte b followed by k zero bytes.
constexpr std::array<Table, 8> kTables = [] {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum & 1) != 0 ? sum >> 1 ^ kPolynomial : sum >> 1;
    tables[0][byte] = sum;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}();

std::uint64_t word_at(const unsigned char* at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)

// Extends a checksum by kBytes zero bytes, with one table for each byte of the sum. Checksums are linear, so three
// adjacent parts can be computed in parallel and combined.
template <std::size_t kBytes>
struct Zeros {
  std::array<Table, 4> tables{};

  constexpr Zeros() {
    for (std::size_t part = 0; part < 4; ++part) {
      std::array<std::uint32_t, 8> bits{};
      for (std::size_t bit = 0; bit < 8; ++bit) {
        std::uint32_t sum = std::uint32_t{1} << (8 * part + bit);
        for (std::size_t i = 0; i < kBytes; ++i) sum = sum >> 8 ^ kTables[0][sum & 0xff];
        bits[bit] = sum;
      }
      for (std::size_t byte = 0; byte < 256; ++byte) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          if ((byte >> bit & 1) != 0) tables[part][byte] ^= bits[bit];
        }
      }
    }
  }
  std::uint32_t after(std::uint32_t sum) const noexcept {
    return tables[0][sum & 0xff] ^ tables[1][sum >> 8 & 0xff] ^ tables[2][sum >> 16 & 0xff] ^ tables[3][sum >> 24];
  }
};

constexpr std::size_t kPart = 1024;  // the instruction has a latency of 3 cycles, and one can start in each
const Zeros<kPart> kZeros;

__attribute__((target("sse4.2,crc32"))) std::uint32_t by_instruction(std::uint32_t before, const unsigned char* at,
                                                                     std::size_t bytes) noexcept {
  std::uint64_t sum = ~before;
  for (; bytes >= 3 * kPart; at += 3 * kPart, bytes -= 3 * kPart) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kPart; i += 8) {
      sum = __builtin_ia32_crc32di(sum, word_at(at + i));
      second = __builtin_ia32_crc32di(second, word_at(at + kPart + i));
      third = __builtin_ia32_crc32di(third, word_at(at + 2 * kPart + i));
    }
    sum = kZeros.after(static_cast<std::uint32_t>(sum)) ^ second;
    sum = kZeros.after(static_cast<std::uint32_t>(sum)) ^ third;
  }
  for (; bytes >= 8; at += 8, bytes -= 8) sum = __builtin_ia32_crc32di(sum, word_at(at));
  auto rest = static_cast<std::uint32_t>(sum);
  for (; bytes != 0; ++at, --bytes) rest = __builtin_ia32_crc32qi(rest, *at);
  return ~rest;
}

#endif

}  // namespace

std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes) noexcept {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint32_t sum = ~before;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const std::uint64_t word = word_at(at) ^ sum;  // little-endian
    sum = 0;
    for (std::size_t k = 0; k < 8; ++k) sum ^= kTables[7 - k][word >> 8 * k & 0xff];
  }
  for (; bytes != 0; ++at, --bytes) sum = sum >> 8 ^ kTables[0][(sum ^ *at) & 0xff];
  return ~sum;
}

std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if (computed_once<[] { return __builtin_cpu_supports("sse4.2") != 0; }>()) {
    return by_instruction(before, static_cast<const unsigned char*>(data), bytes);
  }
#endif
  return crc32c_by_table(before, data, bytes);
}

}  // namespace shmtree::platform
