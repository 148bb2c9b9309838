// Checksums of files.
#include "platform/checksum.h"

#include <array>
#include <string>
#include <vector>

#include "support/catch2.h"

using namespace shmtree::platform;

TEST_CASE("Checksums match the published test vectors") {
  const std::string digits = "123456789";
  CHECK(crc32c(0, digits.data(), digits.size()) == 0xe3069283);
  const std::array<unsigned char, 32> zeros{};  // RFC 3720, B.4
  CHECK(crc32c(0, zeros.data(), zeros.size()) == 0x8a9136aa);
  CHECK(crc32c(0, digits.data(), 0) == 0);
}

TEST_CASE("Checksums are equal in pieces and by table") {
  std::vector<unsigned char> bytes(20'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i % 251);
  for (const std::size_t size : {1u, 7u, 8u, 3071u, 3072u, 3073u, 9216u, 19'999u}) {
    const std::uint32_t whole = crc32c(0, bytes.data() + 1, size);
    CHECK(whole == crc32c_by_table(0, bytes.data() + 1, size));
    for (const std::size_t cut : {std::size_t{0}, size / 3, size - 1}) {
      CHECK(whole == crc32c(crc32c(0, bytes.data() + 1, cut), bytes.data() + 1 + cut, size - cut));
    }
  }
}
